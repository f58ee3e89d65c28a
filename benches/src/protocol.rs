//! What the protocol costs by itself: a whole acquire and release, without any clock, socket or task.
//!
//! Knows the protocol's own interface, which is no part of the stable one.

use std::time::Duration;

use divan::{AllocProfiler, Bencher};
use redquorum::protocol::answer::Answer;
use redquorum::protocol::lease::{Asking, Event, Lease, Options, Released, Terms};
use redquorum::protocol::message::{ConnectionId, Key, Owner, Reply};
use redquorum::protocol::quorum::Quorum;
use redquorum::protocol::restart::Standing;
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::{Drift, Ttl};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Every node grants, and every node confirms.
#[divan::bench(args = [1, 3, 5, 7])]
fn acquire_and_release(bencher: Bencher<'_, '_>, nodes: usize) {
    let terms = terms(nodes);
    let key = Key::new(b"key".as_slice());
    bencher.bench_local(|| {
        let (started, answered) = (Instant::from_nanos(1), Instant::from_nanos(100_000));
        let owner = Owner::from_bytes(divan::black_box([7; 16]));
        let mut lease = Lease::acquire(terms, key.clone(), owner, Asking::Set, Options::default(), started);
        play(&mut lease, answered);
        assert!(matches!(lease.poll_event(), Some(Event::Held(_))));
        lease.release(answered);
        play(&mut lease, answered);
        assert_eq!(lease.poll_event(), Some(Event::Released(Released::Confirmed)));
        lease
    });
}

/// Sends what is to be sent, and lets every node answer yes.
fn play(lease: &mut Lease, now: Instant) {
    let connection = ConnectionId(1);
    let mut sent = [None; 8];
    let mut calls = 0;
    while let Some(send) = lease.poll_send() {
        lease.handle_sent(send.node, send.call, Ok(connection), now);
        sent[calls] = Some((send.node, send.call, send.operation.creates()));
        calls += 1;
    }
    for (node, call, creates) in sent.into_iter().flatten() {
        let (reply, standing) = (Reply::Granted, Standing::COUNTS);
        lease.handle_answer(Answer { node, call, connection, creates, reply, standing, read: now }, now);
    }
}

fn terms(nodes: usize) -> Terms {
    Terms {
        quorum: Quorum::of(nodes).expect("a number of nodes in range"),
        ttl: Ttl::unchecked(Duration::from_secs(10)),
        drift: Drift::default(),
        min_validity: Duration::from_secs(1),
        reply_timeout: Duration::from_millis(200),
    }
}
