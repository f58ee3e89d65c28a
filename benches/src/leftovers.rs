//! Keys that stay behind on the nodes: after a release, a refusal, a dropped attempt, a node that hung for a while.
//!
//! What is left makes the next holder wait for the rest of the TTL, or takes a node's vote away from it.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::bars::N;
use crate::locker::Locker;
use crate::nodes::Nodes;
use crate::results::Leftover;
use crate::settings::Settings;

/// Once everything is healthy: far more than an undo takes, far less than a TTL.
fn grace(settings: &Settings) -> Duration {
    Duration::from_millis(if settings.quick { 700 } else { 2_000 })
}

/// For how long a node hangs: longer than a timeout of any client.
const HANGING: Duration = Duration::from_millis(1_200);

/// Tries everything with one client, that is connected to four healthy nodes and the one that will hang.
pub async fn measure<L: Locker>(
    nodes: &Nodes,
    who: &str,
    locker: &L,
    once: &L,
    settings: &Settings,
) -> Vec<Leftover> {
    let attempts = if settings.quick { 10 } else { 100 };
    let leftover = |after: &str, attempts: usize, keys: usize| Leftover {
        who: who.to_owned(),
        after: after.to_owned(),
        attempts,
        keys,
    };
    let name = |situation: &str, number: usize| format!("left:{situation}:{who}:{number}");
    let mut all = Vec::new();

    for number in 0..attempts {
        if let Some(held) = locker.acquire(&name("released", number)).await {
            locker.release(held).await;
        }
    }
    all.push(leftover("a release", attempts, left(nodes, "left:released", settings).await));

    for number in 0..attempts {
        let key = name("refused", number);
        // With and without what the clients put before the name.
        for key in [&key, &format!("distributed-lock:{key}")] {
            for server in &nodes.healthy()[..N / 2 + 1] {
                server.command(&["SET", key, STRANGER, "PX", "60000"]);
            }
        }
    }
    let mut asking = JoinSet::new();
    for number in 0..attempts {
        let (once, key) = (once.clone(), name("refused", number));
        asking.spawn(async move { once.acquire(&key).await.is_some() });
    }
    asking.join_all().await;
    all.push(leftover("a refusal by three of five", attempts, left(nodes, "left:refused", settings).await));

    if L::DROPPABLE {
        for number in 0..attempts {
            let key = name("dropped", number);
            // Dropped after one to four looks at it: sent, with no answer, or with a few.
            if let Some(Some(held)) = polled(locker.acquire(&key), 1 + number % 4).await {
                locker.release(held).await;
            }
        }
        all.push(leftover("a dropped attempt", attempts, left(nodes, "left:dropped", settings).await));
    } else {
        all.push(leftover("a dropped attempt", 0, 0));
    }

    nodes.freeze();
    let mut cycles = JoinSet::new();
    for number in 0..attempts {
        let (locker, key) = (locker.clone(), name("hung", number));
        cycles.spawn(async move {
            if let Some(held) = locker.acquire(&key).await {
                locker.release(held).await;
            }
        });
    }
    tokio::time::sleep(HANGING).await;
    nodes.thaw();
    cycles.join_all().await;
    all.push(leftover(
        "acquire and release while a node hung",
        attempts,
        left(nodes, "left:hung", settings).await,
    ));
    all
}

const STRANGER: &str = "stranger";

/// The keys with this in their name that are not the stranger's, once everything had time to settle.
async fn left(nodes: &Nodes, name: &str, settings: &Settings) -> usize {
    tokio::time::sleep(grace(settings)).await;
    let asked = nodes.healthy()[..N - 1].iter().chain([nodes.frozen()]);
    // Values are any bytes: some clients' are no text.
    let stranger = redis::Value::BulkString(STRANGER.into());
    let ours = |server: &harness::Server| {
        let keys = server.keys().into_iter().filter(|key| key.contains(name));
        keys.filter(|key| ![&stranger, &redis::Value::Nil].contains(&&server.command(&["GET", key]))).count()
    };
    asked.map(ours).sum()
}

/// Polls a future so many times, as often as it asks for it, and drops it then.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
