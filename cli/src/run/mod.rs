//! `redquorum run`: a command under a lock.
//!
//! From the call to the exit code, in the order in which it happens. While the command runs, [`watch`] has the say.

mod deadlines;
mod group;
mod guardian;
mod signals;
mod terminal;
mod watch;

use std::future::{Future, IntoFuture};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use redquorum::{AcquireError, LockGuard, NodeVote, Redlock};
use serde_json::{Value, json};

use crate::args::{Common, Run, Wait};
use crate::exit::{self, Failure};
use crate::output::{Output, millis, time};
use crate::places::Places;
use deadlines::Deadlines;
use group::Group;
use guardian::Guardian;
use signals::Signals;
use terminal::Terminal;

/// The library's default, which flags, deadlines and the environment of the command go by.
const TTL: Duration = Duration::from_secs(10);

/// How long the tool waits at its end for what is still to be released; the TTL frees the rest.
const CLOSING: Duration = Duration::from_secs(1);

/// After so long a wait it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

pub fn run(common: &Common, args: &Run, output: &Output) -> Result<u8, Failure> {
    let signal = signals::parse(&args.signal)?;
    let places = Places::find(common)?;
    let ttl = args.ttl.or(places.ttl).unwrap_or(TTL);
    let deadlines = Deadlines::new(ttl, args.grace)?;
    // It comes up while the nodes are asked.
    let guardian = Guardian::start();
    let job = Job { args, output, places, ttl, deadlines, signal };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(job.run(guardian))
}

pub fn guardian() -> Result<u8, Failure> {
    guardian::guard()
}

/// One call of `run`.
struct Job<'a> {
    args: &'a Run,
    output: &'a Output,
    places: Places,
    ttl: Duration,
    deadlines: Deadlines,
    signal: Signal,
}

/// What ends before the command has begun.
enum Stopped {
    By(Signal),
    Failed(Failure),
}

impl Job<'_> {
    async fn run(&self, guardian: std::io::Result<Guardian>) -> Result<u8, Failure> {
        let began = Instant::now();
        let mut signals = Signals::listen()?;
        let builder = self.places.builder().ttl(self.ttl);
        let redlock = match until_signal(&mut signals, builder.build()).await {
            Ok(redlock) => redlock,
            Err(stopped) => return self.stopped(stopped),
        };
        let guard = match until_signal(&mut signals, self.acquire(&redlock)).await {
            Ok(guard) => guard,
            Err(stopped) => {
                // What was set meanwhile is taken back.
                redlock.close(CLOSING).await;
                return self.stopped(stopped);
            }
        };
        let token = guard.fencing_token().map(u64::from);
        self.event(
            "acquired",
            None,
            json!({ "key": self.args.key, "fencing_token": token,
            "validity_ms": millis(guard.remaining()), "after_ms": millis(began.elapsed()) }),
        );
        let code = self.hold(guard, guardian, &mut signals).await;
        tokio::select! {
            biased;
            _ = redlock.close(CLOSING) => {}
            // The release is on its way. Whoever asks twice does not want to wait for its answers.
            _ = signals.next_end() => {}
        }
        code
    }

    /// The lock. Says what it waits for, where that takes long.
    async fn acquire(&self, redlock: &Redlock) -> Result<LockGuard, AcquireError> {
        let mut request = redlock.lock(&self.args.key).keep_alive();
        request = match (self.args.wait, self.places.wait) {
            (Some(Wait::No), _) => request.without_waiting(),
            (Some(Wait::Forever), _) => request.wait_forever(),
            (Some(Wait::AtMost(limit)), _) | (None, Some(limit)) => request.wait(limit),
            (None, None) => request,
        };
        if let Some(longest) = self.args.max_hold {
            request = request.max_hold(longest);
        }
        if self.args.fenced {
            request = request.fenced();
        }
        let mut acquiring = request.into_future();
        tokio::select! {
            biased;
            acquired = &mut acquiring => return acquired,
            () = tokio::time::sleep(PATIENCE) => {}
        }
        let told = async {
            if let Ok(found) = redlock.inspect(&self.args.key).await {
                let young = redlock.nodes().iter().any(|node| matches!(node.vote, NodeVote::TooYoung { .. }));
                let holder = match found.holder() {
                    Some(holder) => format!("held by {holder}"),
                    None if young => "nodes that may have lost their memory do not vote yet".to_owned(),
                    None => "no majority yet".to_owned(),
                };
                let (key, line) = (&self.args.key, found.waiting());
                let text = format!("waiting for lock \"{key}\": {holder}, {line} in line");
                self.event(
                    "waiting",
                    Some(&text),
                    json!({ "key": key, "holder": found.holder(), "waiting": line }),
                );
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            acquired = acquiring => acquired,
            () = told => Err(AcquireError::Closed),
        }
    }

    /// Runs the command, and releases the lock when nothing of it may act any more.
    async fn hold(
        &self,
        guard: LockGuard,
        guardian: std::io::Result<Guardian>,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        let mut guardian = match guardian {
            Ok(guardian) => Some(guardian),
            Err(error) => {
                let text = format!(
                    "no guardian ({error}): should this process be killed, its command goes on without the lock"
                );
                self.event("unguarded", Some(&text), Value::Null);
                None
            }
        };
        let environment = [
            ("REDQUORUM_KEY", Some(self.args.key.clone())),
            ("REDQUORUM_TTL_MS", Some(self.ttl.as_millis().to_string())),
            ("REDQUORUM_FENCING_TOKEN", guard.fencing_token().map(|token| token.to_string())),
        ];
        let mut terminal = Terminal::open();
        let mut group =
            match Group::spawn(&self.args.command, &environment, guardian.as_ref().map(Guardian::pid)) {
                Ok(group) => group,
                Err(failure) => {
                    // Nothing ran, so that how the release ends is nobody's worry.
                    let _ = guard.release().await;
                    return Err(failure);
                }
            };
        if let Some(terminal) = &mut terminal {
            terminal.lend_if_whole(group.id());
        }
        if let Some(guardian) = &mut guardian {
            guardian.guard(group.id(), self.signal, self.deadlines.grace - self.deadlines.margin);
        }
        let watched =
            watch::Watch::new(self, &guard, &mut group, &mut guardian, &mut terminal).run(signals).await;
        drop(terminal);
        let ended = group.ended.map_or(exit::SYSTEM, group::Ended::code);
        match watched {
            watch::End::Finished => self.release(guard, ended, &group, signals).await,
            watch::End::Lost(failure) => {
                // Takes back what is left on a minority of the nodes; the lock is over whatever they answer.
                drop(guard);
                Err(failure)
            }
        }
    }

    async fn release(
        &self,
        guard: LockGuard,
        ended: u8,
        group: &Group,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        if group.is_left() {
            let text = "the command has ended, but processes that it started go on, without the lock (--wait-for-all keeps it)";
            self.event("left", Some(text), Value::Null);
        }
        let released = tokio::select! {
            biased;
            released = guard.release() => released,
            // It has been handed to the nodes, and the command has ended: its code stands.
            _ = signals.next_end() => Ok(()),
        };
        self.event("released", None, json!({ "code": ended, "released": released.is_ok() }));
        let Err(error) = released else { return Ok(ended) };
        use redquorum::ReleaseError::{Expired, TakenOver};
        match error {
            Expired { .. } | TakenOver { .. } => {
                let failure = Failure::from(error);
                let what = format!(
                    "the command ended with {ended}, but not under the lock to its end: {}",
                    failure.what
                );
                Err(Failure { what, ..failure }
                    .next("check what the command did; find out who deletes keys on the nodes"))
            }
            _ => {
                let text = format!("{error}; the TTL frees it within {}", time(self.ttl));
                self.event("unconfirmed", Some(&text), Value::Null);
                Ok(ended)
            }
        }
    }

    fn stopped(&self, stopped: Stopped) -> Result<u8, Failure> {
        match stopped {
            Stopped::By(signal) => {
                self.event("stopped", None, json!({ "signal": signal.as_str() }));
                Ok(exit::SIGNALLED.saturating_add(signal as u8))
            }
            Stopped::Failed(failure) if failure.kind == "held" => {
                Err(Failure { code: self.args.held_code, ..failure })
            }
            Stopped::Failed(failure) => Err(failure),
        }
    }

    /// Tells machines what happened, and people where it is worth a line.
    fn event(&self, name: &'static str, text: Option<&str>, more: Value) {
        match text {
            Some(text) if self.output.json || !self.args.quiet => self.output.remark(name, text, more),
            None if self.output.json => self.output.remark(name, name, more),
            _ => {}
        }
    }
}

/// Does something unless a signal asks to end before it is done.
async fn until_signal<T, E: Into<Failure>>(
    signals: &mut Signals,
    future: impl Future<Output = Result<T, E>>,
) -> Result<T, Stopped> {
    tokio::select! {
        biased;
        signal = signals.next_end() => Err(Stopped::By(signal)),
        done = future => done.map_err(|error| Stopped::Failed(error.into())),
    }
}
