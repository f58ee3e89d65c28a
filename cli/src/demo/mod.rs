//! Six short acts of a quorum lock, each of which checks what it shows.
//!
//! On nodes in memory, or on real ones, each behind a proxy that makes the faults. Knows nothing of the tool but how it puts
//! words.

mod nodes;
mod proxy;
mod stage;

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::time::{Duration, Instant};

use redquorum::{BuildError, LockGuard, Outcome, Redlock, RedlockBuilder, ReleaseError, Report};
use tokio::time::sleep;

use crate::words::{count, time};
use nodes::Nodes;
use stage::{Colour, Stage, show};

/// The default for the default TTL of 10 s, set here since one act uses a shorter TTL.
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

/// How long nodes that are just being started may take.
const PATIENCE: Duration = Duration::from_secs(60);

type Anything = Box<dyn Error>;

/// Plays, on nodes in memory where no address is given. Returns 0 where everything was as it should be, 1 where it was not,
/// and 2 where the demo could not begin.
pub async fn play(addresses: &[String]) -> u8 {
    let began = Instant::now();
    let mut demo = match Demo::prepare(addresses).await {
        Ok(demo) => demo,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "The demo could not begin: {error}");
            return 2;
        }
    };
    if let Err(error) = demo.play().await {
        demo.stage.check(false, format!("came to its end: {error}"));
    }
    demo.end(began.elapsed()).await
}

/// Two clients of the same nodes, and power over the nodes.
struct Demo {
    stage: Stage,
    nodes: Nodes,
    /// Stands before each key, so that nobody's data on real servers is touched.
    prefix: String,
    anna: Redlock,
    ben: Redlock,
}

impl Demo {
    async fn prepare(addresses: &[String]) -> Result<Self, Anything> {
        let stage = Stage::new();
        show!("{}", stage.paint(Colour::Bold, "redquorum: a lock held by a majority of independent nodes"));
        let nodes = match addresses {
            [] => Nodes::in_memory(),
            addresses => Nodes::real(addresses).await?,
        };
        if nodes.len() < 3 {
            return Err("a demo of lost nodes needs three nodes at least".into());
        }
        let prefix = format!("redquorum-demo:{:08x}:", RandomState::new().hash_one(0) as u32);
        let builder = nodes.builder().prefix(&prefix).reply_timeout(REPLY_TIMEOUT);
        let anna = connect(&stage, builder.clone()).await?;
        let ben = connect(&stage, builder).await?;
        Ok(Self { stage, nodes, prefix, anna, ben })
    }

    async fn play(&mut self) -> Result<(), Anything> {
        self.introduce();
        self.uncontended().await?;
        self.refused().await?;
        self.one_hangs().await?;
        self.lost_replies().await?;
        self.no_quorum().await?;
        self.outlived().await
    }

    fn introduce(&self) {
        let Self { stage, nodes, .. } = self;
        let quorum = nodes.quorum();
        if nodes.are_in_memory() {
            stage.say(format!(
                "{} in the memory of this process, each answering after a millisecond; any {quorum} of them decide.",
                count(nodes.len(), "node"),

            ));
            stage.remark(
                "These nodes are fresh: empty, and as old as this demo. A real node that comes back empty has \
                 forgotten the locks it granted; the restart delay keeps it from voting until they have ended. \
                 The demo is switched to real nodes by --real, and `make demo` by NODES=\"redis://… redis://…\".",
            );
        } else {
            stage.say(format!("{}, any {quorum} of which decide:", count(nodes.len(), "node")));
            for (index, line) in nodes.describe().iter().enumerate() {
                show!("   n{:<2} {line}", index + 1);
            }
            stage.remark(format!(
                "Faults are made by the proxies, in this process; the servers are left alone, and keys begin with \
                 {}. Fresh or not, nodes are taken as they are: the restart delay, which keeps a node from voting that \
                 may have forgotten a lock, is off.",
                self.prefix
            ));
        }
        stage.say("Anna and Ben are two clients, with connections of their own.");
    }

    async fn uncontended(&mut self) -> Result<(), Anything> {
        let Self { stage, nodes, anna, .. } = self;
        stage.act("Nobody else wants it");
        let asked = Instant::now();
        let guard = anna.try_acquire("invoice").await?;
        stage.event(
            asked.elapsed(),
            "Anna holds \"invoice\", after one command to each node. What each answered:",
        );
        let report = guard.report();
        stage.votes(&report);
        if report.granted() < nodes.len() {
            stage.remark("Nobody waits for an answer that cannot change the outcome any more.");
        }
        stage.check(
            report.granted() >= nodes.quorum(),
            format!("{} of {} granted, {} needed", report.granted(), nodes.len(), report.needed()),
        );
        let left = guard.remaining();
        stage.check(
            left > Duration::from_millis(9_000) && left <= Duration::from_millis(9_898),
            format!(
                "she may act for another {}: ten seconds less the way, and 102 ms for clocks",
                time(left)
            ),
        );

        let key = guard.key().to_vec();
        let asked = Instant::now();
        guard.release().await?;
        stage.event(asked.elapsed(), "Anna has released it.");
        let gone = within(Duration::from_secs(1), async || Ok(nodes.count(&key).await? == 0)).await?;
        stage.check(gone.is_some(), "no node has the key any more");
        Ok(())
    }

    async fn refused(&mut self) -> Result<(), Anything> {
        let Self { stage, anna, ben, .. } = self;
        stage.act("A second client is refused, and told why");
        let guard = anna.try_acquire("invoice").await?;

        let asked = Instant::now();
        let refusal = ben.try_acquire("invoice").await;
        stage.event(asked.elapsed(), "Anna holds \"invoice\", and Ben asked for it. What he is told:");
        let Err(refusal) = refusal else {
            stage.check(false, "Ben was refused");
            return Ok(());
        };
        stage.quote(&refusal);
        stage.check(
            refusal.is_contention(),
            "the error says that somebody has it, and not that nodes are out of order",
        );
        let holders = refusal.report().map(named_holders).unwrap_or_default();
        if holders.is_empty() {
            stage.remark("These servers do not say who has a key: Redis does from 7.0 on.");
        } else {
            let all_anna = holders.iter().all(|holder| guard_is(&guard, holder));
            stage.check(all_anna, "it names the holder as the holder's own guard does");
        }

        stage.remark(
            "Ben waits in the queue for it. Nobody asks again and again: whoever releases wakes the first.",
        );
        let waiting = async {
            let guard = ben.lock("invoice").wait(Duration::from_secs(5)).await;
            (guard, Instant::now())
        };
        let releasing = async {
            sleep(Duration::from_millis(300)).await;
            let released = Instant::now();
            (guard.release().await, released)
        };
        let ((guard, granted), (released, at)) = tokio::join!(waiting, releasing);
        released?;
        let guard = guard?;
        let gap = granted.saturating_duration_since(at);
        stage.event(gap, "Ben has it, counted from Anna's release, which came after 300 ms.");
        stage.check(gap < Duration::from_millis(500), "it was handed over to him");
        guard.release().await?;
        Ok(())
    }

    async fn one_hangs(&mut self) -> Result<(), Anything> {
        let Self { stage, nodes, anna, .. } = self;
        stage.act("One node hangs, and nothing is slower");
        let hanging = nodes.last(1);
        let healthy = cycles(anna).await?;
        stage.say(format!("{CYCLES} times acquired and released, all nodes well: {healthy}."));

        hanging.iter().for_each(|node| node.hang());
        let hung = cycles(anna).await?;
        stage.say(format!("The same with n{} hanging: {hung}.", nodes.len()));
        // On a busy machine the healthy ones are slow, too.
        let bound = REPLY_TIMEOUT.max(healthy.worst * 2);
        stage.check(hung.worst < bound, "no acquire waited for the reply timeout of 200 ms");

        hanging.iter().for_each(|node| node.heal());
        let healed = Instant::now();
        let used = until_all_are_asked(anna, Duration::from_secs(5)).await?;
        stage.check(
            used,
            format!("n{} goes on, and is asked again after {}", nodes.len(), time(healed.elapsed())),
        );
        // Its last answers may still be on their way.
        sleep(Duration::from_millis(100)).await;
        let key = format!("{}invoice", self.prefix);
        let clean = within(Duration::from_secs(15), async || {
            Ok(anna.pending_cleanups() == 0 && nodes.count(key.as_bytes()).await? == 0)
        });
        stage.check(clean.await?.is_some(), "nothing of what it was sent meanwhile stays behind");
        Ok(())
    }

    async fn lost_replies(&mut self) -> Result<(), Anything> {
        let Self { stage, nodes, anna, .. } = self;
        let lossy = nodes.len() - nodes.quorum();
        stage.act(&format!("The replies of {} get lost, and nothing stays behind", count(lossy, "node")));
        nodes.last(lossy).iter().for_each(|node| node.lose_replies());
        let asked = Instant::now();
        let guard = anna.try_acquire("invoice").await?;
        stage.event(asked.elapsed(), "Anna holds \"invoice\". What each node answered:");
        stage.votes(&guard.report());
        let key = guard.key().to_vec();
        let everywhere =
            within(Duration::from_secs(1), async || Ok(nodes.count(&key).await? == nodes.len())).await?;
        stage.check(
            everywhere.is_some(),
            format!("the last {lossy} did as they were told: they have the key, and Anna cannot know"),
        );

        // The client gives a connection up that owes an answer for a second.
        sleep(Duration::from_millis(1_300)).await;
        let released = Instant::now();
        guard.release().await?;
        stage.event(released.elapsed(), "After 1.3 s of work, Anna has released it: a majority confirmed.");
        let owed = within(Duration::from_secs(2), async || Ok(anna.pending_cleanups() == lossy)).await?;
        let left = nodes.look(&key).await?;
        let longest = left.iter().flatten().map(|entry| entry.remaining).max().unwrap_or_default();
        stage.check(
            owed.is_some() && left.iter().flatten().count() == lossy,
            format!(
                "{} still {} the key, and would keep it for {}; the client owes each a deletion",
                count(lossy, "node"),
                if lossy == 1 { "has" } else { "have" },
                time(longest),
            ),
        );

        nodes.last(lossy).iter().for_each(|node| node.heal());
        let settled = within(Duration::from_secs(5), async || {
            Ok(anna.pending_cleanups() == 0 && nodes.count(&key).await? == 0)
        });
        let after = settled.await?;
        stage.check(
            after.is_some(),
            format!(
                "{} after replies came through again, the keys are deleted and no debt is left",
                or_never(after)
            ),
        );
        Ok(())
    }

    async fn no_quorum(&mut self) -> Result<(), Anything> {
        let Self { stage, nodes, anna, .. } = self;
        let down = nodes.len() - nodes.quorum() + 1;
        stage.act(&format!("{} are down, and the error says so", count(down, "node")));
        nodes.last(down).iter().for_each(|node| node.go_down());
        sleep(Duration::from_millis(100)).await;
        let asked = Instant::now();
        let refusal = anna.try_acquire("invoice").await;
        stage.event(asked.elapsed(), "Anna asked for \"invoice\". What she is told:");
        let Err(refusal) = refusal else {
            stage.check(false, "Anna was refused");
            return Ok(());
        };
        stage.quote(&refusal);
        stage.check(
            !refusal.is_contention(),
            "the error says that nodes are out of order, and not that somebody has it",
        );

        nodes.last(down).iter().for_each(|node| node.heal());
        let back = within(Duration::from_secs(5), async || Ok(acquires(anna).await)).await?;
        stage.check(
            back.is_some(),
            format!("{} after the nodes came back, Anna can lock again", or_never(back)),
        );
        until_all_are_asked(anna, Duration::from_secs(5)).await?;
        Ok(())
    }

    async fn outlived(&mut self) -> Result<(), Anything> {
        const TTL: Duration = Duration::from_secs(1);
        let Self { stage, nodes, anna, ben, .. } = self;
        stage.act("A worker outlives its lock");
        let asked = Instant::now();
        let guard = anna.lock("invoice").ttl(TTL).await?;
        let lost = guard.lost();
        let ends = asked.elapsed() + guard.remaining();
        stage.event(asked.elapsed(), "Anna holds \"invoice\" for one second, and begins to work. Ben waits.");

        let ben = ben.clone();
        let waiting = tokio::spawn(async move { (ben.acquire("invoice").await, asked.elapsed()) });
        let reason = lost.await;
        let told = asked.elapsed();
        stage.event(
            told,
            format!("Anna's lost() resolves: {reason}. But she is deep in her work, and goes on."),
        );

        let (next, since) = waiting.await?;
        let next = next?;
        stage.event(since, "Ben holds \"invoice\": Anna's keys expired, and he asked again.");
        stage.check(
            ends < since && !guard.is_valid(),
            format!(
                "her lock had been over for {} before anybody else had it",
                time(since.saturating_sub(ends))
            ),
        );
        // The alarm is set to four milliseconds before the end; how soon a thread runs then is up to the machine.
        stage.check(
            told < since + Duration::from_millis(250),
            match told.checked_sub(since) {
                None => "and she knew by then".to_owned(),
                Some(late) => format!("and she knew {} later, this machine being busy", time(late)),
            },
        );
        let key = next.key().to_vec();
        // Stragglers of his round may still set their key.
        sleep(Duration::from_millis(100)).await;
        let before = owners(nodes, &key).await?;
        let carriers = before.iter().flatten().filter(|owner| guard_is(&next, owner)).count();
        stage.check(
            carriers >= nodes.quorum(),
            format!("the key is his on {carriers} of {} nodes", nodes.len()),
        );

        sleep(Duration::from_millis(100)).await;
        let released = guard.release().await;
        stage.event(asked.elapsed(), "Anna is done, and releases, late. What she is told:");
        match &released {
            Ok(()) => stage.quote("released"),
            Err(error) => stage.quote(error),
        }
        stage.check(
            matches!(released, Err(ReleaseError::TakenOver { .. } | ReleaseError::Expired { .. })),
            "her release says that it came too late",
        );
        sleep(Duration::from_millis(100)).await;
        let after = owners(nodes, &key).await?;
        stage.check(
            next.is_valid() && before == after,
            "the keys are Ben's as before: her release touched none of them",
        );
        next.release().await?;
        Ok(())
    }

    async fn end(self, took: Duration) -> u8 {
        let Self { stage, nodes, prefix, anna, ben } = self;
        let clean = anna.close(Duration::from_secs(1)).await & ben.close(Duration::from_secs(1)).await;
        // What names a node stays there for good, and this prefix is not used again.
        nodes.remove(&format!("{prefix}redquorum:node")).await;
        show!();
        if stage.failed().is_empty() && clean {
            let verdict = format!("All was as it should be, in {}.", time(took));
            show!("{}", stage.paint(Colour::Green, &verdict));
            return 0;
        }
        show!("{}", stage.paint(Colour::Red, "Not as it should be:"));
        stage.failed().iter().for_each(|failed| show!("   {failed}"));
        if !clean {
            show!("   closing: something was left open");
        }
        1
    }
}

/// Builds a client, and waits for nodes that are just being started.
async fn connect(stage: &Stage, builder: RedlockBuilder) -> Result<Redlock, BuildError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match builder.clone().build().await {
            Err(error @ BuildError::NotConnected { .. }) if began.elapsed() < PATIENCE => {
                if !std::mem::replace(&mut told, true) {
                    stage.remark(format!("Waiting for the nodes, {} at most: {error}", time(PATIENCE)));
                }
                sleep(Duration::from_millis(500)).await;
            }
            built => return built,
        }
    }
}

/// How long acquires took.
struct Cycles {
    median: Duration,
    worst: Duration,
}

impl std::fmt::Display for Cycles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an acquire took {} (median), {} at most", time(self.median), time(self.worst))
    }
}

/// How often [`cycles`] acquires.
const CYCLES: usize = 100;

/// Acquires and releases, again and again.
async fn cycles(client: &Redlock) -> Result<Cycles, Anything> {
    let mut took = Vec::with_capacity(CYCLES);
    for _ in 0..CYCLES {
        let asked = Instant::now();
        // A short TTL: where a connection is lost meanwhile, a debt may have to wait for the key's expiry.
        let guard = client.lock("invoice").ttl(Duration::from_secs(2)).without_waiting().await?;
        took.push(asked.elapsed());
        guard.release().await?;
        // So that a node that hangs meanwhile does so for long enough to be noticed.
        sleep(Duration::from_millis(5)).await;
    }
    took.sort();
    Ok(Cycles { median: took[CYCLES / 2], worst: took[CYCLES - 1] })
}

/// Whether the client can lock at present.
async fn acquires(client: &Redlock) -> bool {
    match client.try_acquire("invoice").await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    }
}

/// Locks again and again until no node is left out; whether that came about within `limit`.
async fn until_all_are_asked(client: &Redlock, limit: Duration) -> Result<bool, Anything> {
    let all_asked = within(limit, async || {
        let guard = client.lock("invoice").await?;
        let left_out = guard.report().nodes().iter().any(|node| matches!(node.outcome, Outcome::NotSent(_)));
        guard.release().await?;
        Ok(!left_out)
    });
    Ok(all_asked.await?.is_some())
}

/// Looks every few milliseconds until something is so. How long that took; `None` where it was longer than `limit`.
async fn within(
    limit: Duration,
    mut is_so: impl AsyncFnMut() -> Result<bool, Anything>,
) -> Result<Option<Duration>, Anything> {
    let began = Instant::now();
    loop {
        if is_so().await? {
            return Ok(Some(began.elapsed()));
        }
        if began.elapsed() >= limit {
            return Ok(None);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// How long something took that should have come about.
fn or_never(took: Option<Duration>) -> String {
    took.map_or_else(|| "never".to_owned(), time)
}

/// Whose the key is on each node.
async fn owners(nodes: &Nodes, key: &[u8]) -> Result<Vec<Option<String>>, Anything> {
    let entries = nodes.look(key).await?;
    Ok(entries.into_iter().map(|entry| entry.map(|entry| entry.owner)).collect())
}

/// The holders that nodes named.
fn named_holders(report: &Report) -> Vec<&str> {
    let named = report.nodes().iter().filter_map(|node| match &node.outcome {
        Outcome::Held { holder, .. } => holder.as_deref(),
        _ => None,
    });
    named.collect()
}

/// Whether a holder as a node named it is this guard, as it shows itself.
fn guard_is(guard: &LockGuard, holder: &str) -> bool {
    format!("{guard:?}").contains(holder)
}
