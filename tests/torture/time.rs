//! What time it truly is, for all processes of a storm.
//!
//! All clients run on one machine, whose clock may stand still together with them, as that of a virtual machine that is paused.
//! The clocks of the servers, which libfaketime moves, go on meanwhile. So does the true time: it is this machine's clock and
//! all that it has missed. A file has that; it changes only while every client is stopped.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds on the clock that all processes of this storm share, suspend and standstills included.
pub type Nanos = u64;

/// The file, and the clock that it corrects.
#[derive(Clone)]
pub struct Time(Arc<File>);

/// What the machine's clock has missed, and the last time that it stood still.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Standstill {
    missed: Nanos,
    /// When the clients went on.
    resumed: Nanos,
    /// By when they have noticed, as is promised.
    noticed: Nanos,
}

impl Time {
    /// That of the storm in this folder.
    pub fn of(folder: &Path) -> Self {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(folder.join("time"));
        Self(Arc::new(file.expect("a file for the time")))
    }

    /// Now, for every process alike.
    pub fn now(&self) -> Nanos {
        loop {
            let missed = self.read().missed;
            let time = clock_gettime(ClockId::Boottime);
            let shown = u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("after the start");
            // This process may have been stopped in between.
            if self.read().missed == missed {
                return shown + missed;
            }
        }
    }

    /// All that the clock has missed.
    pub fn missed(&self) -> Duration {
        Duration::from_nanos(self.read().missed)
    }

    /// The machine's clock stood still for so long, and all clients with it; they are let go now, and have so much time to notice.
    pub fn stood_still(&self, by: Duration, notice: Duration) {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).expect("a short time");
        let resumed = self.now() + nanos(by);
        let missed = self.read().missed + nanos(by);
        let bytes = [missed, resumed, resumed + nanos(notice)].map(u64::to_le_bytes).concat();
        self.0.write_all_at(&bytes, 0).expect("the time is written");
    }

    /// Whether a client need not know yet that its clock stood still: until then it may believe for too long that it holds.
    pub fn is_in_doubt(&self) -> bool {
        self.now() < self.read().noticed
    }

    /// Whether what was begun at that moment was under way when the clock stood still, and may have been measured wrongly.
    pub fn measured_wrongly(&self, begun: Nanos) -> bool {
        begun < self.read().resumed && self.is_in_doubt()
    }

    fn read(&self) -> Standstill {
        let mut bytes = [0; 24];
        // Nothing has been written before the first time.
        if self.0.read_exact_at(&mut bytes, 0).is_err() {
            return Standstill::default();
        }
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Standstill { missed: number(0), resumed: number(8), noticed: number(16) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The true time goes on by what the clock missed, and what was under way is in doubt until it must have been noticed.
    #[test]
    fn a_standstill_is_part_of_the_true_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let (time, other) = (Time::of(folder.path()), Time::of(folder.path()));
        let before = time.now();
        assert!(!time.is_in_doubt() && !time.measured_wrongly(before));

        time.stood_still(Duration::from_secs(60), Duration::from_secs(30));

        assert_eq!(other.missed(), Duration::from_secs(60));
        assert!(other.now() >= before + 60_000_000_000);
        assert!(
            other.is_in_doubt() && other.measured_wrongly(before) && !other.measured_wrongly(other.now())
        );
        time.stood_still(Duration::from_secs(60), Duration::ZERO);
        assert!(!other.is_in_doubt() && !other.measured_wrongly(before), "what was to be noticed has been");
    }
}
