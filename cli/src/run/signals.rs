//! The signals that the tool gets, one after the other.
//!
//! What whoever started the tool had ignored (`nohup`, a background job) stays ignored.

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::exit::Failure;

/// What is passed on to the command.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// Whether a signal asks a process to end.
pub fn ends(signal: Signal) -> bool {
    matches!(signal, Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM)
}

/// The signals that come from now on.
pub struct Signals {
    incoming: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Listens. The kernel merges what is not fetched, so that nothing piles up.
    pub fn listen() -> Result<Self, Failure> {
        let (sender, incoming) = mpsc::unbounded_channel();
        let ignored = ignored();
        let listened = PASSED_ON.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        for kind in listened.chain([Signal::SIGCHLD]) {
            let mut stream = signal(SignalKind::from_raw(kind as i32))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(kind).is_ok() {} });
        }
        Ok(Self { incoming })
    }

    /// The next one: SIGCHLD, or what is passed on.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future loses none.
    pub async fn next(&mut self) -> Signal {
        match self.incoming.recv().await {
            Some(signal) => signal,
            // The streams live as long as the runtime.
            None => std::future::pending().await,
        }
    }

    /// The next one that asks to end; the others are dropped, since there is nobody yet to pass them on to.
    pub async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ends(signal) {
                return signal;
            }
            if signal == Signal::SIGTSTP {
                super::terminal::stop_oneself();
            }
        }
    }
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as u32 - 1)
}

/// What is ignored, as one bit for each signal; nothing where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Reads a signal: `TERM`, `SIGTERM` or `15`.
pub fn parse(text: &str) -> Result<Signal, Failure> {
    let upper = text.to_uppercase();
    let name = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    let signal = text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    let signal = signal.or_else(|| name.parse().ok());
    signal.ok_or_else(|| {
        Failure::usage(format!("\"{text}\" is no signal"))
            .next("use a name such as TERM, INT or HUP, or a number")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal has a short name, a long one and a number.
    #[test]
    fn signals_are_read() {
        for text in ["TERM", "term", "SIGTERM", "15"] {
            assert_eq!(parse(text).unwrap(), Signal::SIGTERM);
        }
        assert!(parse("TERMINATE").is_err() && parse("0").is_err() && parse("").is_err());
    }
}
