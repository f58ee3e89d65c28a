//! What time it is, and waiting for a moment: always both from the same clock.
//!
//! | clock | now | sleeping |
//! | --- | --- | --- |
//! | System | Linux: `CLOCK_BOOTTIME`, which goes on while the machine is suspended; other Unix: `CLOCK_MONOTONIC`, which does so on macOS; elsewhere: `std::time::Instant` | a timer thread of the process, looking again at the clock at least every 250 ms, or five seconds for those who wait in the queue |
//! | Tokio | tokio's clock | tokio's timer; for tests with a paused clock |
//! | Manual | what the test says | until the test says so |
//!
//! Never the wall clock, which administrators and NTP step (rule 1): it only suggests fencing tokens, and when to look at
//! the nodes.
//!
//! The machine's clock may stand still with the machine: a virtual machine that is paused, a process that is restored from
//! a snapshot. The nodes' clocks show that, and then this one is [put forward](Clock::put_forward).

mod timer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::protocol::time::Instant;

/// How long a sleep on the system clock may rely on its timer alone, which stands still in suspend.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// One client's clock.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The machine's steady clock, suspend included where the platform has such a clock; and the client's runtime.
    System(Steady),
    /// Tokio's clock, counted from this moment.
    #[cfg_attr(not(feature = "testing"), allow(dead_code, reason = "chosen by the testing builder only"))]
    Tokio(tokio::time::Instant),
    /// A clock that a test moves by hand.
    #[cfg(feature = "testing")]
    Manual(ManualClock),
}

/// The machine's steady clock, and by how much it is put forward for a client and all its clones.
#[derive(Clone, Debug)]
pub(crate) struct Steady {
    runtime: Handle,
    forward: Arc<Forward>,
}

#[derive(Debug)]
struct Forward {
    nanos: AtomicU64,
    times: AtomicU64,
    changed: watch::Sender<()>,
}

impl Steady {
    fn now(&self) -> Instant {
        system_now().after(self.forward())
    }

    fn forward(&self) -> Duration {
        Duration::from_nanos(self.forward.nanos.load(Ordering::Acquire))
    }
}

impl Clock {
    /// The machine's clock, as it is.
    pub(crate) fn system(runtime: Handle) -> Self {
        let forward = Arc::new(Forward {
            nanos: AtomicU64::new(0),
            times: AtomicU64::new(0),
            changed: watch::Sender::new(()),
        });
        Self::System(Steady { runtime, forward })
    }

    /// The clock stood still for so long, and shows so much more from now on: what began before ends that much earlier. The
    /// clocks of tests do not stand still.
    pub(crate) fn put_forward(&self, by: Duration) {
        if let Self::System(Steady { forward, .. }) = self {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            let sum = |before: u64| Some(before.saturating_add(nanos));
            let _ = forward.nanos.fetch_update(Ordering::AcqRel, Ordering::Acquire, sum);
            // Afterwards: who reads this number, and then the clock, reads a moment that is at least as far forward.
            forward.times.fetch_add(1, Ordering::AcqRel);
            forward.changed.send_replace(());
        }
    }

    /// What all processes of the machine call this moment, whether or not they noticed that the clock stood still.
    pub(crate) fn to_machine(&self, moment: Instant) -> Instant {
        match self {
            Self::System(steady) => moment.before(steady.forward()),
            _ => moment,
        }
    }

    /// What this client calls that moment.
    pub(crate) fn of_machine(&self, moment: Instant) -> Instant {
        match self {
            Self::System(steady) => moment.after(steady.forward()),
            _ => moment,
        }
    }

    /// How often the clock has been put forward.
    pub(crate) fn times_put_forward(&self) -> u64 {
        match self {
            Self::System(steady) => steady.forward.times.load(Ordering::Acquire),
            _ => 0,
        }
    }

    /// Changes whenever the clock is put forward, which it may be.
    pub(crate) fn corrections(&self) -> Option<watch::Receiver<()>> {
        match self {
            Self::System(steady) => Some(steady.forward.changed.subscribe()),
            _ => None,
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> Instant {
        match self {
            Self::System(steady) => steady.now(),
            // Tokio's clock may be read outside a runtime; one second ahead of the origin, so that "before" has room.
            Self::Tokio(origin) => Instant::from_nanos(1_000_000_000).after(origin.elapsed()),
            #[cfg(feature = "testing")]
            Self::Manual(manual) => manual.now(),
        }
    }

    /// Like [`Clock::sleep_until`] where thousands may sleep and none needs to notice a suspend at once: looks at the
    /// clock every five seconds at least.
    pub(crate) async fn doze_until(&self, deadline: Instant) {
        self.wait_until(deadline, Duration::from_secs(5)).await;
    }

    /// Waits until `deadline`. Late by a few milliseconds, as timers are; never early. Dropping it waits no longer.
    pub(crate) async fn sleep_until(&self, deadline: Instant) {
        self.wait_until(deadline, LOOK_AGAIN).await;
    }

    async fn wait_until(&self, deadline: Instant, look_again: Duration) {
        loop {
            let left = deadline.since(self.now());
            if left.is_zero() {
                return;
            }
            match self {
                Self::System(steady) => sleep_on(&steady.runtime, left.min(look_again)).await,
                Self::Tokio(_) => tokio::time::sleep(left).await,
                #[cfg(feature = "testing")]
                Self::Manual(manual) => manual.reached(deadline).await,
            }
        }
    }
}

impl Clock {
    /// The time of day in microseconds since 1970, for fencing tokens alone: it may be wrong, and it may step. The clocks of
    /// tests show their own time, as the nodes in memory do.
    pub(crate) fn wall_micros(&self) -> u64 {
        match self {
            Self::System(_) => {
                let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                since.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
            }
            _ => self.now().as_nanos() / 1_000,
        }
    }

    /// A pause for looking again, which goes by in real time on every clock but a paused one of tokio's.
    pub(crate) async fn pause(&self, duration: Duration) {
        match self {
            Self::System(steady) => sleep_on(&steady.runtime, duration).await,
            _ => tokio::time::sleep(duration).await,
        }
    }
}

impl Clock {
    /// What tells this clock from those of other machines, and of other starts of this one; `None` where nothing does. Two
    /// clocks of the same identity show the same time.
    pub(crate) fn identity(&self) -> Option<String> {
        match self {
            Self::System(_) => system_identity(),
            Self::Tokio(origin) => Some(format!("tokio {origin:?}")),
            #[cfg(feature = "testing")]
            Self::Manual(manual) => Some(format!("manual {:p}", std::sync::Arc::as_ptr(&manual.now))),
        }
    }
}

/// The start of the machine, and the namespace of its clocks: containers may shift them.
#[cfg(target_os = "linux")]
fn system_identity() -> Option<String> {
    let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Kernels without such namespaces have one clock for all.
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    Some(format!("{} {}", start.trim(), namespace.display()))
}

#[cfg(not(target_os = "linux"))]
fn system_identity() -> Option<String> {
    None
}

/// A sleep for a future that any executor may poll. In the client's own runtime it is tokio's, which costs less: while a runtime
/// polls a future, its timers are there.
async fn sleep_on(runtime: &Handle, duration: Duration) {
    let is_inside = || Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
    let mut left = duration;
    if is_inside() {
        let began = std::time::Instant::now();
        let mut sleep = std::pin::pin!(tokio::time::sleep(duration));
        // Polled elsewhere since, and perhaps after the runtime's end, it goes on with the other timer.
        let ended = std::future::poll_fn(|cx| match is_inside() {
            true => sleep.as_mut().poll(cx).map(|()| true),
            false => Poll::Ready(false),
        });
        if ended.await {
            return;
        }
        left = duration.saturating_sub(began.elapsed());
    }
    match timer::sleep(left) {
        Some(sleep) => sleep.await,
        None => in_runtime(runtime, left).await,
    }
}

/// Tokio's sleep, if the process has no thread for a timer of its own.
fn in_runtime(runtime: &Handle, duration: Duration) -> tokio::time::Sleep {
    let _inside = runtime.enter();
    tokio::time::sleep(duration)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system_now() -> Instant {
    unix_now(rustix::time::ClockId::Boottime)
}

#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
fn system_now() -> Instant {
    unix_now(rustix::time::ClockId::Monotonic)
}

#[cfg(unix)]
fn unix_now(clock: rustix::time::ClockId) -> Instant {
    let time = rustix::time::clock_gettime(clock);
    let nanos = (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64);
    Instant::from_nanos(nanos)
}

#[cfg(not(unix))]
fn system_now() -> Instant {
    use std::sync::LazyLock;
    static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(1_000_000_000).after(ORIGIN.elapsed())
}

/// A clock that stands still until a test moves it: for suspend, steps and exact deadlines.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use redquorum::testing::{ManualClock, MemoryCluster};
///
/// let clock = ManualClock::new();
/// let redlock = MemoryCluster::with_clock(3, clock.clone()).builder().build().await?;
/// let guard = redlock.lock("order:1").ttl(Duration::from_secs(5)).await?;
/// let before = guard.remaining();
///
/// clock.advance(Duration::from_secs(1));
///
/// assert_eq!(before - guard.remaining(), Duration::from_secs(1));
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "testing")]
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: std::sync::Arc<tokio::sync::watch::Sender<Instant>>,
}

#[cfg(feature = "testing")]
impl ManualClock {
    /// A clock that shows one hour after its origin.
    pub fn new() -> Self {
        let start = Instant::from_nanos(3_600_000_000_000);
        Self { now: std::sync::Arc::new(tokio::sync::watch::Sender::new(start)) }
    }

    /// Moves the clock forward, as time does, and as a machine that wakes from suspend sees it. Everything that waits
    /// for a moment up to then goes on.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = now.after(by));
    }

    fn now(&self) -> Instant {
        *self.now.borrow()
    }

    async fn reached(&self, deadline: Instant) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.now.subscribe().wait_for(|now| *now >= deadline).await;
    }
}

#[cfg(feature = "testing")]
impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that stood still is put forward for all its clones, and goes on in step with the machine's.
    #[tokio::test]
    async fn put_forward_is_for_all_clones() {
        let clock = Clock::system(Handle::current());
        let clone = clock.clone();
        let (before, hour) = (clone.now(), Duration::from_secs(3_600));
        let mut corrections = clone.corrections().expect("a clock of the machine's");

        clock.put_forward(hour);

        let after = clone.now();
        assert!(after >= before.after(hour) && after < before.after(2 * hour));
        assert!(corrections.has_changed().expect("the clock lives"));
        corrections.borrow_and_update();
        assert_eq!(clone.to_machine(clone.of_machine(before)), before);
        assert_eq!(clone.of_machine(before), before.after(hour));
        clock.put_forward(Duration::MAX);
        assert_eq!(clone.now(), Instant::FAR_FUTURE, "nothing wraps");
    }
}
