//! The renewal's task: its leases, what each of them waits for, and the calls that carry their extensions.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use rand::random;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{LeaseId, Order, Orders, RenewedLease};
use crate::clock::Clock;
use crate::node::{Mailbox, Node, Outgoing};
use crate::protocol::lease::{CallId, Event, Lease, NotExtended};
use crate::protocol::message::{Extension, Extensions, MOST_EXTENSIONS, Operation, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::renewal::Schedule;
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::runtime::driver::Driver;
use crate::runtime::loss::Lost;
use crate::runtime::shared::Counted;

/// Most extensions that are under way without a verdict: half of what a node's door admits for what creates nothing, so that
/// releases always find room beside them. At a round trip of 10 ms that is 200 000 in a second.
pub(crate) const MOST_UNDER_WAY: usize = 2_000;

/// Most extensions that are begun in one go, before other tasks get their turn.
const MOST_AT_ONCE: usize = 4 * MOST_EXTENSIONS;

/// By then the nodes that a new lease did not wait for have usually answered.
const FRESH: Duration = Duration::from_millis(10);

/// Otherwise it is looked at again after this, until their connections are given up.
const STALE: Duration = Duration::from_millis(250);

/// Keeps leases until the client is gone.
pub(crate) async fn run(
    nodes: Arc<[Node]>,
    Orders(mut orders): Orders,
    clock: Clock,
    shutdown: CancellationToken,
) {
    let mut work = Work {
        nodes,
        clock,
        mailbox: Mailbox::new(),
        leases: HashMap::new(),
        due: BTreeSet::new(),
        under_way: BTreeSet::new(),
        bundles: HashMap::new(),
        next_bundle: 0,
        asked: HashMap::new(),
        fresh: VecDeque::new(),
        stale: VecDeque::new(),
        closed: false,
    };
    loop {
        // What was released is not extended any more; what was answered is not extended again.
        while let Ok(order) = orders.try_recv() {
            work.take_order(order);
        }
        work.take_answers();
        if work.pass() {
            tokio::task::yield_now().await;
            continue;
        }
        let wake = work.wake();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            order = orders.recv() => match order {
                Some(order) => work.take_order(order),
                None => return,
            },
            () = poll_fn(|cx| work.mailbox.poll_any(cx)) => {}
            () = work.clock.sleep_until(wake), if wake != Instant::FAR_FUTURE => {}
        }
    }
}

/// The renewal's leases and calls.
struct Work {
    nodes: Arc<[Node]>,
    clock: Clock,
    mailbox: Arc<Mailbox>,
    leases: HashMap<LeaseId, Renewing>,
    /// Leases that wait for their next extension, or for their end.
    due: BTreeSet<(Instant, LeaseId)>,
    /// Leases that wait for the verdict on an extension, with its deadline.
    under_way: BTreeSet<(Instant, LeaseId)>,
    /// Whose commands a call carries, in their order.
    bundles: HashMap<u64, Vec<(LeaseId, CallId)>>,
    next_bundle: u64,
    /// What guards asked for.
    asked: HashMap<LeaseId, Asked>,
    /// Leases that may still have answers to their acquire or healing to come, and when to look.
    fresh: VecDeque<(Instant, LeaseId)>,
    stale: VecDeque<(Instant, LeaseId)>,
    closed: bool,
}

/// An extension that a guard asked for.
struct Asked {
    ttl: Ttl,
    /// Whom to tell how it ended.
    told: oneshot::Sender<Event>,
    /// Not before that is a verdict its own: it may be that of an extension which was under way.
    begun: bool,
}

struct Renewing {
    kept: Arc<RenewedLease>,
    /// The client waits for it when it closes.
    counted: Counted,
    keep: Schedule,
    waits: Waits,
}

/// What a lease waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Due(Instant),
    Verdict(Instant),
    /// It is over, and its guard does not know it yet.
    Guard,
}

impl Waits {
    fn of(lease: &Lease, keep: &Schedule) -> Self {
        match (lease.validity(), lease.poll_timeout()) {
            (None, _) => Self::Guard,
            (Some(validity), Some(deadline)) => Self::Verdict(deadline.min(validity.until())),
            // To be extended no further.
            (Some(validity), None) if validity.until() >= lease.limit() => Self::Due(validity.until()),
            (Some(validity), None) => Self::Due(keep.due().min(validity.until())),
        }
    }
}

/// What happened to a lease, for its schedule and for the log.
fn tell(event: Event, driver: &Driver, keep: &mut Schedule, now: Instant) {
    let key = driver.lease().key();
    match event {
        Event::Extended(_) => keep.confirmed(driver.lease().round().started(), random()),
        Event::NotExtended(NotExtended::Unconfirmed) => {
            tracing::debug!(%key, "extension not confirmed, trying again");
            keep.unconfirmed(now, random());
        }
        Event::NotExtended(NotExtended::Lost | NotExtended::Expired) => {
            let why = driver.watched().lost_by(now).unwrap_or(Lost::Expired);
            tracing::warn!(%key, %why, "kept lock lost");
        }
        // A kept lease was held before, and is released elsewhere.
        Event::Held(_) | Event::Failed(_) | Event::Released(_) => {}
    }
}

/// Lets go of a lease whose holder was told, shortly before its end, that its time is over: it must not live on with nobody
/// who acts under it. Returns whether that is so.
fn give_up(driver: &mut Driver, now: Instant) -> bool {
    let lives = driver.lease().validity().is_some_and(|validity| validity.holds_at(now));
    let gives_up = lives && driver.watched().ran_out();
    if gives_up {
        tracing::warn!(key = %driver.lease().key(), "kept lock given up, its holder was told that it is lost");
        driver.mutate(|lease, clock| lease.abandon(clock.now()));
    }
    gives_up
}

impl Work {
    fn take_order(&mut self, order: Order) {
        match order {
            Order::Keep { id, kept, counted, keep } => {
                self.leases.insert(id, Renewing { kept, counted, keep, waits: Waits::Guard });
                self.fresh.push_back((self.clock.now().after(FRESH), id));
                if self.closed {
                    return self.end(id);
                }
                self.settle(id);
            }
            Order::Extend { id, ttl, told } => {
                if self.leases.contains_key(&id) {
                    self.asked.insert(id, Asked { ttl, told, begun: false });
                    self.wait(id, Waits::Due(Instant::default()));
                }
            }
            Order::GiveBack { id, to } => {
                if let Some(entry) = self.forget(id) {
                    let _ = to.send(entry.counted);
                }
            }
            Order::LetGo { id } => {
                if let Some(entry) = self.forget(id) {
                    // The releases are with the nodes before the client counts one lease less.
                    drop(entry.kept.lock().take());
                    drop(entry.counted);
                }
            }
            Order::Close { done } => {
                self.closed = true;
                let ids: Vec<_> = self.leases.keys().copied().collect();
                ids.into_iter().for_each(|id| self.end(id));
                let _ = done.send(());
            }
        }
    }

    fn forget(&mut self, id: LeaseId) -> Option<Renewing> {
        self.wait(id, Waits::Guard);
        self.asked.remove(&id);
        self.leases.remove(&id)
    }

    /// Ends a lease because the client closes. Its guard may still ask what became of it.
    fn end(&mut self, id: LeaseId) {
        self.wait(id, Waits::Guard);
        self.asked.remove(&id);
        let Some(entry) = self.leases.get(&id) else { return };
        if let Some(driver) = entry.kept.lock().as_mut() {
            driver.watched().over(Lost::Closed);
            driver.take_answers();
            driver.mutate(|lease, clock| lease.abandon(clock.now()));
        }
    }

    /// Deals answers out to the leases they are about.
    fn take_answers(&mut self) {
        for delivery in self.mailbox.take() {
            let Some(bundle) = self.bundles.remove(&delivery.call) else { continue };
            let (node, connection) = (delivery.node, delivery.connection);
            for (index, (id, call)) in bundle.into_iter().enumerate() {
                let reply = match &delivery.reply {
                    Reply::Each(replies) => replies.get(index).cloned(),
                    reply => Some(reply.clone()),
                };
                if let (Some(entry), Some(reply)) = (self.leases.get(&id), reply) {
                    if let Some(driver) = entry.kept.lock().as_mut() {
                        driver.answered(node, call, connection, reply);
                    }
                    self.settle(id);
                }
            }
        }
    }

    /// Begins the extensions that are due and ends the rounds that waited long enough. Returns whether there is more to do
    /// at once.
    fn pass(&mut self) -> bool {
        let now = self.clock.now();
        while let Some((_, id)) = self.under_way.first().copied().filter(|(at, _)| *at <= now) {
            self.wait(id, Waits::Guard);
            if let Some(entry) = self.leases.get(&id)
                && let Some(driver) = entry.kept.lock().as_mut()
            {
                let ttl = entry.keep.ttl();
                driver.mutate(|lease, _| {
                    lease.handle_timeout(now);
                    // The validity may end before the round does: there is no use in waiting for its answers any more.
                    if lease.validity().is_some_and(|validity| !validity.holds_at(now)) {
                        lease.extend(ttl, now);
                    }
                });
            }
            self.settle(id);
        }
        let is_due = |queue: &VecDeque<(Instant, LeaseId)>| queue.front().is_some_and(|(at, _)| *at <= now);
        while let Some((_, id)) = match is_due(&self.fresh) {
            true => self.fresh.pop_front(),
            false if is_due(&self.stale) => self.stale.pop_front(),
            false => None,
        } {
            self.rest(id, now);
        }
        let mut bundles = BTreeMap::new();
        let (mut begun, mut first) = (0, true);
        while begun < MOST_AT_ONCE && self.under_way.len() < MOST_UNDER_WAY {
            let Some((due, id)) = self.due.first().copied() else { break };
            let joins = self.leases.get(&id).is_some_and(|entry| entry.keep.may_join(now));
            // Somebody has to be due before others join.
            if due > now && (first || !joins) {
                break;
            }
            first = false;
            begun += 1;
            self.begin(id, now, &mut bundles);
        }
        self.send(bundles);
        begun == MOST_AT_ONCE
    }

    /// Lets a lease do without what it needs only while its first answers come in.
    fn rest(&mut self, id: LeaseId, now: Instant) {
        let Some(entry) = self.leases.get(&id) else { return };
        let rests = entry.kept.lock().as_mut().is_none_or(Driver::rest);
        if !rests {
            self.stale.push_back((now.after(STALE), id));
        }
        self.settle(id);
    }

    /// Begins one extension.
    fn begin(&mut self, id: LeaseId, now: Instant, bundles: &mut Bundles) {
        let Some(entry) = self.leases.get(&id) else { return };
        let asked = self.asked.get_mut(&id);
        let ttl = asked.as_ref().map_or(entry.keep.ttl(), |asked| asked.ttl);
        if let Some(asked) = asked {
            asked.begun = true;
        }
        if let Some(driver) = entry.kept.lock().as_mut()
            && !give_up(driver, now)
        {
            driver.extend_in_company(ttl, now, |send| {
                if let Operation::Extend { key, owner, ttl, carry } = send.operation {
                    let bundle = bundles.entry(send.node).or_default();
                    bundle.push((id, send.call, Extension { key, owner, ttl, carry }));
                }
            });
        }
        self.settle(id);
    }

    /// Hands each node the extensions that go to it, as few calls as possible.
    fn send(&mut self, bundles: Bundles) {
        let mut sent = Vec::new();
        for (node, bundle) in bundles {
            let Some(door) = self.nodes.get(node.index()) else { continue };
            let mut bundle = bundle.into_iter();
            loop {
                let (calls, extensions): (Vec<_>, Vec<_>) = bundle
                    .by_ref()
                    .take(MOST_EXTENSIONS)
                    .map(|(id, call, extension)| ((id, call), extension))
                    .unzip();
                let Some(operation) = together(extensions) else { break };
                let number = self.next_bundle;
                self.next_bundle += 1;
                self.bundles.insert(number, calls.clone());
                let mailbox = self.mailbox.clone();
                let admitted = door.send(Outgoing { operation, debt: None, mailbox, call: number });
                if admitted.is_err() {
                    self.bundles.remove(&number);
                }
                sent.push((node, calls, admitted));
            }
        }
        // What was written first: what was not may decide a round, after which the lease no longer knows it as its own.
        sent.sort_by_key(|(_, _, admitted)| admitted.is_err());
        for (node, calls, admitted) in sent {
            for (id, call) in calls {
                if let Some(entry) = self.leases.get(&id)
                    && let Some(driver) = entry.kept.lock().as_mut()
                {
                    driver.sent(node, call, admitted.clone());
                }
                self.settle(id);
            }
        }
    }

    /// Takes up what happened to a lease, and lets it wait for what comes next.
    fn settle(&mut self, id: LeaseId) {
        let Some(entry) = self.leases.get_mut(&id) else { return };
        let Renewing { kept, keep, .. } = entry;
        let mut kept = kept.lock();
        let waits = match kept.as_mut() {
            Some(driver) => {
                if give_up(driver, self.clock.now()) {
                    self.asked.remove(&id);
                }
                if let Some(event) = driver.poll_event() {
                    tell(event, driver, keep, self.clock.now());
                    let is_over = driver.lease().validity().is_none();
                    let answered = |asked: &Asked| asked.begun || is_over;
                    if self.asked.get(&id).is_some_and(answered)
                        && let Some(asked) = self.asked.remove(&id)
                    {
                        let _ = asked.told.send(event);
                    }
                }
                match self.asked.get(&id) {
                    Some(asked) if !asked.begun => Waits::Due(Instant::default()),
                    _ => Waits::of(driver.lease(), keep),
                }
            }
            None => Waits::Guard,
        };
        drop(kept);
        self.wait(id, waits);
    }

    /// Lets a lease wait for this, and for nothing else.
    fn wait(&mut self, id: LeaseId, waits: Waits) {
        let Some(entry) = self.leases.get_mut(&id).filter(|entry| entry.waits != waits) else { return };
        match std::mem::replace(&mut entry.waits, waits) {
            Waits::Due(at) => self.due.remove(&(at, id)),
            Waits::Verdict(at) => self.under_way.remove(&(at, id)),
            Waits::Guard => false,
        };
        match waits {
            Waits::Due(at) => self.due.insert((at, id)),
            Waits::Verdict(at) => self.under_way.insert((at, id)),
            Waits::Guard => false,
        };
    }

    /// When there is something to do, if nothing happens before.
    fn wake(&self) -> Instant {
        let due = self.due.first().filter(|_| self.under_way.len() < MOST_UNDER_WAY);
        let moments = due
            .into_iter()
            .chain(self.under_way.first())
            .chain(self.fresh.front())
            .chain(self.stale.front())
            .map(|(at, _)| *at);
        moments.min().unwrap_or(Instant::FAR_FUTURE)
    }
}

/// Extensions on their way to nodes, with whose they are.
type Bundles = BTreeMap<NodeId, Vec<(LeaseId, CallId, Extension)>>;

/// One operation for all of these; `None` for none.
fn together(mut extensions: Vec<Extension>) -> Option<Operation> {
    if extensions.len() == 1 {
        return extensions.pop().map(Operation::from);
    }
    Extensions::new(extensions).map(|extensions| Operation::ExtendAll { extensions })
}
