//! Fencing tokens on real servers: they rise, whatever clocks show and whatever nodes forget.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clients::{SOON, TTL, builder, client, lock_keys, ms};
use harness::{Cluster, Proxy, Server, eventually};
use redquorum::{
    AcquireError, BuildError, ExtendError, FencingToken, InvalidRequest, LockGuard, Outcome, Redlock,
    ResumeError,
};

const YEAR: i64 = 365 * 86_400 * 1_000_000;

/// Close to 2^53.
const END: u64 = 9_000_000_000_000_000;

const COUNTER: &str = "{k}:redquorum:fence";

async fn take(redlock: &Redlock, key: &str) -> (LockGuard, FencingToken) {
    let guard = redlock.lock(key).fenced().await.expect("a quorum grants");
    let token = guard.fencing_token().expect("a fenced lock has a token");
    (guard, token)
}

/// Takes the lock, lets go of it, and tells the token.
async fn token(redlock: &Redlock, key: &str) -> FencingToken {
    let (guard, token) = take(redlock, key).await;
    guard.release().await.expect("a quorum confirms");
    token
}

fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_micros() as u64
}

/// The counter of `k` on a server, and how long it is kept.
fn counter(server: &Server) -> Option<(u64, Duration)> {
    let text = server.get(COUNTER)?;
    let number = text.split(' ').next().and_then(|number| number.parse().ok()).expect("a number first");
    // It may expire between the two.
    Some((number, server.pttl(COUNTER)?))
}

/// Law: over many holders of several clients, some of which wait in the queue and some of which are killed in the middle, no token is
/// as small as one handed out before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_from_holder_to_holder() {
    let cluster = Cluster::start(5);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let redlock = client(cluster.urls()).await;
        let seen = seen.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..60 {
                if round % 7 == number {
                    let _ = tokio::time::timeout(ms(1), redlock.lock("k").fenced()).await;
                }
                let (guard, token) = take(&redlock, "k").await;
                seen.lock().unwrap().push(token);
                guard.release().await.expect("a quorum confirms");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 240);
    assert!(seen.is_sorted_by(|earlier, later| earlier < later), "{seen:?}");
}

/// Law: tokens rise while the nodes lose their memory one after the other, each of them for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_while_nodes_are_wiped_in_turn() {
    let cluster = Cluster::start(3);
    let clients = [client(cluster.urls()).await, client(cluster.urls()).await];
    let mut last = FencingToken::new(0);
    for round in 0..30 {
        // The lock itself is free meanwhile: this is about the counters.
        cluster[round % 3].command(&["FLUSHALL"]);
        for redlock in &clients {
            let next = token(redlock, "k").await;
            assert!(next > last, "round {round}: {next} after {last}");
            last = next;
        }
    }
}

/// Law: tokens rise while nodes are away in turn, so that their counters fall behind; whoever grants is raised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_while_nodes_are_away_in_turn() {
    let cluster = Cluster::start(3);
    // From the second holder on, all clocks are behind, so that only counters can tell.
    let right = client(cluster.urls()).await;
    let proxies = cluster.proxies();
    let behind = builder(proxies.iter().map(Proxy::url)).wall_clock_off(-YEAR).build().await.expect("nodes");
    let mut last = token(&right, "k").await;
    for round in 0..6 {
        // Cut off, so that it does not catch up later on what was sent meanwhile.
        let away = &proxies[round % 3];
        away.refuse();
        away.reset();
        let is_away = |votes: &[Outcome]| votes.iter().any(|vote| matches!(vote, Outcome::NotSent(_)));
        clients::until_votes(&behind, is_away).await;
        for _ in 0..3 {
            let next = token(&behind, "k").await;
            assert!(next > last, "round {round}: {next} after {last}");
            last = next;
        }
        away.accept();
        clients::all_vote(&behind).await;
    }
}

/// Law: a client whose clock is ten years ahead moves tokens by ten seconds, and one whose clock is behind not at all; tokens
/// rise all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_moves_tokens_by_ten_seconds() {
    let cluster = Cluster::start(3);
    let right = client(cluster.urls()).await;
    let ahead = builder(cluster.urls()).wall_clock_off(10 * YEAR).build().await.expect("nodes");
    let behind = builder(cluster.urls()).wall_clock_off(-10 * YEAR).build().await.expect("nodes");

    let mut last = token(&right, "k").await;
    assert!(last.as_u64().abs_diff(now_micros()) < 1_000_000, "{last}");
    for _ in 0..5 {
        for redlock in [&ahead, &right, &behind] {
            let next = token(redlock, "k").await;
            assert!(next > last, "{next} after {last}");
            last = next;
            assert!(next.as_u64() < now_micros() + 10_000_000 + 1_000, "{next} at {}", now_micros());
        }
    }
}

/// Law: close to 2^53 there is an error that says so, from each node and as a whole, and nothing of the attempt is left; the same
/// lock can still be had without a token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_at_their_end_are_an_error() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let set = |text: String| cluster.iter().for_each(|server| drop(server.command(&["SET", COUNTER, &text])));
    let owner = "0123456789abcdef0123456789abcdef";

    for text in [format!("{} {owner}", END - 1), "no counter".to_owned()] {
        set(text);
        let refused = redlock.lock("k").fenced().without_waiting().await;
        let Err(AcquireError::TokensExhausted { key, report }) = refused else { panic!("{refused:?}") };
        assert!(key == "k" && report.granted() == 0, "{report}");
        let spent = |outcome: &Outcome| matches!(outcome, Outcome::Refused(why) if why.contains("counter"));
        assert!(clients::count(&report, spent) >= 2, "{report}");
        eventually(SOON, "nothing is left", || cluster.iter().all(|server| !server.exists("k"))).await;
    }
    // Waiting does not help, so nobody does; in line neither.
    let holder = redlock.try_acquire("k").await.expect("without a token");
    let waits = tokio::spawn(redlock.lock("k").fenced().wait_forever().into_future());
    tokio::time::sleep(ms(50)).await;
    holder.release().await.expect("a quorum confirms");
    for waited in [waits.await.expect("no panic"), redlock.lock("k").fenced().wait_forever().await] {
        assert!(matches!(waited, Err(AcquireError::TokensExhausted { .. })), "{waited:?}");
    }

    redlock.try_acquire("k").await.expect("without a token").release().await.expect("a quorum confirms");
    set(format!("{} {owner}", END - 2));
    assert_eq!(token(&redlock, "k").await, FencingToken::new(END - 1), "the last there is");
}

/// Law: one node's counter, whatever number it is set to, is one vote less. Tokens go on, and no other node is lifted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_nodes_number_spends_no_tokens() {
    let cluster = Cluster::start(5);
    let redlock = client(cluster.urls()).await;
    let mut last = token(&redlock, "k").await;
    let owner = "0123456789abcdef0123456789abcdef";
    // Each digit that a number may begin with, from an hour ahead to the end.
    for number in [last.as_u64() + 3_600_000_000, 5_000_000_000_000_000, END - 4, END - 1, END, u64::MAX] {
        cluster[2].command(&["SET", COUNTER, &format!("{number} {owner}")]);
        for _ in 0..3 {
            let next = token(&redlock, "k").await;
            assert!(
                next > last && next.as_u64() < last.as_u64() + 1_000_000_000,
                "{next} after {last}, {number}"
            );
            last = next;
        }
        for (_, server) in cluster.iter().enumerate().filter(|(index, _)| *index != 2) {
            let counter = server.get(COUNTER).expect("a counter");
            let stands: u64 = counter.split(' ').next().and_then(|text| text.parse().ok()).expect("a number");
            assert!(stands <= last.as_u64(), "lifted to {stands} by {number}");
        }
    }

    // With the others away that make a quorum without it, it is said why there is none.
    cluster[0].kill9();
    cluster[1].kill9();
    cluster[2].command(&["SET", COUNTER, &format!("{} {owner}", END - 4)]);
    let refused = redlock.lock("k").fenced().without_waiting().await;
    let Err(AcquireError::NoQuorum { report, .. }) = refused else { panic!("{refused:?}") };
    let told = |outcome: &Outcome| matches!(outcome, Outcome::NonVoting(why) if why.contains("counter"));
    assert_eq!(clients::count(&report, told), 1, "{report}");
}

/// Law: parts with a token that no lock can have are refused, and nothing is lifted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_with_a_forged_token_are_refused() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let guard = redlock.lock("k").fenced().await.expect("free");
    let token = guard.fencing_token().expect("fenced");
    let parts = serde_json::to_string(&guard.into_parts().await.expect("portable")).expect("text");
    let forged = parts.replace(&token.to_string(), &(END - 4).to_string());
    assert_ne!(parts, forged);

    let refused = redlock.resume(serde_json::from_str(&forged).expect("parts")).await;
    assert!(matches!(refused, Err(ResumeError::Invalid(InvalidRequest::MalformedParts))), "{refused:?}");
    let guard = redlock.resume(serde_json::from_str(&parts).expect("parts")).await.expect("still held");
    assert_eq!(guard.fencing_token(), Some(token));
}

/// Law: what stands in a counter's place, of whatever type, says nothing about the lock: no fenced lock can be had, which is
/// said, and one that is held stays so for its validity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_counter_is_no_holder() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    for foreign in [&["SET", COUNTER, "no counter"][..], &["RPUSH", COUNTER, "no counter"]] {
        let replace = || {
            for server in cluster.iter() {
                server.command(&["DEL", COUNTER]);
                server.command(foreign);
            }
        };
        replace();
        let refused = redlock.lock("k").fenced().wait(SOON).await;
        assert!(matches!(refused, Err(AcquireError::TokensExhausted { .. })), "{foreign:?}: {refused:?}");
        cluster.iter().for_each(|server| drop(server.command(&["DEL", COUNTER])));

        let (mut guard, _) = take(&redlock, "k").await;
        replace();
        let refused = guard.extend(TTL).await;
        assert!(matches!(refused, Err(ExtendError::Unconfirmed { .. })), "{foreign:?}: {refused:?}");
        assert!(guard.is_valid());
        guard.release().await.expect("a quorum confirms");
    }
}

/// Law: a lock that goes on in another client goes on with its own counters, which the prefix names: another client's would
/// stand in for none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_resumed_under_its_own_prefix() {
    let cluster = Cluster::start(3);
    let here = builder(cluster.urls()).prefix("app:").build().await.expect("nodes");
    for prefix in ["", "app", "app:k", "b:"] {
        let there = builder(cluster.urls()).prefix(prefix).build().await.expect("nodes");
        let parts = take(&here, "k").await.0.into_parts().await.expect("held");
        let refused = there.resume(parts.clone()).await;
        assert!(matches!(refused, Err(ResumeError::Invalid(_))), "{prefix}: {refused:?}");
        here.resume(parts).await.expect("still held").release().await.expect("a quorum confirms");
    }
    let strays = |server: &Server| server.keys().into_iter().find(|key| key.starts_with('{'));
    assert_eq!(cluster.iter().find_map(strays), None);
}

/// Law: a counter is kept for the retention beyond the node's time and the time that it denotes, whichever is later; without
/// it, tokens rise by the clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_kept_for_their_retention() {
    let cluster = Cluster::start(3);
    let week = client(cluster.urls()).await;
    let short = builder(cluster.urls()).ttl(ms(500)).max_ttl(ms(500)).reply_timeout(ms(100));
    let short = short.fencing_retention(ms(600)).build().await.expect("nodes");
    let ahead = builder(cluster.urls()).wall_clock_off(YEAR).build().await.expect("nodes");
    let day = Duration::from_secs(86_400);

    token(&week, "k").await;
    let life = cluster.iter().filter_map(counter).map(|(_, life)| life).max().expect("a counter");
    assert!(life > 7 * day - ms(5_000) && life <= 7 * day, "{life:?}");
    token(&ahead, "k").await;
    // Nothing of what these two sent is on its way any more: it would bring counters back.
    assert!(week.close(SOON).await && ahead.close(SOON).await, "all of it is answered");
    let life = cluster.iter().filter_map(counter).map(|(_, life)| life).max().expect("a counter");
    assert!(life > 7 * day + ms(5_000) && life <= 7 * day + ms(10_000), "{life:?}, 10 s ahead");

    cluster.iter().for_each(|server| drop(server.command(&["DEL", COUNTER])));
    let first = token(&short, "k").await;
    eventually(SOON, "the counters expire", || cluster.iter().all(|server| counter(server).is_none())).await;
    assert!(token(&short, "k").await > first);
}

/// Law: extensions keep the counter for as long as the lock is held, by hand and kept alive, and bring it back where it was
/// lost; with the lock's key, or without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_carry_the_counter_along() {
    let cluster = Cluster::start(3);
    let ttl = ms(600);
    let make = || builder(cluster.urls()).ttl(ttl).max_ttl(ttl).reply_timeout(ms(100));
    let redlock = make().fencing_retention(ms(700)).build().await.expect("nodes");
    let everywhere = |token: FencingToken| {
        let stands = |server: &Server| counter(server).is_some_and(|(number, _)| number >= token.as_u64());
        cluster.iter().all(stands)
    };

    let (mut guard, first) = take(&redlock, "k").await;
    cluster[0].command(&["DEL", COUNTER]);
    cluster[1].command(&["DEL", "k", COUNTER]);
    // An extension ends with the second answer; a node that answers later is healed by the next.
    let started = std::time::Instant::now();
    while !everywhere(first) {
        assert!(started.elapsed() < SOON, "the counters are back");
        guard.extend(ttl).await.expect("two nodes confirm");
        tokio::time::sleep(ms(5)).await;
    }
    assert_eq!(guard.fencing_token(), Some(first));
    guard.release().await.expect("a quorum confirms");

    // More than one, so that they go together.
    let kept = [redlock.lock("k").fenced().keep_alive(), redlock.lock("plain").keep_alive()];
    let [kept, plain] = kept.map(|request| async { request.await.expect("a quorum grants") });
    let (kept, plain) = (kept.await, plain.await);
    let second = kept.fencing_token().expect("a fenced lock has a token");
    assert!(second > first && plain.fencing_token().is_none());
    cluster[2].command(&["DEL", COUNTER]);
    tokio::time::sleep(3 * ttl).await;
    assert!(kept.is_valid() && plain.is_valid() && everywhere(second), "longer than the retention");
    let fences = |server: &Server| server.keys().iter().filter(|key| key.ends_with(":fence")).count();
    assert_eq!(fences(&cluster[0]), 1, "none for the plain lock");
}

/// Law: holders without a token leave the counters alone, and take none; a holder with one that comes after them gets a
/// greater one than the last before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfenced_holders_leave_counters_alone() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    for _ in 0..5 {
        let guard = redlock.try_acquire("k").await.expect("a quorum grants");
        assert_eq!(guard.fencing_token(), None);
        // One that waits is handed the lock.
        let waits = redlock.clone();
        let waiter = tokio::spawn(async move { waits.acquire("k").await });
        tokio::time::sleep(ms(20)).await;
        guard.release().await.expect("a quorum confirms");
        waiter.await.expect("no panic").expect("handed over").release().await.expect("a quorum confirms");
    }
    assert!(cluster.iter().all(|server| counter(server).is_none()));

    let other = client(cluster.urls()).await;
    let first = token(&other, "k").await;
    assert!(other.close(SOON).await, "all that it sent is answered");
    let before: Vec<_> = cluster.iter().map(|server| server.get(COUNTER)).collect();
    let mut guard = redlock.try_acquire("k").await.expect("a quorum grants");
    guard.extend(TTL).await.expect("a quorum confirms");
    guard.release().await.expect("a quorum confirms");
    assert_eq!(before, cluster.iter().map(|server| server.get(COUNTER)).collect::<Vec<_>>());
    assert!(token(&redlock, "k").await > first);
}

/// Law: with contention, fenced and unfenced holders mixed and waiting in the queue, fenced tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_through_the_line() {
    let cluster = Cluster::start(3);
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..6 {
        let off = if number == 0 { YEAR } else { -YEAR * number };
        let redlock = builder(cluster.urls()).wall_clock_off(off).build().await.expect("nodes");
        let seen = seen.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let request = redlock.lock("k");
                let request = if number % 3 == 2 { request } else { request.fenced() };
                let guard = request.await.expect("handed over");
                seen.lock().unwrap().extend(guard.fencing_token());
                guard.release().await.expect("a quorum confirms");
            }
        }));
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 80);
    assert!(seen.is_sorted_by(|earlier, later| earlier < later), "{seen:?}");
}

/// Law: a lock that goes on in another client keeps its token, and its counters are carried along there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_lock_keeps_its_token() {
    let cluster = Cluster::start(3);
    let (here, there) = (client(cluster.urls()).await, client(cluster.urls()).await);
    let (guard, token) = take(&here, "k").await;
    let parts = guard.into_parts().await.expect("held");
    assert_eq!(parts.fencing_token(), Some(token));
    cluster[0].command(&["DEL", COUNTER]);

    let guard = there.resume(parts).await.expect("still held");
    assert_eq!(guard.fencing_token(), Some(token));
    eventually(SOON, "carried along", || {
        counter(&cluster[0]).is_some_and(|(number, _)| number == token.as_u64())
    })
    .await;
}

/// Law: with fencing off nothing is left on the servers; with it on, one counter for each name, which expires, under the
/// prefix and with the hash tag of the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_is_one_counter_a_name_that_expires() {
    let cluster = Cluster::start(3);
    let redlock = builder(cluster.urls()).prefix("app:").build().await.expect("nodes");
    let names: Vec<_> =
        (0..200).map(|i| if i % 2 == 0 { format!("n{i}") } else { format!("{{n{i}}}x") }).collect();
    for name in &names {
        redlock.try_acquire(name).await.expect("a quorum grants").release().await.expect("a quorum confirms");
    }
    eventually(SOON, "all are free", || cluster.iter().all(|server| lock_keys(server).is_empty())).await;
    let counters = |server: &Server| {
        let keys = server.keys().into_iter();
        keys.filter(|key| key.ends_with(":redquorum:fence")).collect::<Vec<_>>()
    };
    assert!(cluster.iter().all(|server| counters(server).is_empty()));

    for name in &names {
        token(&redlock, name).await;
    }
    eventually(SOON, "all are counted", || {
        cluster.iter().all(|server| counters(server).len() == names.len())
    })
    .await;
    for server in cluster.iter() {
        for key in counters(server) {
            assert!(key.starts_with("app:"), "{key}");
            assert!(server.pttl(&key).is_some_and(|life| life <= Duration::from_secs(7 * 86_400)), "{key}");
        }
        assert!(server.exists("app:{app:n0}:redquorum:fence") && server.exists("app:{n1}x:redquorum:fence"));
    }
    let reserved = redlock.try_acquire("x:redquorum:fence").await;
    assert!(matches!(reserved, Err(AcquireError::Invalid(InvalidRequest::ReservedKey { .. }))));
}

/// Law: a retention that would forget a held lock's counter, or that servers could not reckon with, is refused unsent.
#[tokio::test]
async fn impossible_retentions_are_refused() {
    for retention in [Duration::ZERO, ms(29_999), Duration::from_secs(101 * 365 * 86_400), Duration::MAX] {
        let built = builder(["redis://127.0.0.1:1"]).fencing_retention(retention).max_ttl(TTL).build().await;
        let Err(BuildError::Invalid(InvalidRequest::FencingRetention { least, .. })) = built else {
            panic!("{retention:?}: {built:?}");
        };
        assert_eq!(least, TTL);
    }
}
