//! The command's processes: started in a group of their own, passed signals, killed to the last one.
//!
//! Where the system has it (Linux), the tool adopts whatever the command leaves behind (a *subreaper*), so that a process which
//! left the group, as daemons do, is still found and ended. Elsewhere only the group is reached.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::exit::{Failure, NOT_FOUND, NOT_RUN};

/// How long killed processes may take to disappear: a kernel lets nobody go who waits for a disk.
const GONE_WITHIN: Duration = Duration::from_secs(5);

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    With(i32),
    By(Signal),
}

impl Ended {
    /// As a shell puts it.
    pub fn code(self) -> u8 {
        match self {
            Self::With(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Self::By(signal) => crate::exit::SIGNALLED.saturating_add(signal as u8),
        }
    }
}

/// What became of the command since it was looked at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Ended(Ended),
    Stopped(Signal),
}

/// The command and all that it started.
pub struct Group {
    leader: Pid,
    /// A process of the tool's own, which is not the command's.
    guardian: Option<Pid>,
    adopts: bool,
    /// Whether the leader has ended.
    pub ended: Option<Ended>,
}

/// Adopts what the command leaves behind, from now on. Whether the system can.
fn adopt() -> bool {
    #[cfg(target_os = "linux")]
    return rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok();
    #[cfg(not(target_os = "linux"))]
    return false;
}

impl Group {
    /// Starts the command. When this returns, it runs in a group of its own.
    pub fn spawn(
        command: &[OsString],
        environment: &[(&str, Option<String>)],
        guardian: Option<Pid>,
    ) -> Result<Self, Failure> {
        let Some((program, args)) = command.split_first() else {
            return Err(Failure::usage("no command is given").next("put it after `--`"));
        };
        let adopts = adopt();
        let mut starting = Command::new(program);
        starting.args(args).process_group(0);
        for (name, value) in environment {
            match value {
                Some(value) => starting.env(name, value),
                // One that comes from another lock would be taken for this one's.
                None => starting.env_remove(name),
            };
        }
        let child = starting.spawn().map_err(|error| {
            let (code, next) = match error.kind() {
                io::ErrorKind::NotFound => {
                    (NOT_FOUND, "check its name and the PATH; a script also needs its interpreter")
                }
                _ => (NOT_RUN, "check that it may be executed"),
            };
            Failure::new(code, "not_run", format!("{} cannot be run: {error}", program.to_string_lossy()))
                .next(next)
        })?;
        let leader = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        Ok(Self { leader, guardian, adopts, ended: None })
    }

    /// The number of the group.
    pub fn id(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to the whole group.
    pub fn signal(&self, signal: Signal) {
        // That nobody is left to get it is no trouble.
        let _ = killpg(self.leader, signal);
    }

    /// Asks everybody to stop. Who is stopped by job control cannot hear it, and is let go on.
    pub fn ask(&self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::SIGCONT);
    }

    /// Fetches what has happened to children, and reports what became of the command.
    pub fn reap(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        loop {
            let status = match waitpid(None, Some(flags)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return changes,
                Err(Errno::EINTR) => continue,
                Err(_) => return changes,
                Ok(status) => status,
            };
            if status.pid() == self.guardian && !matches!(status, WaitStatus::Stopped(..)) {
                self.guardian = None;
            }
            if status.pid() != Some(self.leader) {
                continue;
            }
            let ended = match status {
                WaitStatus::Exited(_, code) => Ended::With(code),
                WaitStatus::Signaled(_, signal, _) => Ended::By(signal),
                WaitStatus::Stopped(_, signal) => {
                    changes.push(Change::Stopped(signal));
                    continue;
                }
                _ => continue,
            };
            self.ended = Some(ended);
            changes.push(Change::Ended(ended));
        }
    }

    /// Whether anything of the command is left, as far as it can be seen.
    pub fn is_left(&self) -> bool {
        self.ended.is_none() || killpg(self.leader, None).is_ok() || !self.adopted().is_empty()
    }

    /// Kills everything. Whether all are gone; a process that hangs in the kernel is not waited for without end.
    ///
    /// Blocks this thread, on purpose: nothing is more urgent.
    pub fn kill(&mut self) -> bool {
        let started = Instant::now();
        loop {
            self.signal(Signal::SIGKILL);
            // What the dead leave behind comes to this process, whose children nobody else can reap: so none of these
            // numbers can have passed to a stranger.
            for pid in self.adopted() {
                let _ = kill(pid, Signal::SIGKILL);
            }
            self.reap();
            if !self.is_left() {
                return true;
            }
            if started.elapsed() > GONE_WITHIN {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The children of this process that are the command's: itself, and what it left behind.
    fn adopted(&self) -> Vec<Pid> {
        if !self.adopts {
            return Vec::new();
        }
        let own = Pid::this();
        children(own).into_iter().filter(|pid| Some(*pid) != self.guardian).collect()
    }
}

/// The children of a process.
fn children(of: Pid) -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.map(Pid::from_raw).filter(|pid| parent(*pid) == Some(of)).collect()
}

/// The parent of a process. Its own name stands in brackets and may hold anything, so what follows the last one is read.
pub fn parent(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}
