//! A command that runs under a lock, from its start to its end, or to the end of the lock.
//!
//! The command is asked to stop and killed by what is known here of the lock's validity, on this machine's own clock: no node
//! has to be heard for that. What is known is never later than the truth: an extension may have made it longer since.

use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use redquorum::{LockGuard, Lost};
use serde_json::json;

use super::Job;
use super::deadlines::{Moment, now};
use super::group::{Change, Group};
use super::guardian::Guardian;
use super::signals::Signals;
use super::terminal::{Terminal, stop_oneself};
use crate::exit::{self, Failure};
use crate::output::{millis, time};

/// How it ended.
pub enum End {
    /// The command ended under the lock.
    Finished,
    /// The lock ended first.
    Lost(Failure),
}

/// The watch over a command.
pub struct Watch<'a> {
    job: &'a Job<'a>,
    lock: &'a LockGuard,
    group: &'a mut Group,
    guardian: &'a mut Option<Guardian>,
    terminal: &'a mut Option<Terminal>,
    /// The lock is valid until then at least.
    until: Moment,
    stopping: Option<Stopping>,
}

/// The command has been asked to stop.
struct Stopping {
    why: String,
    kill_at: Moment,
}

impl<'a> Watch<'a> {
    pub fn new(
        job: &'a Job<'a>,
        lock: &'a LockGuard,
        group: &'a mut Group,
        guardian: &'a mut Option<Guardian>,
        terminal: &'a mut Option<Terminal>,
    ) -> Self {
        let mut watch = Self { job, lock, group, guardian, terminal, until: Duration::ZERO, stopping: None };
        watch.look();
        watch
    }

    pub async fn run(mut self, signals: &mut Signals) -> End {
        let lost = self.lock.lost();
        let mut lost = pin!(lost);
        let mut told_of_loss = false;
        loop {
            if self.is_over() {
                return self.over();
            }
            let pause = self.next_deadline().saturating_sub(now());
            tokio::select! {
                biased;
                reason = &mut lost, if !told_of_loss => {
                    told_of_loss = true;
                    if let Some(end) = self.lost(reason) {
                        return end;
                    }
                }
                () = tokio::time::sleep(pause) => if let Some(end) = self.deadline() {
                    return end;
                },
                signal = signals.next() => self.signal(signal),
            }
        }
    }

    /// Learns of extensions: read before the clock would be too late by what lies between the two.
    fn look(&mut self) {
        let before = now();
        let until = before + self.lock.remaining();
        if until > self.until && until > before {
            self.until = until;
            if let Some(guardian) = self.guardian {
                guardian.until(self.job.deadlines.overdue_at(until));
            }
        }
    }

    /// Whether there is nothing more to watch over.
    fn is_over(&self) -> bool {
        let wait_for_all = self.job.args.wait_for_all || self.stopping.is_some();
        self.group.ended.is_some() && !(wait_for_all && self.group.is_left())
    }

    fn next_deadline(&self) -> Moment {
        match &self.stopping {
            Some(stopping) => stopping.kill_at,
            None => self.job.deadlines.ask_at(self.until),
        }
    }

    fn deadline(&mut self) -> Option<End> {
        // Before the look, which would move what the guardian goes by.
        if let Some(end) = self.overslept() {
            return Some(end);
        }
        self.look();
        if now() < self.next_deadline() {
            return None;
        }
        if self.stopping.is_some() {
            return Some(self.kill());
        }
        let limited = self.job.args.max_hold.is_some();
        let why = if limited {
            "it cannot be extended, or was held for as long as allowed"
        } else {
            "it cannot be extended"
        };
        self.ask(why.to_owned());
        None
    }

    fn lost(&mut self, reason: Lost) -> Option<End> {
        match reason {
            // The end has come while this process stood still, or the machine was suspended: no time is left to ask.
            Lost::Expired | Lost::MaxHoldReached => {
                self.stopping.get_or_insert(Stopping { why: reason.to_string(), kill_at: Duration::ZERO });
                Some(self.kill())
            }
            _ => {
                if self.stopping.is_none() {
                    self.ask(reason.to_string());
                }
                None
            }
        }
    }

    /// Asks the command to stop.
    fn ask(&mut self, why: String) {
        let signal = self.job.signal;
        let kill_at = self.job.deadlines.kill_at(now(), self.until);
        let left = time(self.until.saturating_sub(now()));
        let text = format!(
            "lock \"{}\" is being lost: {why}; the command is asked to stop ({signal}) and killed in {}",
            self.job.args.key,
            time(kill_at.saturating_sub(now())),
        );
        self.job.event("stopping", Some(&text), json!({ "reason": why, "validity_left": left }));
        self.stopping = Some(Stopping { why, kill_at });
        self.group.ask(signal);
    }

    /// The command has ended by itself, as it seems.
    fn over(&mut self) -> End {
        self.overslept().unwrap_or_else(|| self.end())
    }

    /// Where this process stood still for so long that its guardian had to act, by what it had been told last, the command
    /// has not ended well, and something of it may be left. So it is over even where extensions went on meanwhile.
    fn overslept(&mut self) -> Option<End> {
        if self.stopping.is_some() || now() < self.job.deadlines.overdue_at(self.until) {
            return None;
        }
        let why = "this process stood still, and could not keep it alive".to_owned();
        self.stopping = Some(Stopping { why, kill_at: Duration::ZERO });
        Some(self.kill())
    }

    fn kill(&mut self) -> End {
        let all = self.group.kill();
        if !all {
            let text = "a killed process hangs in the kernel, and may act when it wakes up";
            self.job.event("hanging", Some(text), json!({}));
        }
        self.end()
    }

    fn end(&mut self) -> End {
        if let Some(guardian) = self.guardian {
            guardian.gone();
        }
        let Some(Stopping { why, .. }) = self.stopping.take() else { return End::Finished };
        let left = self.until.saturating_sub(now());
        self.job.event("gone", None, json!({ "validity_left_ms": millis(left) }));
        let key = &self.job.args.key;
        let when = match left.is_zero() {
            true => "after the validity was over".to_owned(),
            false => format!("{} before the end of validity", time(left)),
        };
        let what = format!("lock \"{key}\" was lost: {why}. The command was gone {when}");
        End::Lost(
            Failure::new(exit::LOST, "lost", what)
                .next("look after the nodes with `redquorum doctor`; a longer --ttl outlives longer outages"),
        )
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCHLD => {
                for change in self.group.reap() {
                    if let Change::Stopped(by) = change {
                        self.command_stopped(by);
                    }
                }
            }
            signal => self.group.signal(signal),
        }
    }

    /// The command was stopped by job control. It does nothing now, but its time goes on.
    fn command_stopped(&mut self, by: Signal) {
        let wants_terminal = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        let group = self.group.id();
        // It may have asked in the moment before it was lent the terminal, and its stop is heard of after that.
        if wants_terminal && self.terminal.as_mut().is_some_and(|terminal| terminal.serves(group)) {
            self.group.signal(Signal::SIGCONT);
        } else if wants_terminal || by == Signal::SIGTSTP {
            self.pause(by);
        }
        // Else somebody stopped the command alone, and will let it go on. The lock is kept meanwhile.
    }

    /// Stops with the command, so that the shell gets its terminal back. Nobody extends the lock meanwhile, and the guardian
    /// kills the command when the validity ends: it must not go on after that.
    fn pause(&mut self, by: Signal) {
        let lent = self.terminal.as_mut().is_some_and(|terminal| {
            let lent = terminal.is_lent();
            terminal.take_back();
            lent
        });
        let stopped = stop_oneself();
        if lent && let Some(terminal) = &mut self.terminal {
            terminal.lend(self.group.id());
        }
        // Without a shell to wait for, a command that wants a terminal which is not there would be stopped again at once.
        if self.lock.is_valid() && (stopped || by == Signal::SIGTSTP) {
            self.group.signal(Signal::SIGCONT);
        }
    }
}
