//! A service as its authors would write it, and its tests on nodes in memory: a template for tests of your own.
//!
//! The service numbers invoices: each number once, none left out. What it does when the lock cannot be had, or is lost half-way,
//! is its own decision, and that is what these tests are about.

use std::time::Duration;

use redquorum::testing::{ManualClock, MemoryCluster, MemoryNode};
use service::{Invoices, NotNumbered};
use tokio::time::{Instant, sleep};

/// The service: nothing in it knows that it is tested.
mod service {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use redquorum::{LockGuard, Redlock, WithLockError};

    /// How long a customer may be kept waiting.
    const PATIENCE: Duration = Duration::from_secs(2);

    pub struct Invoices {
        redlock: Redlock,
        last: AtomicU64,
        /// How long it takes to print one.
        printing: Duration,
    }

    /// Why an invoice has no number. Nothing was written.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum NotNumbered {
        /// Others are at it: try again later.
        Busy,
        /// Too few of the nodes answer: look after them.
        Unavailable,
        /// The lock was lost half-way: try again.
        Interrupted,
    }

    impl Invoices {
        pub fn new(redlock: Redlock, printing: Duration) -> Self {
            Self { redlock, last: AtomicU64::new(0), printing }
        }

        pub fn last(&self) -> u64 {
            self.last.load(Ordering::SeqCst)
        }

        /// Prints an invoice under the next number.
        pub async fn number(&self) -> Result<u64, NotNumbered> {
            let request = self.redlock.lock("invoices").wait(PATIENCE);
            request.with(async |guard| self.print(guard).await).await.map_err(|error| match error {
                WithLockError::Acquire(error) if error.is_contention() => NotNumbered::Busy,
                WithLockError::Lost { .. } => NotNumbered::Interrupted,
                _ => NotNumbered::Unavailable,
            })
        }

        /// Reads and writes with a pause between, which only the lock makes safe.
        async fn print(&self, _guard: &LockGuard) -> u64 {
            let number = self.last() + 1;
            tokio::time::sleep(self.printing).await;
            self.last.store(number, Ordering::SeqCst);
            number
        }
    }
}

const PRINTING: Duration = Duration::from_millis(100);

/// A service on these nodes, whose invoices take so long to print.
async fn service(cluster: &MemoryCluster, printing: Duration) -> Invoices {
    Invoices::new(cluster.builder().build().await.expect("nodes in memory"), printing)
}

/// Law: each number is given once, and none is left out, whoever asks at the same time.
#[tokio::test(start_paused = true)]
async fn each_number_once() {
    let cluster = MemoryCluster::new(3);
    let invoices = service(&cluster, PRINTING).await;

    let asked = futures::future::join_all((0..10).map(|_| invoices.number())).await;

    let mut numbers: Vec<_> = asked.into_iter().map(|number| number.expect("in turn")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, Vec::from_iter(1..=10));
}

/// Law: a minority that hangs is not noticed.
#[tokio::test(start_paused = true)]
async fn a_hung_minority_is_not_noticed() {
    let cluster = MemoryCluster::new(5);
    let invoices = service(&cluster, PRINTING).await;
    cluster.minority().iter().for_each(MemoryNode::hang);
    let started = Instant::now();

    assert_eq!(invoices.number().await, Ok(1));

    assert!(started.elapsed() < PRINTING + Duration::from_millis(10), "{:?}", started.elapsed());
}

/// Law: without a majority customers are told within the time that they may be kept waiting, whatever is wrong with the nodes;
/// and when it is over, all goes on.
#[tokio::test(start_paused = true)]
async fn without_a_majority_it_is_unavailable() {
    for fault in [MemoryNode::hang, MemoryNode::lose_replies, MemoryNode::crash] {
        let cluster = MemoryCluster::new(3);
        let invoices = service(&cluster, PRINTING).await;
        cluster.majority().iter().for_each(fault);
        let started = Instant::now();

        assert_eq!(invoices.number().await, Err(NotNumbered::Unavailable));

        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
        cluster.heal();
        // Connections that were given up are made anew.
        sleep(Duration::from_secs(2)).await;
        assert_eq!(invoices.number().await, Ok(1));
    }
}

/// Law: what others hold is told apart from an outage.
#[tokio::test(start_paused = true)]
async fn while_another_process_is_at_it_it_is_busy() {
    let cluster = MemoryCluster::new(3);
    let invoices = service(&cluster, PRINTING).await;
    let another = cluster.builder().build().await.expect("nodes in memory");
    let held = another.acquire("invoices").await.expect("it is free");

    assert_eq!(invoices.number().await, Err(NotNumbered::Busy));

    held.release().await.expect("held until now");
    assert_eq!(invoices.number().await, Ok(1));
}

/// Law: when the lock is lost in the middle of a long print, nothing is written, and the customer is told in time.
#[tokio::test(start_paused = true)]
async fn nothing_is_written_without_the_lock() {
    let cluster = MemoryCluster::new(3);
    let invoices = service(&cluster, Duration::from_secs(3600)).await;
    let failing = async {
        sleep(Duration::from_secs(600)).await;
        cluster.nodes().iter().for_each(MemoryNode::hang);
    };
    let started = Instant::now();

    let (outcome, ()) = tokio::join!(invoices.number(), failing);

    assert_eq!((outcome, invoices.last()), (Err(NotNumbered::Interrupted), 0));
    let told = started.elapsed().as_secs();
    assert!((600..610).contains(&told), "within a TTL: {told} s");
}

/// Law: a node that forgets all in the middle of the work lets nobody else in, and interrupts nothing.
#[tokio::test(start_paused = true)]
async fn a_wiped_node_lets_nobody_in() {
    let cluster = MemoryCluster::new(3);
    let (invoices, others) = (service(&cluster, PRINTING).await, service(&cluster, PRINTING).await);
    let wiping = async {
        sleep(PRINTING / 2).await;
        cluster.node(0).wipe();
        let started = Instant::now();
        assert_eq!(others.number().await, Ok(1));
        started.elapsed()
    };

    let (number, waited) = tokio::join!(invoices.number(), wiping);

    assert_eq!(number, Ok(1));
    assert!(waited >= PRINTING / 2 + PRINTING, "only after the first had ended: {waited:?}");
}

/// Law: a machine that wakes up after an hour does not go on as if nothing had been.
#[tokio::test]
async fn a_suspended_machine_is_interrupted() {
    let clock = ManualClock::new();
    let cluster = MemoryCluster::with_clock(3, clock.clone());
    // The print takes its time on tokio's clock, the lock on the other.
    let invoices = service(&cluster, PRINTING).await;
    let suspended = async {
        sleep(PRINTING / 2).await;
        clock.advance(Duration::from_secs(3600));
    };

    let (outcome, ()) = tokio::join!(invoices.number(), suspended);

    assert_eq!((outcome, invoices.last()), (Err(NotNumbered::Interrupted), 0));
}

/// Law: whatever went wrong, in the end nothing stays on the nodes.
#[tokio::test(start_paused = true)]
async fn nothing_stays_on_the_nodes() {
    let cluster = MemoryCluster::new(3);
    let invoices = service(&cluster, PRINTING).await;
    let hanging = async {
        sleep(PRINTING / 2).await;
        cluster.node(0).hang();
    };
    let (number, ()) = tokio::join!(invoices.number(), hanging);
    assert_eq!(number, Ok(1));
    assert!(cluster.node(0).holder("invoices").is_some(), "it could not hear of the release");

    cluster.heal();
    sleep(Duration::from_secs(1)).await;

    assert!(cluster.nodes().iter().all(|node| node.holder("invoices").is_none()), "long before the TTL");
}
