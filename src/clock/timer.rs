//! Waking a future at a moment, whichever executor polls it.
//!
//! Tokio's timers belong to a runtime: one without its time driver, or one that has ended, panics when they are made or
//! polled. A caller's future may be polled there, so it waits with the one timer thread of the process instead. The thread is
//! started by the first wait, and sleeps until the first moment that somebody waits for.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// Longest single wait. Its caller looks at its own clock and waits again.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The timer of the process.
#[derive(Debug, Default)]
struct Timer {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    by_moment: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    /// When the thread wakes by itself; `None` while it sleeps without an end, or is awake.
    armed: Option<Instant>,
}

/// Ready at a moment. Dropping it waits no longer.
#[derive(Debug)]
pub(super) struct Sleep {
    timer: &'static Timer,
    at: Instant,
    id: Option<u64>,
    /// Whom the timer wakes. A future that is polled for other reasons, as most are, finds itself here.
    waker: Option<Waker>,
}

/// A sleep of this length from now; `None` if the operating system gives the process no thread for it.
pub(super) fn sleep(duration: Duration) -> Option<Sleep> {
    static TIMER: Timer = Timer { waiting: Mutex::new(Waiting::new()), changed: Condvar::new() };
    static STARTED: OnceLock<bool> = OnceLock::new();
    let start = || thread::Builder::new().name("redquorum-timer".into()).spawn(|| TIMER.run()).is_ok();
    let at = Instant::now() + duration.min(LONGEST);
    STARTED.get_or_init(start).then_some(Sleep { timer: &TIMER, at, id: None, waker: None })
}

impl Waiting {
    const fn new() -> Self {
        Self { by_moment: BTreeMap::new(), next: 0, armed: None }
    }
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Entries are put in and taken out whole, so a panic elsewhere spoils nothing.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut waiting = self.lock();
        loop {
            let now = Instant::now();
            let later = waiting.by_moment.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut waiting.by_moment, later);
            if !due.is_empty() {
                waiting.armed = Some(now);
                drop(waiting);
                for waker in due.into_values() {
                    // An executor's waker that panics must not stop the others.
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
                waiting = self.lock();
                continue;
            }
            waiting.armed = waiting.by_moment.first_key_value().map(|((at, _), _)| *at);
            let woken = match waiting.armed {
                Some(at) => {
                    let woken = self.changed.wait_timeout(waiting, at.saturating_duration_since(now));
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
            waiting = woken;
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.at {
            return Poll::Ready(());
        }
        if self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let (timer, at, waker) = (self.timer, self.at, cx.waker().clone());
        self.waker = Some(waker.clone());
        let mut waiting = timer.lock();
        let id = *self.id.get_or_insert_with(|| {
            waiting.next += 1;
            waiting.next
        });
        let earlier = waiting.by_moment.insert((at, id), waker);
        if waiting.armed.is_none_or(|armed| at < armed) {
            timer.changed.notify_one();
        }
        // Dropping a waker may drop a task, and with it another sleep.
        drop(waiting);
        drop(earlier);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = {
                let mut waiting = self.timer.lock();
                waiting.by_moment.remove(&(self.at, id))
            };
            // Not under the lock: dropping a waker may drop a task, and with it another sleep.
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps end in the order of their moments, never early, and one that is dropped leaves nothing behind.
    #[test]
    fn sleeps_end_in_their_order() {
        let started = Instant::now();
        let millis = |millis| sleep(Duration::from_millis(millis)).expect("a thread");
        let (late, soon, mut dropped) = (millis(60), millis(20), millis(3_600_000));
        let waker = futures::task::noop_waker();
        assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(&waker)).is_pending());
        let (at, id) = (dropped.at, dropped.id.expect("it waits"));
        drop(dropped);
        assert!(!late.timer.lock().by_moment.contains_key(&(at, id)));

        // A runtime without timers.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let first = runtime.block_on(futures::future::select(late, soon));

        let futures::future::Either::Right(((), late)) = first else { panic!("the later one ended first") };
        assert!(started.elapsed() >= Duration::from_millis(20));
        runtime.block_on(late);
        assert!(started.elapsed() >= Duration::from_millis(60));
    }
}
