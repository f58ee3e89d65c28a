//! Input that cannot work is refused with a typed error that quotes what was given, before anything is sent.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use clients::{SOON, builder, client, lock_commands, ms};
use harness::{Cluster, Server};
use redquorum::{AcquireError, BuildError, ExtendError, InvalidRequest, LockGuard, Redlock};

/// Everything the library sends would be seen by this server: nothing is.
struct Untouched(Server);

impl Untouched {
    fn start() -> (Self, String) {
        let server = Server::start();
        let url = server.url();
        (Self(server), url)
    }

    fn check(&self, before: u64) {
        assert_eq!(self.0.total_connections_received(), before);
        assert_eq!(self.0.connected_clients(), 0);
    }
}

/// No node, or more than a lock can have.
#[tokio::test]
async fn a_number_of_nodes_that_is_no_lock() {
    let none = Redlock::builder().build().await;
    assert!(matches!(none, Err(BuildError::NoNodes)), "{none:?}");
    assert!(none.unwrap_err().to_string().contains("at least one"));

    let many = Redlock::builder()
        .nodes((0..1_000).map(|i| format!("redis://127.0.0.1:{}", 10_000 + i)))
        .build()
        .await;
    let Err(BuildError::TooManyNodes { given, maximum }) = many else { panic!("{many:?}") };
    assert!(given == 1_000 && maximum < 1_000);
}

/// The same server twice would vote twice; other databases and users of it do not make it another.
#[tokio::test]
async fn the_same_address_twice() {
    let (untouched, url) = Untouched::start();
    let before = untouched.0.total_connections_received();
    let port = untouched.0.port();
    for again in [url.clone(), format!("{url}/3"), format!("redis://user:pw@127.0.0.1:{port}")] {
        let nodes = [url.clone(), "redis://127.0.0.1:1".to_owned(), again.clone()];
        let error = builder(nodes).build().await.expect_err("one server twice");
        let BuildError::DuplicateNode { first, second, address } = &error else { panic!("{error:?}") };
        assert_eq!((*first, *second), (1, 3), "{again}");
        assert!(
            address.contains(&port.to_string()) && error.to_string().contains(address.as_str()),
            "{error}"
        );
        assert!(!error.to_string().contains("pw"), "{error}");
    }
    untouched.check(before);
}

/// Malformed addresses are quoted without what may be a password.
#[tokio::test]
async fn malformed_addresses() {
    let (untouched, url) = Untouched::start();
    let before = untouched.0.total_connections_received();
    let malformed = [
        "",
        "127.0.0.1",
        "127.0.0.1:6379",
        "http://127.0.0.1:6379",
        "redis://",
        "redis://127.0.0.1:0x10",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1:6379/three",
        "redis://127.0.0.1:6379/-1",
        "redis://user:S3ntinel@:6379",
        "not a url \0 at all",
    ];
    for address in malformed {
        let error = builder([url.as_str(), address]).build().await.map(drop);
        let Err(error @ BuildError::MalformedUrl { .. }) = error else { panic!("{address:?}: {error:?}") };
        let text = format!("{error} {error:?}");
        assert!(!text.contains("S3ntinel"), "{text}");
        let quoted =
            address.split("://").last().and_then(|rest| rest.split('@').next_back()).unwrap_or_default();
        assert!(error.to_string().contains(quoted), "{address:?}: {error}");
    }
    untouched.check(before);
}

/// A TTL of nothing, of a fraction, within drift, or beyond the maximum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absurd_ttls() {
    let cluster = Cluster::start(3);
    let redlock = client(cluster.urls()).await;
    let mut guard = redlock.try_acquire("held").await.expect("acquired");
    let remaining = guard.remaining();
    tokio::time::sleep(ms(50)).await;
    let before = lock_commands(&cluster[0]);
    let check = |error: &InvalidRequest, ttl: Duration| match error {
        InvalidRequest::ZeroTtl => ttl.is_zero(),
        InvalidRequest::FractionalTtl { ttl: quoted }
        | InvalidRequest::TtlWithinDrift { ttl: quoted, .. }
        | InvalidRequest::TtlTooLong { ttl: quoted, .. } => {
            *quoted == ttl && error.to_string().contains(&format!("{ttl:?}"))
        }
        _ => false,
    };
    let absurd = [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_micros(999),
        Duration::from_micros(10_001_500),
        ms(1),
        ms(2),
        Duration::from_secs(61),
        Duration::from_millis(i64::MAX as u64),
        Duration::from_millis(u64::MAX),
        Duration::from_secs(u64::MAX),
        Duration::MAX,
    ];
    for ttl in absurd {
        let acquired = redlock.lock("k").ttl(ttl).await.map(drop);
        let Err(AcquireError::Invalid(error)) = &acquired else { panic!("{ttl:?}: {acquired:?}") };
        assert!(check(error, ttl), "{ttl:?}: {error:?}");

        let extended = guard.extend(ttl).await;
        let Err(ExtendError::Invalid(error)) = &extended else { panic!("{ttl:?}: {extended:?}") };
        assert!(check(error, ttl), "{ttl:?}: {error:?}");

        let built = builder(["redis://127.0.0.1:1"]).ttl(ttl).build().await.map(drop);
        let Err(BuildError::Invalid(error)) = &built else { panic!("{ttl:?}: {built:?}") };
        assert!(check(error, ttl), "{ttl:?}: {error:?}");
    }
    assert_eq!(lock_commands(&cluster[0]), before, "nothing was sent");
    assert!(guard.is_valid() && guard.remaining() <= remaining, "the lock is held as before");
    assert!(cluster[0].pttl("held").is_some());
}

/// Waits have no bound: for ever is a number like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_waits_work() {
    let cluster = Cluster::start(1);
    let redlock = builder(cluster.urls()).wait(Duration::MAX).build().await.expect("nodes");

    redlock.acquire("k").await.expect("acquired").release().await.expect("released");
    let guard = redlock.lock("k").wait(Duration::MAX).await.expect("acquired");
    let waiter = tokio::spawn(redlock.lock("k").wait(Duration::from_secs(u64::MAX)).into_future());
    tokio::time::sleep(ms(100)).await;
    guard.release().await.expect("released");

    let next = tokio::time::timeout(SOON, waiter).await.expect("in time").expect("no panic");
    next.expect("acquired").release().await.expect("released");
}

/// Timeouts that contradict the TTL, with both numbers in the error.
#[tokio::test]
async fn timeouts_that_contradict_the_ttl() {
    let (untouched, url) = Untouched::start();
    let before = untouched.0.total_connections_received();
    let base = || Redlock::builder().node(&url).ttl(ms(1_000));

    let slow = base().reply_timeout(ms(2_000)).build().await.expect_err("longer than the TTL");
    assert!(matches!(slow, BuildError::Invalid(InvalidRequest::ReplyTimeoutTooLong { .. })), "{slow:?}");
    let text = slow.to_string();
    assert!(text.contains("2s") && text.contains("1s"), "{text}");
    let greedy = base().min_validity(ms(1_000)).build().await.expect_err("all of the TTL");
    assert!(matches!(greedy, BuildError::Invalid(InvalidRequest::MinValidityTooLong { .. })), "{greedy:?}");
    for (name, builder) in [
        ("reply timeout", base().reply_timeout(Duration::ZERO)),
        ("connect timeout", base().connect_timeout(Duration::ZERO)),
    ] {
        let error = builder.build().await.expect_err("zero");
        assert!(matches!(error, BuildError::Invalid(InvalidRequest::ZeroTimeout { .. })), "{error:?}");
        assert!(error.to_string().contains(name), "{error}");
    }
    let max = base().max_ttl(ms(500)).build().await.expect_err("the TTL is above the maximum");
    assert!(matches!(max, BuildError::Invalid(InvalidRequest::TtlTooLong { .. })), "{max:?}");
    for absurd in [
        base().drift_ppm(u32::MAX),
        base().drift_ppm(1_000_000),
        base().reply_timeout(Duration::MAX),
        base().min_validity(Duration::MAX),
    ] {
        let error = absurd.build().await.expect_err("nothing is left of the TTL");
        assert!(matches!(error, BuildError::Invalid(_)), "{error:?}");
    }
    untouched.check(before);
}

/// A client built where there is no runtime says so, instead of panicking.
#[test]
fn no_runtime() {
    let mut building = Box::pin(builder(["redis://127.0.0.1:1"]).build());

    let polled = building.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));

    assert!(matches!(polled, std::task::Poll::Ready(Err(BuildError::NoRuntime))), "{polled:?}");
}

/// Every public future can be spawned, and every handle shared between threads.
#[test]
fn futures_are_send_and_handles_are_sync() {
    fn sendable<T: Send>(_: T) {}
    fn shareable<T: Send + Sync + 'static>() {}
    #[allow(dead_code, reason = "only has to compile")]
    fn futures(redlock: &Redlock, guard: &mut LockGuard, owned: LockGuard) {
        sendable(builder(["redis://127.0.0.1:1"]).build());
        sendable(redlock.acquire("k"));
        sendable(redlock.try_acquire("k"));
        sendable(redlock.lock("k").into_future());
        sendable(redlock.close(SOON));
        sendable(guard.extend(SOON));
        sendable(guard.lost());
        sendable(owned.release());
    }
    shareable::<Redlock>();
    shareable::<LockGuard>();
    shareable::<redquorum::LockRequest>();
    shareable::<redquorum::RedlockBuilder>();
    shareable::<redquorum::Report>();
}
