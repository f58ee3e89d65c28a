//! Waking at a deadline that matters: the end of a lease's validity.
//!
//! Rule 8: the holder is told no later than the end of validity. Tokio's timers end 1 to 4 ms late and stand still in
//! suspend, so on Linux one timer on the boot clock (timerfd) serves all leases of a client. Elsewhere tokio's timer
//! looks at the clock at least every 250 ms. Both aim early.

use std::time::Duration;

use crate::clock::Clock;
use crate::protocol::time::Instant;

/// How much before the end of validity the holder is told. Waking a thousand tasks on a busy machine takes some milliseconds:
/// with two of them to spare, the last hundredth of a thousand holders was late by more.
pub(crate) const EARLY: Duration = Duration::from_millis(4);

/// Wakes whoever waits for a deadline. Cheap until the first one waits.
#[derive(Debug)]
pub(crate) struct Alarm {
    clock: Clock,
    #[cfg(any(target_os = "linux", target_os = "android"))]
    boot: boot::BootAlarm,
}

impl Alarm {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            #[cfg(any(target_os = "linux", target_os = "android"))]
            boot: boot::BootAlarm::default(),
        }
    }

    /// Waits until shortly before `deadline`: [`EARLY`] before it.
    pub(crate) async fn wait(&self, deadline: Instant) {
        let aim = deadline.before(EARLY);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(mut corrections) = self.clock.corrections() {
            loop {
                corrections.borrow_and_update();
                let woken = tokio::select! {
                    biased;
                    woken = self.boot.wait(self.clock.to_machine(aim), &self.clock) => woken,
                    // The moment comes sooner on the machine's clock. The sender lives in `self`.
                    _ = corrections.changed() => continue,
                };
                if woken {
                    return;
                }
                // Without a timer of the kernel's (no descriptors left) the general way still works, only less exactly.
                break;
            }
        }
        self.clock.sleep_until(aim).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod boot {
    use std::collections::BTreeMap;
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

    use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
    use tokio::sync::oneshot;

    use crate::clock::Clock;
    use crate::protocol::time::Instant;

    /// One timer of the kernel's on the boot clock, whose moments are all the machine's, and a thread that waits for it. A thread, because handing the
    /// timer to tokio needs unsafe code; it sleeps in the kernel, and exists only once somebody watches a lease.
    #[derive(Debug, Default)]
    pub(super) struct BootAlarm {
        shared: OnceLock<Option<Arc<Waiting>>>,
    }

    #[derive(Debug)]
    struct Waiting {
        timer: OwnedFd,
        clock: Clock,
        waiters: Mutex<Waiters>,
    }

    #[derive(Debug, Default)]
    struct Waiters {
        by_deadline: BTreeMap<(Instant, u64), oneshot::Sender<()>>,
        next: u64,
        /// The moment that the timer is set to.
        armed: Option<Instant>,
        /// The thread ends, or has ended.
        over: bool,
    }

    impl BootAlarm {
        /// Waits until `at`; false where there is no such timer.
        pub(super) async fn wait(&self, at: Instant, clock: &Clock) -> bool {
            let Some(waiting) = self.shared.get_or_init(|| Waiting::start(clock.clone())) else {
                return false;
            };
            let (waiter, woken) = oneshot::channel();
            let id = {
                let mut waiters = waiting.lock();
                if waiters.over {
                    return false;
                }
                let id = waiters.next;
                waiters.next += 1;
                waiters.by_deadline.insert((at, id), waiter);
                waiting.arm(&mut waiters);
                id
            };
            let _forgotten = Forgotten { waiting, at, id };
            woken.await.is_ok()
        }
    }

    impl Drop for BootAlarm {
        fn drop(&mut self) {
            if let Some(Some(waiting)) = self.shared.get() {
                waiting.lock().over = true;
                // Long ago: fires at once, and the thread ends.
                waiting.set(Instant::from_nanos(1));
            }
        }
    }

    /// Takes a wait back when its future is dropped; after a wait that ended, that changes nothing.
    struct Forgotten<'a> {
        waiting: &'a Waiting,
        at: Instant,
        id: u64,
    }

    impl Drop for Forgotten<'_> {
        fn drop(&mut self) {
            self.waiting.lock().by_deadline.remove(&(self.at, self.id));
        }
    }

    impl Waiting {
        fn start(clock: Clock) -> Option<Arc<Self>> {
            let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok()?;
            let waiting = Arc::new(Self { timer, clock, waiters: Mutex::default() });
            let thread = std::thread::Builder::new().name("redquorum-alarm".into());
            let serving = waiting.clone();
            thread.spawn(move || serving.serve()).ok()?;
            Some(waiting)
        }

        fn serve(&self) {
            let mut expirations = [0; 8];
            while rustix::io::retry_on_intr(|| rustix::io::read(&self.timer, &mut expirations)).is_ok() {
                let mut waiters = self.lock();
                if waiters.over {
                    return;
                }
                waiters.armed = None;
                let now = self.clock.to_machine(self.clock.now());
                while let Some(due) = waiters.by_deadline.first_entry().filter(|entry| entry.key().0 <= now) {
                    let _ = due.remove().send(());
                }
                self.arm(&mut waiters);
            }
            // Without the timer nobody would be woken: whoever waits falls back to tokio's timer.
            let mut waiters = self.lock();
            waiters.over = true;
            waiters.by_deadline.clear();
        }

        /// Sets the timer to the earliest deadline, unless it is set to an earlier one already.
        fn arm(&self, waiters: &mut Waiters) {
            let Some((first, _)) = waiters.by_deadline.keys().next().copied() else { return };
            if waiters.armed.is_none_or(|armed| first < armed) {
                self.set(first);
                waiters.armed = Some(first);
            }
        }

        /// An absolute moment of the boot clock. One that has passed fires at once; zero would switch the timer off.
        fn set(&self, at: Instant) {
            let nanos = at.as_nanos().clamp(1, i64::MAX as u64);
            let value =
                Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as _ };
            let setting = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            // The arguments are always valid, and there is nothing else for the kernel to refuse.
            let _ = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &setting);
        }

        fn lock(&self) -> MutexGuard<'_, Waiters> {
            self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
