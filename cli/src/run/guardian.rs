//! A second process that ends the command where the tool itself cannot: because it was killed, or stands still.
//!
//! It is told until when the lock is valid, over a pipe that closes with the tool, and waits for either: a deadline that
//! passes, or the end of the pipe. A signal that the system sends when a parent dies would need unsafe code here, and would
//! not come from a parent that stands still.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::deadlines::{Moment, now};
use crate::exit::{self, Failure};

/// How often a guardian looks whether the command has ended that it has asked to.
const LOOK: Duration = Duration::from_millis(5);

/// How long is waited for one that has nothing to do any more.
const ENDED_WITHIN: Duration = Duration::from_millis(100);

/// How long it sleeps at most: its timer stands still while the machine is suspended.
const NAP: Duration = Duration::from_secs(1);

/// The tool's way to its guardian.
pub struct Guardian {
    process: Child,
    orders: Option<ChildStdin>,
}

impl Guardian {
    /// Starts one. It is out of reach of what a terminal sends.
    pub fn start() -> std::io::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("guardian")
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let orders = process.stdin.take();
        Ok(Self { process, orders })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.process.id()).unwrap_or(i32::MAX))
    }

    /// Names the group, and how it is asked to stop.
    pub fn guard(&mut self, group: Pid, signal: Signal, grace: Duration) {
        self.order(format!("group {group} {} {}", signal as i32, grace.as_nanos()));
    }

    /// Whatever happens, the group is killed then, unless a later moment is named before.
    pub fn until(&mut self, moment: Moment) {
        self.order(format!("until {}", moment.as_nanos()));
    }

    /// There is nothing to guard any more.
    pub fn gone(&mut self) {
        self.order("gone".to_owned());
        self.orders = None;
    }

    fn order(&mut self, order: String) {
        let sent = self.orders.as_mut().map(|orders| orders.write_all(format!("{order}\n").as_bytes()));
        if !matches!(sent, Some(Ok(()))) {
            self.orders = None;
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.gone();
        // Fetched here, where it takes a millisecond: in a container the first process may be none that fetches orphans.
        let started = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && started.elapsed() < ENDED_WITHIN {
            std::thread::sleep(Duration::from_micros(250));
        }
    }
}

/// What a guardian has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    group: Option<Pid>,
    signal: Signal,
    grace: Duration,
    until: Option<Moment>,
    gone: bool,
}

impl Told {
    const NOTHING: Self =
        Self { group: None, signal: Signal::SIGTERM, grace: Duration::ZERO, until: None, gone: false };

    /// Takes one line in. What it does not understand changes nothing.
    fn take(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        let word = words.next();
        let mut number = || words.next().and_then(|number| number.parse::<u64>().ok());
        match word {
            Some("group") => {
                // Numbers below 2 name everybody, or nobody who could be too young.
                self.group =
                    number().and_then(|id| i32::try_from(id).ok()).filter(|id| *id > 1).map(Pid::from_raw);
                let signal = number().and_then(|raw| Signal::try_from(i32::try_from(raw).ok()?).ok());
                self.signal = signal.unwrap_or(Signal::SIGTERM);
                self.grace = number().map_or(Duration::ZERO, Duration::from_nanos);
            }
            Some("until") => self.until = number().map(Duration::from_nanos).or(self.until),
            Some("gone") => self.gone = true,
            _ => {}
        }
    }
}

/// Guards, until it is told that there is nothing to guard any more.
pub fn guard() -> Result<u8, Failure> {
    // Whoever ends all processes of this name means the tool, which ends its command first.
    let _ = SigSet::all().thread_block();
    let mut told = Told::NOTHING;
    let (mut line, mut bytes) = (Vec::new(), [0; 256]);
    loop {
        if let (Some(group), Some(until)) = (told.group, told.until)
            && now() >= until
        {
            say("the tool did not end its command in time; it is killed");
            let _ = killpg(group, Signal::SIGKILL);
            return Ok(exit::LOST);
        }
        let nap = told.until.map_or(NAP, |until| until.saturating_sub(now()).min(NAP));
        let nap = Timespec { tv_sec: nap.as_secs() as _, tv_nsec: nap.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&std::io::stdin(), PollFlags::IN)], Some(&nap));
        if !matches!(ready, Ok(1..)) {
            continue;
        }
        // Past the buffer of the standard library, which `poll` would know nothing of.
        let length = rustix::io::read(std::io::stdin(), &mut bytes).unwrap_or(0);
        if length == 0 {
            break;
        }
        for byte in bytes.iter().take(length) {
            match byte {
                b'\n' => told.take(&String::from_utf8_lossy(&std::mem::take(&mut line))),
                byte => line.push(*byte),
            }
        }
        if told.gone {
            return Ok(exit::OK);
        }
    }
    if let Some(group) = told.group {
        orphaned(group, &told);
    }
    Ok(exit::LOST)
}

/// The tool has gone without a word: nobody extends the lock any more.
fn orphaned(group: Pid, told: &Told) {
    if killpg(group, None).is_err() {
        return;
    }
    say("the tool was killed; its command is asked to stop");
    let _ = killpg(group, told.signal);
    let _ = killpg(group, Signal::SIGCONT);
    let asked = now() + told.grace;
    let until = told.until.map_or(asked, |until| until.min(asked));
    while now() < until && killpg(group, None).is_ok() {
        std::thread::sleep(LOOK);
    }
    let _ = killpg(group, Signal::SIGKILL);
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "redquorum: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guardian knows what it was told last, and nothing that it did not understand.
    #[test]
    fn orders_are_taken_in() {
        let mut told = Told::NOTHING;
        for line in ["group 4711 2 5000", "until 100", "until x", "nonsense", "", "until 200"] {
            told.take(line);
        }
        let expected = Told {
            group: Some(Pid::from_raw(4711)),
            signal: Signal::SIGINT,
            grace: Duration::from_nanos(5_000),
            until: Some(Duration::from_nanos(200)),
            gone: false,
        };
        assert_eq!(told, expected);
        told.take("group 1 15 0");
        assert_eq!(told.group, None, "that would be everybody");
    }
}
