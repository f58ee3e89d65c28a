//! What a fencing token costs: the time of a fenced acquire beside that of a plain one, in one run, in turn.
//!
//! A file of its own, so that no other test runs beside it. The full size is ignored by default, and run by
//! `cargo test --release --test fencing_cost -- --ignored --nocapture`.

mod clients;
mod common;

use std::time::Duration;

use clients::{client, timed};
use common::Cluster;
use redquorum::LockRequest;

/// The medians of plain and fenced acquires, which take turns.
async fn medians(acquires: usize) -> (Duration, Duration) {
    let cluster = Cluster::start(5);
    let redlock = client(cluster.urls()).await;
    let (mut plain, mut fenced) = (Vec::new(), Vec::new());
    let take = async |request: LockRequest, times: Option<&mut Vec<Duration>>| {
        let (guard, took) = timed(request.no_wait()).await;
        guard.expect("five nodes grant").release().await.expect("five nodes confirm");
        if let Some(times) = times {
            times.push(took);
        }
    };
    for i in 0..acquires + acquires / 10 {
        // A thousand names, so that counters are met again, as in a service.
        let name = |kind: &str| redlock.lock(format!("{kind}{}", i % 1_000));
        let warm = i >= acquires / 10;
        let (first, second) = (name("plain"), name("fenced").fenced());
        if i % 2 == 0 {
            take(first, warm.then_some(&mut plain)).await;
            take(second, warm.then_some(&mut fenced)).await;
        } else {
            take(second, warm.then_some(&mut fenced)).await;
            take(first, warm.then_some(&mut plain)).await;
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (plain, fenced) = (median(&mut plain), median(&mut fenced));
    let ratio = fenced.as_secs_f64() / plain.as_secs_f64();
    println!("plain p50 {plain:.1?}, fenced p50 {fenced:.1?}: {ratio:.3} times as long");
    (plain, fenced)
}

/// A token takes a script in place of a plain command, and no second round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_takes_no_second_round_trip() {
    let (plain, fenced) = medians(400).await;

    assert!(fenced < plain.mul_f64(1.6), "{fenced:?} beside {plain:?}");
}

/// The same with the figure that is promised: 1.15 times as long as a plain acquire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "full size, for a release build on a quiet machine"]
async fn a_token_costs_fifteen_per_cent_at_most() {
    let (plain, fenced) = medians(20_000).await;

    assert!(fenced <= plain.mul_f64(1.15), "{fenced:?} beside {plain:?}");
}
