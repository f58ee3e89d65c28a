//! The in-memory node answers exactly as a real server does, for random sequences of operations.
//!
//! Everything that runs on in-memory nodes (the simulations, the demo, users' own tests) rests on this. Run it against
//! each supported server with `make test-matrix`.

use std::sync::LazyLock;
use std::time::{Duration, Instant as Wall, SystemTime, UNIX_EPOCH};

use harness::Server;
use proptest::prelude::*;
use redquorum::node::store::Store;
use redquorum::protocol::fencing::{Carry, Counter, END, Fence, FencingToken, Retention};
use redquorum::protocol::message::{
    ClientId, Extension, Extensions, Holder, HolderValue, Key, Operation, Owner, Reply,
};
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::{Drift, Ttl};
use redquorum::testing::RawNode;

/// What one step does: an operation through the node, or somebody else's hand on the data.
#[derive(Clone, Debug)]
enum Step {
    Operation(Operation),
    Foreign {
        key: usize,
        value: Vec<u8>,
        expires: bool,
    },
    OtherType {
        key: usize,
    },
    Remove {
        key: usize,
    },
    /// A fencing counter that somebody set.
    Counter {
        key: usize,
        number: u64,
    },
    RemoveCounter {
        key: usize,
    },
    FlushScripts,
}

/// Lives long enough that none ends during a run, and different enough to tell a lengthened key from one left alone.
const TTLS: [u64; 3] = [60_000, 120_000, 240_000];

/// Numbers that are apart from each other and from the time by far more than two clocks may differ here: before it, an hour
/// and ten years ahead of it, and close to the end. Counted from the beginning of the test, in microseconds.
const NUMBERS: [i64; 5] = [-1_000_000_000_000, -5_000_000_000, 3_600_000_000, 315_360_000_000_000, i64::MAX];

fn number(which: usize) -> u64 {
    match NUMBERS[which] {
        i64::MAX => END - 2,
        apart => beginning().saturating_add_signed(apart),
    }
}

/// When the test began, in microseconds since 1970.
fn beginning() -> u64 {
    static BEGINNING: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);
    BEGINNING.duration_since(UNIX_EPOCH).expect("a clock").as_micros() as u64
}

fn keys() -> [Key; 4] {
    [Key::new(*b"k"), Key::new(*b"{tag}:x"), Key::new(*b"\x00\xff\r\n"), Key::new(vec![b'x'; 2_000])]
}

fn operation() -> impl Strategy<Value = Step> {
    let fencing = (0..5usize, 0..3usize);
    (0..14, 0..4usize, 0..3u8, 0..3usize, 1..3u8, any::<bool>(), proptest::option::of(0..3u8), fencing)
        .prop_map(|drawn| {
            let (kind, key, owner, ttl, client, polls, earlier, (which, days)) = drawn;
            let retention = Retention::new(Duration::from_secs(86_400 * (1 + days as u64)));
            let carry = Carry { token: FencingToken::new(number(which)), retention };
            // Client 1 is the node's own and listens on its channel; client 2 is as good as dead.
            let client = ClientId::from_bytes([client; 16]);
            let rename_from = earlier.map(|byte| Owner::from_bytes([byte; 16]));
            let (key, owner) = (keys()[key].clone(), Owner::from_bytes([owner; 16]));
            let duration = Duration::from_millis(TTLS[ttl]);
            let ttl = Ttl::new(duration, Drift::default(), duration).expect("a sensible TTL");
            Step::Operation(match kind {
                0 => Operation::Set { key, owner, ttl },
                1 => Operation::Claim { key, owner, ttl, fence: None },
                2 => Operation::Extend { key, owner, ttl, carry: None },
                3 => Operation::Release { key, owner },
                4 | 5 => Operation::HandOver { key, owner, client, hand_over: ttl },
                6 => Operation::Inspect { key },
                7 => {
                    // Some of them fenced, by the drawn one's bits.
                    let carried = |key: &Key| (key.as_bytes().len() % 3 == which % 3).then_some(carry);
                    let extension = |key: Key| Extension { carry: carried(&key), key, owner, ttl };
                    let extensions = Extensions::new(keys().map(extension).to_vec());
                    Operation::ExtendAll { extensions: extensions.expect("four keys") }
                }
                8 | 9 => {
                    let fence = Fence::Advance { candidate: number(which), retention };
                    Operation::Claim { key, owner, ttl, fence: Some(fence) }
                }
                10 => Operation::Claim { key, owner, ttl, fence: Some(Fence::Carry(carry)) },
                11 => Operation::Extend { key, owner, ttl, carry: Some(carry) },
                12 => Operation::Raise { key, owner, carry },
                _ => Operation::Queue { key, owner, client, polls, rename_from, score: None, hand_over: ttl },
            })
        })
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![
        Just(b"someone".to_vec()),
        Just(Vec::new()),
        // Another client's value that looks like an owner of ours.
        Just(Owner::from_bytes([1; 16]).to_hex().to_vec()),
        proptest::collection::vec(any::<u8>(), 0..100),
    ];
    prop_oneof![
        20 => operation(),
        2 => (0..4usize, value, any::<bool>()).prop_map(|(key, value, expires)| Step::Foreign { key, value, expires }),
        1 => (0..4usize).prop_map(|key| Step::OtherType { key }),
        1 => (0..4usize).prop_map(|key| Step::Remove { key }),
        1 => (0..4usize, 0..5usize).prop_map(|(key, which)| Step::Counter { key, number: number(which) }),
        1 => (0..4usize).prop_map(|key| Step::RemoveCounter { key }),
        1 => Just(Step::FlushScripts),
    ]
}

/// Two servers side by side: the real one, and the one in memory.
struct Pair {
    server: Server,
    node: RawNode,
    store: Store,
    started: Wall,
}

impl Pair {
    fn now(&self) -> Instant {
        Instant::from_nanos(1_000 * beginning()).after(self.started.elapsed())
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let now = self.now();
        match step {
            Step::Operation(operation) => {
                let expected = self.store.execute(operation, now);
                let real = self.node.execute(operation.clone()).await;
                prop_assert!(
                    self.agree(operation, &expected, &real),
                    "{operation:?}: expected {expected:?}, real {real:?}"
                );
            }
            Step::Foreign { key, value, expires } => {
                let key = &keys()[*key];
                let ttl = expires.then_some(Duration::from_millis(TTLS[1]));
                self.store.put_foreign(key, value, ttl, now);
                self.server.command(&[b"SET", key.as_bytes(), value]);
                if *expires {
                    self.server.command(&[b"PEXPIRE", key.as_bytes(), TTLS[1].to_string().as_bytes()]);
                }
            }
            Step::OtherType { key } => {
                let key = &keys()[*key];
                self.store.put_other_type(key, now);
                self.server.command(&[b"DEL", key.as_bytes()]);
                self.server.command(&[b"RPUSH", key.as_bytes(), b"data"]);
            }
            Step::Remove { key } => {
                self.store.remove(&keys()[*key]);
                self.server.command(&[b"DEL", keys()[*key].as_bytes()]);
            }
            Step::Counter { key, number } => {
                let (key, owner) = (&keys()[*key], Owner::from_bytes([1; 16]));
                let expires = (beginning() + 86_400_000_000) / 1_000;
                self.store.put_counter(key, Counter { number: *number, owner, expires });
                let text = format!("{number} {}", String::from_utf8_lossy(&owner.to_hex()));
                let life = expires.to_string();
                self.server.command(&[b"SET", &counter(key)[..], text.as_bytes(), b"PXAT", life.as_bytes()]);
            }
            Step::RemoveCounter { key } => {
                let key = &keys()[*key];
                self.store.remove_counter(key);
                self.server.command(&[b"DEL", &counter(key)[..]]);
            }
            Step::FlushScripts => {
                self.server.command(&["SCRIPT", "FLUSH"]);
            }
        }
        self.compare()
    }

    /// The same answer, as far as this server can give it: before Redis 7.0 a refused set does not name the holder, and a
    /// native compare-and-delete does not tell why it deleted nothing.
    fn agree(&self, operation: &Operation, expected: &Reply, real: &Reply) -> bool {
        let version = self.server.version();
        match (expected, real) {
            (Reply::Held(expected), Reply::Held(real)) => {
                let named = expected.value == real.value;
                let unnamed = matches!(operation, Operation::Set { .. })
                    && real.value == HolderValue::Unnamed
                    && !version.at_least((7, 0), (0, 0));
                (named || unnamed) && close(expected, real)
            }
            // One's own value seen by a set: this very round made it, or the server does not tell.
            (Reply::Granted, Reply::Held(real)) => {
                matches!(operation, Operation::Set { .. })
                    && real.value == HolderValue::Unnamed
                    && !version.at_least((7, 0), (0, 0))
            }
            (Reply::Absent | Reply::Held(_), Reply::NotOurs) => {
                matches!(operation, Operation::Release { .. }) && version.at_least((8, 4), (9, 0))
            }
            // Scores are the clocks' times.
            (Reply::Queued(expected), Reply::Queued(real)) => {
                (expected.before, expected.entered) == (real.before, real.entered)
                    && like(expected.holder.as_ref(), real.holder.as_ref())
            }
            (Reply::Fenced(expected), Reply::Fenced(real)) => near(expected.as_u64(), real.as_u64()),
            (Reply::Found(expected), Reply::Found(real)) => {
                expected.waiting == real.waiting && like(expected.holder.as_ref(), real.holder.as_ref())
            }
            (expected, real) => expected == real,
        }
    }

    /// The same keys with the same values and lives.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let now = self.now();
        for key in keys() {
            self.compare_counters(&key, now)?;
            let expected = self.store.holder(&key, now);
            let left = self.server.pttl(key.as_bytes());
            prop_assert_eq!(expected.is_some(), left.is_some(), "{} exists on one side only", key);
            let (Some(expected), Some(left)) = (expected, left) else { continue };
            let real = match self.server.try_command(&[b"GET", key.as_bytes()]) {
                Ok(redis::Value::BulkString(value)) => HolderValue::read(&value),
                _ => HolderValue::NotALock,
            };
            prop_assert_eq!(&expected.value, &real, "{} has another value", key);
            let remaining = (left != Duration::MAX).then_some(left);
            prop_assert!(
                close(&expected, &Holder { value: real, remaining }),
                "{} lives for {:?}",
                key,
                left
            );
        }
        Ok(())
    }
}

impl Pair {
    /// The same number, of the same owner, for the same time.
    fn compare_counters(&mut self, key: &Key, now: Instant) -> Result<(), TestCaseError> {
        let expected = self.store.counter(key, now);
        let found = self.server.command(&[b"GET", &counter(key)[..]]);
        let real = match &found {
            redis::Value::BulkString(text) => {
                let text = String::from_utf8_lossy(text);
                let (number, owner) = text.split_once(' ').expect("a number and an owner");
                Some((number.parse().expect("a number"), Owner::from_hex(owner.as_bytes())))
            }
            _ => None,
        };
        prop_assert_eq!(expected.is_some(), real.is_some(), "the counter of {} is on one side only", key);
        let (Some(expected), Some((number, owner))) = (expected, real) else { return Ok(()) };
        prop_assert!(near(expected.number, number), "{key}: expected {}, real {number}", expected.number);
        prop_assert_eq!(Some(expected.owner), owner, "the counter of {} is another's", key);
        let left = self.server.pttl(counter(key)).unwrap_or_default().as_millis() as u64;
        let expected = expected.expires - now.as_nanos() / 1_000_000;
        prop_assert!(expected.abs_diff(left) < 2_000, "{key}: lives for {left} ms, not {expected} ms");
        Ok(())
    }
}

/// The name of a key's fencing counter.
fn counter(key: &Key) -> Vec<u8> {
    let key = key.as_bytes();
    let tagged = key.starts_with(b"{tag}");
    let (open, close) = if tagged { (&b""[..], &b""[..]) } else { (&b"{"[..], &b"}"[..]) };
    [open, key, close, b":redquorum:fence"].concat()
}

/// The same, but for two clocks that were read one after the other.
fn near(expected: u64, real: u64) -> bool {
    expected.abs_diff(real) < 2_000_000
}

fn like(expected: Option<&Holder>, real: Option<&Holder>) -> bool {
    match (expected, real) {
        (Some(expected), Some(real)) => expected.value == real.value && close(expected, real),
        (expected, real) => expected == real,
    }
}

/// Within two seconds: the TTLs used differ by a minute.
fn close(expected: &Holder, real: &Holder) -> bool {
    match (expected.remaining, real.remaining) {
        (Some(expected), Some(real)) => expected.abs_diff(real) < Duration::from_secs(2),
        (expected, real) => expected == real,
    }
}

/// Law: on every sequence of operations, foreign writes and script flushes, both nodes answer alike and keep alike.
#[test]
fn memory_and_server_answer_alike() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let node = runtime
        .block_on(RawNode::connect(&server.url(), ClientId::from_bytes([1; 16])))
        .expect("a connection");
    let mut store = Store::default();
    store.subscribe(ClientId::from_bytes([1; 16]));
    let pair = std::cell::RefCell::new(Pair {
        server,
        node,
        store,
        started: {
            beginning();
            Wall::now()
        },
    });
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };

    proptest!(config, |(steps in proptest::collection::vec(step(), 1..40))| {
        let mut pair = pair.borrow_mut();
        pair.store.wipe();
        pair.server.command(&["FLUSHALL"]);
        for step in &steps {
            runtime.block_on(pair.take(step))?;
        }
    });
}
