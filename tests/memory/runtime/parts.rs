//! A lock on its way from one client to another.

use std::time::Duration;

use redquorum::testing::{MemoryCluster, MemoryNode};
use redquorum::{InvalidRequest, LockParts};
use redquorum::{Lost, ResumeError};
use tokio::time::{Instant, sleep};

use super::support::{KEY, TTL, cancelled_after, client, heal, holders, nothing_is_left};

/// Law: a lock goes from one client to the other without being free for a moment, kept or not on either side, and the guard
/// that it came from is over.
#[tokio::test(start_paused = true)]
async fn goes_over_without_a_gap() {
    for (kept_before, kept_after) in [(false, false), (false, true), (true, false), (true, true)] {
        let cluster = MemoryCluster::new(3);
        let (here, there, rival) = (client(&cluster).await, client(&cluster).await, client(&cluster).await);
        let request = here.lock(KEY);
        let guard = if kept_before { request.keep_alive() } else { request }.await.unwrap();
        let lost = guard.lost();
        if kept_before {
            sleep(5 * TTL).await;
        }
        let owner = cluster.node(0).holder(KEY);

        let parts = guard.into_parts().await.unwrap();

        assert_eq!(lost.await, Lost::Released);
        assert!(parts.remaining() > TTL / 2 && parts.is_portable());
        sleep(TTL / 4).await;
        assert!(rival.try_acquire(KEY).await.is_err());
        assert_eq!(holders(&cluster), 3, "nothing was released");
        assert_eq!(cluster.node(0).holder(KEY), owner);

        let request = there.resume(parts);
        let guard = if kept_after { request.keep_alive() } else { request }.await.unwrap();
        let alone = Instant::now();
        assert!(guard.remaining() > TTL * 9 / 10);
        assert_eq!(cluster.node(0).holder(KEY), owner);
        drop(here);
        if kept_after {
            sleep(5 * TTL).await;
            assert!(guard.is_valid() && rival.try_acquire(KEY).await.is_err());
        } else {
            assert_eq!(guard.lost().await, Lost::Expired);
            assert!(alone.elapsed() < TTL);
        }
        drop(guard);
        nothing_is_left(&cluster, &there, "released by the other").await;
    }
}

/// Law (rule 7): parts that come after the end of validity are refused, though the nodes may still have the keys, and nothing
/// is sent.
#[tokio::test(start_paused = true)]
async fn late_parts_are_refused() {
    let cluster = MemoryCluster::new(3);
    let (here, there) = (client(&cluster).await, client(&cluster).await);
    let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();
    sleep(parts.remaining()).await;
    assert_eq!(holders(&cluster), 3, "the keys outlive the validity");
    let before = cluster.node(0).executed();

    let refused = there.resume(parts).await.unwrap_err();

    assert!(matches!(refused, ResumeError::Expired { .. }), "{refused}");
    assert_eq!(cluster.node(0).executed(), before);
}

/// Law: a confirmation that comes after the end of the old validity is none.
#[tokio::test(start_paused = true)]
async fn late_confirmations_are_none() {
    let cluster = MemoryCluster::new(3);
    let (here, there) = (client(&cluster).await, client(&cluster).await);
    let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();
    sleep(parts.remaining() - Duration::from_millis(5)).await;
    cluster.nodes().iter().for_each(|node| node.delay(Duration::from_millis(5)));

    let refused = there.resume(parts).await.unwrap_err();

    assert!(matches!(refused, ResumeError::Expired { .. }), "{refused}");
    nothing_is_left(&cluster, &there, "refused").await;
}

/// Law: a lock that a majority has lost or given to another is lost to the other process as well, and another's key is not
/// touched.
#[tokio::test(start_paused = true)]
async fn lost_parts_are_refused() {
    let cluster = MemoryCluster::new(3);
    let (here, there) = (client(&cluster).await, client(&cluster).await);
    let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();
    cluster.node(0).put(KEY, b"rival", None);
    cluster.node(1).forget(KEY);

    let refused = there.resume(parts).await.unwrap_err();

    assert!(matches!(refused, ResumeError::Lost { .. }), "{refused}");
    sleep(Duration::from_millis(1)).await;
    assert_eq!(cluster.node(0).holder(KEY).as_deref(), Some("\"rival\""));
    assert_eq!(cluster.node(2).holder(KEY), None, "the rest of it is released");
}

/// Law: an outage gives the parts back and releases nothing, and with them the lock is had afterwards.
#[tokio::test(start_paused = true)]
async fn an_outage_gives_the_parts_back() {
    let cluster = MemoryCluster::new(3);
    let (here, there) = (client(&cluster).await, client(&cluster).await);
    let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();
    cluster.nodes().iter().for_each(MemoryNode::crash);

    let ResumeError::Unconfirmed { parts, .. } = there.resume(parts).await.unwrap_err() else {
        panic!("an outage is no loss");
    };
    heal(&cluster);
    sleep(TTL / 2).await;

    let guard = there.resume(*parts).await.unwrap();
    assert!(guard.is_valid() && holders(&cluster) == 3);
}

/// Law: a lost lock has no parts; one that is lost while it is taken apart neither.
#[tokio::test(start_paused = true)]
async fn a_lost_lock_has_no_parts() {
    let cluster = MemoryCluster::new(3);
    let redlock = client(&cluster).await;
    let guard = redlock.acquire(KEY).await.unwrap();
    sleep(TTL).await;
    assert_eq!(guard.into_parts().await, Err(Lost::Expired));

    let guard = redlock.lock(KEY).max_hold(TTL / 2).await.unwrap();
    sleep(TTL).await;
    assert_eq!(guard.into_parts().await, Err(Lost::MaxHoldReached));
    nothing_is_left(&cluster, &redlock, "no parts").await;
}

/// Law: taking apart and resuming, dropped at any await, leave the lock released or in the parts, and never kept by nobody.
#[tokio::test(start_paused = true)]
async fn cancelled_at_every_await_leaves_nothing() {
    for polls in 0..8 {
        for hung in [false, true] {
            let cluster = MemoryCluster::new(3);
            let redlock = cluster.builder().build().await.unwrap();
            if hung {
                cluster.node(1).hang();
            }
            let guard = redlock.lock(KEY).keep_alive().await.unwrap();

            let parts = cancelled_after(polls, guard.into_parts()).await;
            if let Some(parts) = parts {
                let parts = parts.unwrap();
                assert_eq!(parts.is_portable(), !hung, "a hung node owes an answer");
                let resumed = cancelled_after(polls, redlock.resume(parts).keep_alive().into_future()).await;
                if polls == 0 {
                    drop(resumed);
                    continue;
                }
                drop(resumed);
            }

            nothing_is_left(&cluster, &redlock, &format!("hung {hung} after {polls} polls")).await;
        }
    }
}

/// Law: what a node owed when a lock was taken apart first, no later owner of the parts can vouch for: they stay good on this
/// machine only, through any number of hands.
#[tokio::test(start_paused = true)]
async fn what_is_owed_is_owed_through_every_hand() {
    let cluster = MemoryCluster::new(3);
    let (here, there) = (client(&cluster).await, client(&cluster).await);
    cluster.node(2).hang();
    let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();
    assert!(!parts.is_portable());

    let mut parts = there.resume(parts).await.unwrap().into_parts().await.unwrap();
    assert!(!parts.is_portable(), "a set of the first holder may still be on its way");
    cluster.node(2).heal();
    for _ in 0..3 {
        parts = there.resume(parts).keep_alive().await.unwrap().into_parts().await.unwrap();
        assert!(!parts.is_portable());
    }
    drop(there.resume(parts).await.unwrap());
    nothing_is_left(&cluster, &there, "released by the last").await;
}

/// Law: parts survive being serialised; from another machine, they are good where no node owed an answer, and only there.
#[tokio::test(start_paused = true)]
async fn parts_travel_as_text() {
    for hung in [false, true] {
        let cluster = MemoryCluster::new(3);
        let (here, there) = (client(&cluster).await, client(&cluster).await);
        if hung {
            cluster.node(1).hang();
        }
        let parts = here.acquire(KEY).await.unwrap().into_parts().await.unwrap();

        let mut text = serde_json::to_value(&parts).unwrap();
        assert_eq!(serde_json::from_value::<LockParts>(text.clone()).unwrap(), parts);
        text["until"]["clock"] = "another machine".into();
        // What this clock says means nothing there.
        text["until"]["nanos"] = 1.into();
        let parts: LockParts = serde_json::from_value(text.clone()).unwrap();
        let resumed = there.resume(parts).await;

        match hung {
            false => assert!(resumed.unwrap().is_valid()),
            true => assert!(matches!(resumed, Err(ResumeError::NotPortable { .. })), "{resumed:?}"),
        }
        text["owner"] = "nonsense".into();
        let parts: LockParts = serde_json::from_value(text.clone()).unwrap();
        let refused = there.resume(parts).await;
        assert!(matches!(refused, Err(ResumeError::Invalid(InvalidRequest::MalformedParts))), "{refused:?}");
        text["key"] = serde_json::json!([]);
        let parts: LockParts = serde_json::from_value(text.clone()).unwrap();
        let refused = there.resume(parts).await;
        assert!(matches!(refused, Err(ResumeError::Invalid(InvalidRequest::EmptyKey))), "{refused:?}");
    }
}
