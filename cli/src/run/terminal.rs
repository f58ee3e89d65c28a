//! Whose the terminal is.
//!
//! The command runs in a process group of its own, and only one group at a time may read from the terminal and get its
//! Ctrl-C. So the terminal is lent to the command: at once where the tool has it whole, on demand where it stands in a pipeline,
//! whose other programs would lose it. It is taken back in the state in which it was, whatever the command did to it.

use std::fs::File;
use std::io::{self, IsTerminal};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getsid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal that the tool was started from.
pub struct Terminal {
    tty: File,
    state: Option<Termios>,
    own: rustix::process::Pid,
    lent: bool,
}

impl Terminal {
    /// `None` where there is none.
    pub fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, state: None, own: rustix::process::getpgrp(), lent: false })
    }

    /// Lends it to the command where nobody else can be using it.
    pub fn lend_if_whole(&mut self, group: Pid) {
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            self.lend(group);
        }
    }

    /// Lends it to the command; false where it was lent already, or is another group's.
    pub fn lend(&mut self, group: Pid) -> bool {
        if self.lent || tcgetpgrp(&self.tty).ok() != Some(self.own) {
            return false;
        }
        let Some(group) = rustix::process::Pid::from_raw(group.as_raw()) else { return false };
        self.state = tcgetattr(&self.tty).ok();
        self.lent = self.give(group);
        self.lent
    }

    /// Takes it back, where the command had it.
    pub fn take_back(&mut self) {
        if !std::mem::take(&mut self.lent) {
            return;
        }
        self.give(self.own);
        if let Some(state) = &self.state {
            quietly(|| tcsetattr(&self.tty, OptionalActions::Drain, state).is_ok());
        }
    }

    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// Whether this group may use it now, or may from now on.
    pub fn serves(&mut self, group: Pid) -> bool {
        let foreground = tcgetpgrp(&self.tty).ok().map(|pid| pid.as_raw_nonzero().get());
        (self.lent && foreground == Some(group.as_raw())) || self.lend(group)
    }

    fn give(&self, group: rustix::process::Pid) -> bool {
        quietly(|| tcsetpgrp(&self.tty, group).is_ok())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Does something that only the group in the foreground may do: others are stopped by SIGTTOU, unless they block it.
fn quietly(act: impl FnOnce() -> bool) -> bool {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    let Ok(before) = mask.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK) else { return false };
    let done = act();
    let _ = before.thread_set_mask();
    done
}

/// Stops the tool itself, as Ctrl-Z does, where somebody is there to let it go on: a shell in the same session, outside of
/// the tool's group. Returns whether it was stopped, when it goes on.
pub fn stop_oneself() -> bool {
    let (own, session) = (getpgrp(), session_of(Pid::this()));
    let mut above = super::group::parent(Pid::this());
    while let Some(pid) = above
        && getpgid(Some(pid)) == Ok(own)
    {
        above = super::group::parent(pid);
    }
    // The whole job: a pipeline stops together.
    above.is_some_and(|pid| session_of(pid) == session) && kill(Pid::from_raw(0), Signal::SIGSTOP).is_ok()
}

fn session_of(pid: Pid) -> Option<Pid> {
    getsid(Some(pid)).ok()
}
