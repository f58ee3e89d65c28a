//! Random histories through the public face: clients, faults, cancellations, one seed for all of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redquorum::testing::MemoryCluster;
use redquorum::{LockGuard, Redlock};
use tokio::time::Instant;

use super::support::{KEY, nothing_is_left};

/// Ordinary runs; `REDQUORUM_SEEDS` asks for more, `REDQUORUM_SEED` for one.
const SEEDS: u64 = 150;

/// What an independent witness saw: who was valid when.
#[derive(Default)]
struct Witness {
    holders: Vec<(usize, Instant)>,
    grants: usize,
}

impl Witness {
    /// Law: never two valid leases. Told of each grant with the moment up to which it is valid.
    fn granted(&mut self, client: usize, guard: &LockGuard, seed: u64) {
        let now = Instant::now();
        self.holders.retain(|(_, until)| *until > now);
        assert!(
            self.holders.is_empty(),
            "client {client} holds while {:?} do; REDQUORUM_SEED={seed} shows it",
            self.holders
        );
        self.holders.push((client, now + guard.remaining()));
        self.grants += 1;
    }

    fn over(&mut self, client: usize) {
        self.holders.retain(|(holder, _)| *holder != client);
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match (number("REDQUORUM_SEED"), number("REDQUORUM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, Some(count)) => 0..count,
        (None, None) => 0..SEEDS,
    }
}

/// Laws: never two valid leases; nothing is left once the faults are over; the healed world lets everybody in.
#[test]
fn random_histories_hold_the_laws() {
    let mut grants = 0;
    for seed in seeds() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let local = tokio::task::LocalSet::new();
        grants += runtime.block_on(local.run_until(history(seed)));
    }
    assert!(grants as u64 >= seeds().end - seeds().start, "histories without grants show nothing");
}

async fn history(seed: u64) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let nodes = random.random_range(1..=7);
    let cluster = MemoryCluster::new(nodes);
    let witness = Rc::new(RefCell::new(Witness::default()));
    let ttl = Duration::from_millis(random.random_range(60..3_000));
    let mut clients = Vec::new();
    for client in 0..random.random_range(1..4) {
        let redlock = cluster.builder().ttl(ttl).build().await.unwrap();
        let life = live(client, redlock.clone(), ttl, seed, witness.clone());
        clients.push((redlock, tokio::task::spawn_local(life)));
    }

    for _ in 0..random.random_range(5..25) {
        let node = cluster.node(random.random_range(0..nodes));
        match random.random_range(0..8) {
            0 => node.hang(),
            1 => node.lose_replies(),
            2 => node.crash(),
            3 => node.delay(Duration::from_millis(random.random_range(0..100))),
            _ => node.heal(),
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..1_500))).await;
    }
    cluster.nodes().iter().for_each(|node| node.heal());

    // The lives go on until all of them could get in once more after the faults.
    for (_, life) in &mut clients {
        tokio::time::timeout(Duration::from_secs(3_600), life)
            .await
            .expect("progress after healing")
            .unwrap();
    }
    for (redlock, _) in &clients {
        tokio::time::timeout(Duration::from_secs(60), async {
            while redlock.pending_cleanups() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("debts outlive their bound; REDQUORUM_SEED={seed} shows it"));
        nothing_is_left(&cluster, redlock, &format!("seed {seed}")).await;
    }
    witness.borrow().grants
}

/// One client's life: acquire, hold, extend, overrun, release, drop, cancel.
async fn live(client: usize, redlock: Redlock, ttl: Duration, seed: u64, witness: Rc<RefCell<Witness>>) {
    let mut random = StdRng::seed_from_u64(seed ^ ((client as u64 + 1) << 32));
    for _ in 0..random.random_range(5..30) {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..200))).await;
        let patience = Duration::from_millis(random.random_range(0..500));
        let attempt = redlock.lock(KEY).wait_forever();
        let acquired = match random.random_range(0..3) {
            0 => tokio::time::timeout(patience, attempt).await.ok().and_then(Result::ok),
            1 => redlock.try_acquire(KEY).await.ok(),
            _ => redlock.lock(KEY).wait(patience).await.ok(),
        };
        let Some(mut guard) = acquired else { continue };
        witness.borrow_mut().granted(client, &guard, seed);
        tokio::time::sleep(ttl.mul_f64(random.random_range(0.0..0.7))).await;
        if random.random_bool(0.5) {
            let extended = guard.extend(ttl).await;
            witness.borrow_mut().over(client);
            if extended.is_ok() {
                witness.borrow_mut().granted(client, &guard, seed);
                witness.borrow_mut().grants -= 1;
            }
        }
        if random.random_bool(0.2) {
            // Outlives its validity; the late release must not hurt anybody.
            tokio::time::sleep(ttl * 2).await;
        }
        witness.borrow_mut().over(client);
        match random.random_bool(0.5) {
            true => drop(guard.release().await),
            false => drop(guard),
        }
    }
    // Everybody gets in once the world is whole again.
    redlock.lock(KEY).wait_forever().await.expect("waits for ever").release().await.ok();
}
