//! The command line: every command and flag, with its help. Decides nothing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::output::Colours;

/// A lock over several independent Redis-compatible servers, on the command line.
///
/// A lock is held by whoever holds it on a majority of the nodes. `run` runs a command under one, `doctor` finds what is
/// wrong with your nodes, `bench` measures them, and `watch` shows them live.
#[derive(Debug, Parser)]
#[command(name = "redquorum", version, max_term_width = 100, after_help = EXAMPLES, after_long_help = long())]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  export REDQUORUM_NODES=redis://a,redis://b,redis://c
  redquorum run nightly-report -- ./report.sh
  redquorum status nightly-report
  redquorum doctor

`redquorum --help` has the exit codes, `redquorum help COMMAND` more on each command.";

const MORE_EXAMPLES: &str = "\
Examples:
  export REDQUORUM_NODES=redis://a,redis://b,redis://c
  redquorum run nightly-report -- ./report.sh       run it unless somebody else does, for 30 s at most
  redquorum run --wait 0 --fenced job -- ./job.sh   do not wait; a fencing token in REDQUORUM_FENCING_TOKEN
  redquorum status nightly-report                   who has the lock, who waits
  redquorum nodes --json | jq '.nodes[].vote'       how the nodes are, for scripts
  redquorum doctor || exit                          is anything wrong with them?
  redquorum bench --html bench.html                 measure them, and draw it
  redquorum watch nightly-report                    see it live

Exit codes:
";

/// The long help's end: examples, and the exit codes.
fn long() -> String {
    let codes = crate::exit::CODES.iter().map(|(code, meaning)| format!("  {code:<6} {meaning}"));
    format!("{MORE_EXAMPLES}{}", codes.collect::<Vec<_>>().join("\n"))
}

/// Where the nodes are, and how to talk.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// The nodes: URLs such as redis://[user:password@]host[:port][/db], with commas between them, or one in each --nodes.
    /// A password in a flag is seen by everybody on this machine; REDQUORUM_NODES or a file keep it
    #[arg(
        short, long, global = true, env = "REDQUORUM_NODES", hide_env_values = true, value_name = "URL,…",
        action = ArgAction::Append, help_heading = "Nodes"
    )]
    pub nodes: Vec<String>,

    /// A configuration file, instead of the user's or the system's
    #[arg(long, global = true, env = "REDQUORUM_CONFIG", value_name = "FILE", help_heading = "Nodes")]
    pub config: Option<PathBuf>,

    /// What stands before every key on the servers
    #[arg(long, global = true, env = "REDQUORUM_PREFIX", value_name = "TEXT", help_heading = "Nodes")]
    pub prefix: Option<String>,

    /// The longest TTL that anybody uses on these nodes, services and this tool alike, who must all be given the same: for so
    /// long a node that lost its memory does not vote [default: the TTL]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Nodes")]
    pub restart_delay: Option<Duration>,

    /// Lets nodes vote at once that may have lost their memory. Only for nodes that were just set up and hold nothing: else
    /// one that restarts empty may give a lock to a second holder
    #[arg(long, global = true, conflicts_with = "restart_delay", help_heading = "Nodes")]
    pub no_restart_delay: bool,

    /// How long an attempt to connect may take [default: 1s]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Nodes")]
    pub connect_timeout: Option<Duration>,

    /// How long one round waits for replies [default: a fiftieth of the TTL, 10ms to 500ms]
    #[arg(long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Nodes")]
    pub reply_timeout: Option<Duration>,

    /// For machines: JSON on standard output, remarks and errors as lines of JSON on standard error
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,

    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", help_heading = "Output")]
    pub color: Colours,

    /// Says what the library does, on standard error; twice for more. RUST_LOG sets it more finely
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a command while holding a lock
    Run(Run),
    /// Shows who holds a lock, for how long, and who waits
    Status(Status),
    /// Shows how each node is: state, version, vote, round trip
    #[command(long_about = NODES_LONG)]
    Nodes,
    /// Finds what is wrong with the nodes, why it matters, and how to mend it
    Doctor(Doctor),
    /// Measures locks on these nodes
    Bench(Bench),
    /// Shows nodes and locks live, in the terminal
    Watch(Watch),
    /// Shows what a quorum lock does, on nodes in memory
    Demo {
        /// Plays on your nodes, each behind a proxy in this process that makes the faults; the servers are left alone
        #[arg(long)]
        real: bool,
    },
    /// Prints the completions for a shell
    #[command(
        after_help = "Example:\n  redquorum completions bash > ~/.local/share/bash-completion/completions/redquorum"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Prints the manual page
    #[command(after_help = "Example:\n  redquorum man > redquorum.1 && man ./redquorum.1")]
    Man,
    /// Ends the command of `run` where `run` itself cannot.
    #[command(hide = true)]
    Guardian,
}

const NODES_LONG: &str = "\
Shows how each node is: state, version, vote, round trip

The nodes are looked for in this order; the first place that names any is used:
  1. --nodes, repeated or with commas
  2. REDQUORUM_NODES, with commas or blanks
  3. the file of --config or REDQUORUM_CONFIG; else the first that exists of
     $XDG_CONFIG_HOME/redquorum/config.toml (~/.config where that is not set)
     and /etc/redquorum.toml

Such a file may say, each flag being stronger:
  nodes = [\"redis://a\", \"redis://:password@b\", \"redis://c\"]
  prefix = \"app:\"
  ttl = \"10s\"
  wait = \"30s\"
  restart-delay = \"10s\"      # or: no-restart-delay = true
  connect-timeout = \"1s\"
  reply-timeout = \"200ms\"

All clients of a lock must be given the same nodes, prefix and restart delay.";

/// Runs a command while holding a lock.
///
/// The lock is kept alive for as long as the command runs, and released after it. The command runs in a process group of
/// its own; signals that the tool gets are passed on to all of it. When the lock cannot be kept, the group is asked to stop
/// (--signal) so long before the end of the lock's validity as --grace says, and killed before that end, so that nobody acts
/// when the next holder may begin. On Linux that reaches processes that left the group, too.
///
/// The command finds the key in REDQUORUM_KEY, the TTL in milliseconds in REDQUORUM_TTL_MS, and with --fenced the fencing
/// token in REDQUORUM_FENCING_TOKEN: send that along with each write, so that the resource can refuse a late one.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
pub struct Run {
    /// The life of the key on each node, extended at a third of it: how long others wait after a crash. The restart delay of
    /// everybody on these nodes must be as long, see --restart-delay [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,

    /// How long to wait for the lock: a time, 0 for one attempt, or `forever` [default: 30s]
    #[arg(short, long, value_name = "TIME", value_parser = wait)]
    pub wait: Option<Wait>,

    /// Asks for a fencing token
    #[arg(short, long)]
    pub fenced: bool,

    /// What asks the command to stop when the lock is lost: TERM, INT, HUP, … or a number
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM")]
    pub signal: String,

    /// How long before the end of validity the command is asked to stop [default: a quarter of the TTL]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    pub grace: Option<Duration>,

    /// The longest that the command may run: then it is stopped as when the lock is lost
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub max_hold: Option<Duration>,

    /// Keeps the lock until everything that the command started has ended, too
    #[arg(long)]
    pub wait_for_all: bool,

    /// Exit code where somebody else has the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = crate::exit::HELD)]
    pub held_code: u8,

    /// Says nothing but errors
    #[arg(short, long)]
    pub quiet: bool,

    /// The lock's name
    pub key: String,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  redquorum run backup -- tar czf /backup/data.tgz /data
  redquorum run --wait 0 cron:billing -- ./billing.sh          # not twice at a time
  redquorum run --wait forever leader -- ./serve.sh            # stand by
  redquorum run --fenced job -- sh -c 'curl -H \"X-Fence: $REDQUORUM_FENCING_TOKEN\" …'

Exit codes: the command's own, 128+n where signal n ended it, and of the tool:
  75 held by another   69 no quorum   76 lost   64 usage   126, 127 not run";

/// Shows who holds a lock, for how long, and who waits.
#[derive(Args, Clone, Debug)]
pub struct Status {
    /// Exits with 1 where the lock is held, with 0 where it is free
    #[arg(long)]
    pub free: bool,

    /// The lock's name
    pub key: String,
}

/// Finds what is wrong with the nodes, as somebody would who has run many: for each fault why it matters, and the exact command
/// that mends it. Changes nothing but a key that names each node, as every client does, and a lock of its own that it takes
/// back.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes:\n  0 nothing found   1 something to look at   2 something that endangers locks"
)]
pub struct Doctor {
    /// The TTL of your locks: round trips and timeouts are judged by it [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub ttl: Option<Duration>,

    /// For how long the clocks of the nodes are compared
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    pub clocks: Duration,

    /// Lists what is looked for, and ends
    #[arg(long)]
    pub list: bool,
}

/// Measures locks on these nodes: acquiring and releasing, contention, hand-over, and the same with one node slowed down by a
/// proxy in this process. Uses keys of its own, which it takes back; the servers are left alone.
///
/// Takes some seconds with nodes that are near. The part with the slow node ends after 5 s, or after twice the time of the same
/// part without it, and says how many locks it measured where they are fewer.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Examples:\n  redquorum bench\n  redquorum bench --count 5000 --contenders 16 --html bench.html\n  redquorum bench --json > bench.json"
)]
pub struct Bench {
    /// How many times a lock is acquired and released, for each part
    #[arg(short, long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    pub count: u32,

    /// How many contend for one lock
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub contenders: u32,

    /// How much later a slowed node answers
    #[arg(long, default_value = "50ms", value_name = "TIME", value_parser = duration)]
    pub slow: Duration,

    /// Draws it: one page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Shows nodes and locks live, in the terminal: nodes with state, version, round trip and vote; locks with holder, remaining
/// TTL and line; events as they come. `q` ends it.
#[derive(Args, Clone, Debug)]
pub struct Watch {
    /// How often to look
    #[arg(long, default_value = "500ms", value_name = "TIME", value_parser = duration)]
    pub every: Duration,

    /// The locks to watch
    pub keys: Vec<String>,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    No,
    AtMost(Duration),
    Forever,
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "forever" => Ok(Wait::Forever),
        text => duration(text).map(|time| if time.is_zero() { Wait::No } else { Wait::AtMost(time) }),
    }
}

/// Reads a time: a number with ms, s, m, h or d; of seconds where it has none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit.trim() {
        "us" | "µs" => 0.000_001,
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        other => return Err(format!("\"{other}\" is no unit of time: use ms, s, m, h or d")),
    };
    let number: f64 = number.parse().map_err(|_| format!("\"{text}\" is no time: use 500ms, 10s or 1.5m"))?;
    let micros = (number * seconds * 1e6).round();
    // A hundred years are more than any server takes, and far from where the arithmetic would end.
    if micros > 3_155_760_000.0 * 1e6 {
        return Err(format!("\"{text}\" is longer than a hundred years"));
    }
    Ok(Duration::from_micros(micros as u64))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The command line contradicts itself nowhere.
    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// A time is read with its unit, and as seconds without.
    #[test]
    fn times_are_read() {
        for (text, millis) in
            [("500ms", 500), ("10", 10_000), ("1.5s", 1_500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5 parsecs", "-1s", "1e300", "9999999999d", "1.2.3"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(wait("0"), Ok(Wait::No));
        assert_eq!(wait("forever"), Ok(Wait::Forever));
    }
}
