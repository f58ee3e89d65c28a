//! What is known of all nodes of one client together: which of them are one server, whether anybody met them before,
//! and what their grants are worth.
//!
//! Each node's task writes its own place, and which of all are one server; whoever counts votes reads what they are worth without a lock.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::watch;

use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::restart::{
    ClientClock, Double, Id, Identity, Jump, LOOKS_LAST, Role, Standing, StoodStill, double,
};
use crate::protocol::time::Instant;

/// For so long after a client was the first on its nodes, those that connect a little later are new as well. They were
/// all asked at the same time; a node that comes later may have been away, and may have forgotten.
const ADOPTING: Duration = Duration::from_secs(1);

/// No other node is the same server.
const NONE: u8 = u8::MAX;

/// The nodes of one client.
#[derive(Debug)]
pub(crate) struct NodeTable {
    quorum: Quorum,
    places: Mutex<Records>,
    cells: Box<[Cell]>,
    /// Changes with what is known of markers.
    changed: watch::Sender<u64>,
    /// Changes when every node is to be looked at.
    looks: AtomicU64,
    /// Changes when the client's clock was found to have stood still.
    standstills: AtomicU64,
}

#[derive(Debug)]
struct Records {
    places: Box<[NodeRecord]>,
    adopted: Option<Instant>,
    clock: ClientClock,
}

/// One node.
#[derive(Clone, Debug, Default)]
struct NodeRecord {
    facts: Facts,
    /// The marker that it had when it was last seen as a replica.
    followed_with: Option<Id>,
    /// Whether it had a marker when it was first asked, or was given one by somebody else since.
    had_marker: Option<bool>,
    /// It was given one by this client, as a node that nobody had met before.
    adopted: bool,
}

/// What a server told of itself, as far as it told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: Option<Arc<str>>,
    pub(crate) run_id: Option<Arc<str>>,
    pub(crate) role: Option<Role>,
    /// How long it had been running, and when that was read.
    pub(crate) uptime: Option<(Duration, Instant)>,
    pub(crate) append_only: Option<bool>,
    /// When it writes its append-only file to disk.
    pub(crate) fsync: Option<Arc<str>>,
    /// What it does when its memory is full.
    pub(crate) eviction: Option<Arc<str>>,
    pub(crate) marker: Option<Arc<[u8]>>,
    /// Its replication history, and the one that this follows on.
    pub(crate) replication: Option<Arc<str>>,
    pub(crate) former: Option<Arc<str>>,
    /// Whether scripts may be used.
    pub(crate) scripts: Option<ScriptUse>,
}

/// Whether scripts may be used on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptUse {
    Allowed,
    /// Refused: the server's own commands stand in their place.
    Replaced,
    /// Refused, and nothing stands in their place.
    Missing,
}

/// What is read with each vote.
#[derive(Debug)]
struct Cell {
    from: AtomicU64,
    replica: AtomicBool,
    several: AtomicBool,
    /// When the last look began; the end of time if none is needed.
    looked: AtomicU64,
    /// How often the node said that its marker, or all it had, may be gone; and how many of these a look has settled.
    doubts: AtomicU64,
    settled: AtomicU64,
    /// The node's task.
    task: AtomicWaker,
    /// The node beside which it has no vote, as the same server or with a copy of its marker.
    same_as: AtomicU8,
    /// Its marker is a copy of that node's, and is to be renewed.
    copied: AtomicBool,
    /// In nanoseconds, smoothed; 0 where none is known.
    round_trip: AtomicU64,
    /// How far its clock is ahead of this client's steady one, in microseconds.
    ahead: AtomicI64,
}

/// The node's clock was never read.
const UNREAD: i64 = i64::MIN;

/// How a node without a marker is to be marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adoption {
    /// Nobody has met any of these nodes before: its memory is as old as the server.
    Adopt,
    /// The other nodes were met before, so this one may have lost its marker and more: its memory begins now.
    Renew,
    /// Too few nodes have been asked to tell.
    Undecided,
}

impl NodeTable {
    pub(crate) fn new(quorum: Quorum) -> Arc<Self> {
        let cell = |_| Cell {
            from: AtomicU64::new(0),
            replica: AtomicBool::new(false),
            several: AtomicBool::new(false),
            looked: AtomicU64::new(Instant::FAR_FUTURE.as_nanos()),
            doubts: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            task: AtomicWaker::new(),
            same_as: AtomicU8::new(NONE),
            copied: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            ahead: AtomicI64::new(UNREAD),
        };
        let places = vec![NodeRecord::default(); quorum.nodes()].into_boxed_slice();
        Arc::new(Self {
            quorum,
            places: Mutex::new(Records { places, adopted: None, clock: ClientClock::new(quorum) }),
            cells: (0..quorum.nodes()).map(cell).collect(),
            changed: watch::Sender::new(0),
            looks: AtomicU64::new(0),
            standstills: AtomicU64::new(0),
        })
    }

    /// What the node's grants are worth at `now`, in answers that were read by then.
    pub(crate) fn standing(&self, node: NodeId, now: Instant) -> Standing {
        let Some(cell) = self.cells.get(node.index()) else { return Standing::COUNTS };
        // Written in the opposite order, so that nobody sees a bar lifted before the guard that follows it.
        if cell.replica.load(Ordering::Acquire) {
            return Standing::Replica;
        }
        if cell.several.load(Ordering::Acquire) {
            return Standing::Several;
        }
        match cell.same_as.load(Ordering::Acquire) {
            NONE if cell.settled.load(Ordering::Acquire) != cell.doubts.load(Ordering::Acquire) => {
                Standing::UNSEEN
            }
            NONE => {
                let looked = Instant::from_nanos(cell.looked.load(Ordering::Acquire));
                let from = Instant::from_nanos(cell.from.load(Ordering::Acquire));
                Standing::CountsFrom(from).as_seen(looked, LOOKS_LAST, now)
            }
            earlier => Standing::SameAs(NodeId::new(usize::from(earlier))),
        }
    }

    /// The node may have forgotten: until a look that begins later, no grant of it counts. An answer that the node gave
    /// afterwards has to be read afterwards.
    pub(crate) fn doubt(&self, node: NodeId) {
        let Some(cell) = self.cells.get(node.index()) else { return };
        cell.doubts.fetch_add(1, Ordering::AcqRel);
        cell.task.wake();
    }

    /// How often the node was doubted: what a look settles that begins now.
    pub(crate) fn doubts(&self, node: NodeId) -> u64 {
        self.cells.get(node.index()).map_or(0, |cell| cell.doubts.load(Ordering::Acquire))
    }

    /// Whether the node is to be looked at before its grants count.
    pub(crate) fn is_doubted(&self, node: NodeId) -> bool {
        let cell = self.cells.get(node.index());
        cell.is_some_and(|cell| cell.settled.load(Ordering::Acquire) != cell.doubts.load(Ordering::Acquire))
    }

    /// A look that began at `began`, when the node had been doubted so often, has been taken in.
    pub(crate) fn looked(&self, node: NodeId, doubts: u64, began: Instant) {
        let Some(cell) = self.cells.get(node.index()) else { return };
        cell.looked.store(began.as_nanos(), Ordering::Release);
        cell.settled.fetch_max(doubts, Ordering::AcqRel);
    }

    /// Who is woken when the node is to be looked at.
    pub(crate) fn wake_for_looks(&self, node: NodeId, task: &Waker) {
        if let Some(cell) = self.cells.get(node.index()) {
            cell.task.register(task);
        }
    }

    /// Has every node looked at as soon as may be.
    pub(crate) fn ask_for_looks(&self) {
        self.looks.fetch_add(1, Ordering::AcqRel);
        self.cells.iter().for_each(|cell| cell.task.wake());
    }

    /// Changes when every node is to be looked at.
    pub(crate) fn looks_asked(&self) -> u64 {
        self.looks.load(Ordering::Acquire)
    }

    /// A node's clock jumped ahead. If that shows that the client's clock stood still, `put_forward` corrects it first, and
    /// then every node's task hears of it.
    pub(crate) fn jumped(&self, node: NodeId, jump: Jump, put_forward: impl FnOnce(Duration)) {
        let mut places = self.lock();
        if let Some(stood) = places.clock.handle_jump(node, jump) {
            put_forward(stood.by());
            self.standstills.fetch_add(1, Ordering::AcqRel);
        }
        drop(places);
        self.ask_for_looks();
    }

    /// Changes when the client's clock was found to have stood still.
    pub(crate) fn standstills(&self) -> u64 {
        self.standstills.load(Ordering::Acquire)
    }

    /// When the client's clock stood still last.
    pub(crate) fn stood_still(&self) -> Option<StoodStill> {
        self.lock().clock.stood_still()
    }

    /// What the node's own memory and role are worth.
    pub(crate) fn set_standing(&self, node: NodeId, standing: Standing) {
        let Some(cell) = self.cells.get(node.index()) else { return };
        if let Standing::CountsFrom(from) = standing {
            cell.from.store(from.as_nanos(), Ordering::Release);
        }
        cell.several.store(standing == Standing::Several, Ordering::Release);
        cell.replica.store(standing == Standing::Replica, Ordering::Release);
    }

    /// A call to the node was answered after so long.
    pub(crate) fn note_round_trip(&self, node: NodeId, round_trip: Duration) {
        let Some(cell) = self.cells.get(node.index()) else { return };
        let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).max(1);
        let before = cell.round_trip.load(Ordering::Relaxed);
        let smoothed = if before == 0 { nanos } else { before - before / 8 + nanos / 8 };
        cell.round_trip.store(smoothed.max(1), Ordering::Relaxed);
    }

    /// How long the node takes to answer, smoothed.
    pub(crate) fn round_trip(&self, node: NodeId) -> Option<Duration> {
        let nanos = self.cells.get(node.index())?.round_trip.load(Ordering::Relaxed);
        (nanos != 0).then(|| Duration::from_nanos(nanos))
    }

    /// The node's clock showed this time, in microseconds since 1970, when it was read at `at`.
    pub(crate) fn note_time(&self, node: NodeId, micros: u64, at: Instant) {
        let Some(cell) = self.cells.get(node.index()) else { return };
        let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
        cell.ahead.store(signed(micros).saturating_sub(signed(at.as_nanos() / 1_000)), Ordering::Relaxed);
    }

    /// What the clocks of the nodes show at `now`, in microseconds since 1970: of all that were ever read, those that are away
    /// by now included.
    pub(crate) fn times(&self, now: Instant) -> impl Iterator<Item = u64> {
        let ahead = self.cells.iter().map(|cell| cell.ahead.load(Ordering::Relaxed));
        let read = ahead.filter(|ahead| *ahead != UNREAD);
        read.map(move |ahead| (now.as_nanos() / 1_000).saturating_add_signed(ahead))
    }

    /// What the node told of itself last.
    pub(crate) fn facts(&self, node: NodeId) -> Facts {
        self.lock().places.get(node.index()).map(|place| place.facts.clone()).unwrap_or_default()
    }

    /// What the node tells of itself now. What follows for the votes of all nodes is said once.
    pub(crate) fn note(&self, node: NodeId, facts: Facts) {
        let mut places = self.lock();
        let Some(place) = places.places.get_mut(node.index()) else { return };
        if facts.role == Some(Role::Replica) && facts.marker.is_some() {
            place.followed_with = facts.marker.as_deref().map(Id::of);
        }
        place.facts = facts;
        let identities: Vec<_> = places.places.iter().map(NodeRecord::identity).collect();
        for (index, cell) in self.cells.iter().enumerate() {
            let found = double(&identities, index);
            let other = found.map_or(NONE, |found| found.other() as u8);
            let copied = matches!(found, Some(Double::CopyOf(_)));
            cell.copied.store(copied, Ordering::Release);
            let before = cell.same_as.swap(other, Ordering::AcqRel);
            let (Some(found), true) = (found, before != other) else { continue };
            let (node, other) = (NodeId::new(index), NodeId::new(found.other()));
            match found {
                Double::SameAs(_) => {
                    tracing::warn!(%node, %other, "two addresses are one server, the later does not vote");
                }
                Double::CopyOf(_) => tracing::warn!(
                    %node, %other,
                    "this node was a replica and has the other's marker, it does not vote until it has its own"
                ),
            }
        }
    }

    /// The node beside which this one has no vote, as the same server or with a copy of its marker.
    pub(crate) fn double_of(&self, node: NodeId) -> Option<NodeId> {
        match self.cells.get(node.index())?.same_as.load(Ordering::Acquire) {
            NONE => None,
            other => Some(NodeId::new(other.into())),
        }
    }

    /// Whether the node's marker is a copy of another node's, from the time when it was a replica.
    pub(crate) fn has_copied_marker(&self, node: NodeId) -> bool {
        self.cells.get(node.index()).is_some_and(|cell| cell.copied.load(Ordering::Acquire))
    }

    /// The node was asked for its marker, for the first time or again.
    pub(crate) fn saw_marker(&self, node: NodeId, found: bool) {
        let mut places = self.lock();
        if let Some(place) = places.places.get_mut(node.index()) {
            // One that this client adopted has its marker from there, whoever was quicker.
            let met = found && !place.adopted;
            place.had_marker = Some(place.had_marker.unwrap_or(found) || met);
        }
        drop(places);
        self.changed.send_modify(|count| *count += 1);
    }

    /// How a node without a marker is to be marked. One that is adopted is so once: it is taken for done. All nodes have
    /// to be asked before, or after some `patience` a quorum: of the others one may have a marker, which tells that
    /// these lost theirs.
    pub(crate) fn adopt(&self, node: NodeId, patience: bool, now: Instant) -> Adoption {
        let mut places = self.lock();
        let adopting = places.adopted.map(|since| now.since(since) < ADOPTING);
        let (asked, met) =
            places.places.iter().fold((0, false), |(asked, met), place| match place.had_marker {
                Some(had) => (asked + 1, met || had),
                None => (asked, met),
            });
        let Some(place) = places.places.get_mut(node.index()) else { return Adoption::Undecided };
        if met || place.adopted || adopting == Some(false) {
            return Adoption::Renew;
        }
        let enough = if patience { self.quorum.nodes() } else { self.quorum.needed() };
        if asked < enough && adopting.is_none() {
            return Adoption::Undecided;
        }
        place.adopted = true;
        places.adopted.get_or_insert(now);
        Adoption::Adopt
    }

    /// Looks again whenever more is known of markers.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NodeRecord {
    fn identity(&self) -> Identity {
        let id = |text: &Option<Arc<str>>| text.as_ref().map(|text| Id::of(text.as_bytes()));
        let facts = &self.facts;
        Identity {
            run: id(&facts.run_id),
            role: facts.role,
            marker: facts.marker.as_deref().map(Id::of),
            replication: id(&facts.replication),
            former: id(&facts.former),
            followed_with: self.followed_with,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(index: usize) -> NodeId {
        NodeId::new(index)
    }

    fn node_table() -> Arc<NodeTable> {
        NodeTable::new(Quorum::of(3).unwrap())
    }

    fn facts(run: &str, marker: &str) -> Facts {
        Facts { run_id: Some(run.into()), marker: Some(marker.as_bytes().into()), ..Facts::default() }
    }

    fn at(millis: u64) -> Instant {
        Instant::default().after(Duration::from_millis(millis))
    }

    /// Of two addresses that are one server by run or by marker the later does not vote, until it is another again.
    #[test]
    fn the_later_of_two_does_not_vote() {
        let node_table = node_table();
        node_table.note(node(2), facts("a", "x"));
        node_table.note(node(1), facts("b", "y"));
        assert_eq!([0, 1, 2].map(|index| node_table.double_of(node(index))), [None; 3]);
        node_table.note(node(0), facts("a", "z"));
        assert_eq!(node_table.double_of(node(2)), Some(node(0)), "found with the earlier one's connection");
        assert_eq!(node_table.standing(node(2), at(0)), Standing::SameAs(node(0)));
        assert_eq!(
            (node_table.standing(node(0), at(0)), node_table.standing(node(1), at(0))),
            (Standing::COUNTS, Standing::COUNTS)
        );

        node_table.note(node(2), facts("c", "y"));
        assert_eq!(node_table.double_of(node(2)), Some(node(1)), "a copied marker");
        assert!(!node_table.has_copied_marker(node(2)), "nothing shows which of the two is the copy");
        node_table.note(node(2), facts("c", "w"));
        assert_eq!(node_table.standing(node(2), at(0)), Standing::COUNTS);
    }

    /// A replica takes no vote from its primary, and after its promotion stands aside with the copied marker until it has
    /// another.
    #[test]
    fn a_promoted_replica_leaves_its_primary_the_vote() {
        let node_table = node_table();
        node_table.note(node(1), facts("b", "x"));
        node_table.note(node(0), Facts { role: Some(Role::Replica), ..facts("a", "x") });
        assert_eq!(node_table.double_of(node(1)), None);
        node_table.note(node(0), Facts { role: Some(Role::Primary), ..facts("a", "x") });
        assert_eq!((node_table.double_of(node(0)), node_table.double_of(node(1))), (Some(node(1)), None));
        assert!(node_table.has_copied_marker(node(0)) && !node_table.has_copied_marker(node(1)));
        node_table.note(node(0), facts("a", "new"));
        assert_eq!((node_table.double_of(node(0)), node_table.has_copied_marker(node(0))), (None, false));
    }

    /// What a node said of its memory holds until a look that began later, and not until one that was under way.
    #[test]
    fn only_a_later_look_settles_a_doubt() {
        let node_table = node_table();
        let before = node_table.doubts(node(0));
        node_table.doubt(node(0));
        assert_eq!(node_table.standing(node(0), at(0)), Standing::UNSEEN);
        assert_eq!(node_table.standing(node(1), at(0)), Standing::COUNTS);

        node_table.looked(node(0), before, at(0));
        assert!(node_table.is_doubted(node(0)), "that look began before");
        node_table.looked(node(0), node_table.doubts(node(0)), at(1));
        assert_eq!(node_table.standing(node(0), at(1)), Standing::COUNTS);
    }

    /// A look holds for two intervals, to the nanosecond.
    #[test]
    fn looks_go_out_of_date() {
        let node_table = node_table();
        node_table.looked(node(0), 0, at(0));
        assert_eq!(node_table.standing(node(0), at(10_000)), Standing::COUNTS);
        let later = at(10_000).after(Duration::from_nanos(1));
        assert_eq!(node_table.standing(node(0), later), Standing::UNSEEN);
        node_table.looked(node(0), 0, at(10_000));
        assert_eq!(node_table.standing(node(0), later), Standing::COUNTS);
    }

    /// Nodes are adopted where a quorum was asked and none had been met before, each once and only at first.
    #[test]
    fn adoption_is_for_nodes_that_nobody_met() {
        let node_table = node_table();
        node_table.saw_marker(node(0), false);
        assert_eq!(node_table.adopt(node(0), false, at(0)), Adoption::Undecided);
        node_table.saw_marker(node(1), false);
        assert_eq!(node_table.adopt(node(0), true, at(1)), Adoption::Undecided, "the third may have one");
        assert_eq!(node_table.adopt(node(0), false, at(1)), Adoption::Adopt);
        assert_eq!(node_table.adopt(node(1), true, at(2)), Adoption::Adopt);
        assert_eq!(node_table.adopt(node(1), true, at(3)), Adoption::Renew, "once");
        node_table.saw_marker(node(2), false);
        assert_eq!(node_table.adopt(node(2), true, at(2_000)), Adoption::Renew, "too late");
    }

    /// Nodes that somebody else marked after they were first asked have been met, and are never taken for new afterwards.
    #[test]
    fn nodes_that_others_marked_are_met() {
        let node_table = node_table();
        (0..3).for_each(|index| node_table.saw_marker(node(index), false));
        (0..3).for_each(|index| node_table.saw_marker(node(index), true));

        node_table.saw_marker(node(0), false);

        assert_eq!(node_table.adopt(node(0), false, at(0)), Adoption::Renew);
    }

    /// One marker is enough to show that the nodes were met before, and that the others may have lost theirs.
    #[test]
    fn a_marker_anywhere_rules_adoption_out() {
        let node_table = node_table();
        node_table.saw_marker(node(0), false);
        node_table.saw_marker(node(1), true);
        assert_eq!(node_table.adopt(node(0), true, at(0)), Adoption::Renew);
    }

    /// The clocks of all nodes that were ever read go on from there, whichever way they are off.
    #[test]
    fn clocks_of_nodes_go_on() {
        let node_table = node_table();
        assert_eq!(node_table.times(at(5)).collect::<Vec<_>>(), [0; 0]);
        node_table.note_time(node(0), 1_000_000, at(5));
        node_table.note_time(node(2), 2_000, at(5));
        assert_eq!(node_table.times(at(7)).collect::<Vec<_>>(), [1_002_000, 4_000]);
        node_table.note_time(node(0), 0, at(10));
        node_table.note_time(node(1), u64::MAX, at(0));
        assert_eq!(node_table.times(at(9)).collect::<Vec<_>>(), [0, i64::MAX as u64 + 9_000, 6_000]);
    }

    /// A round trip is smoothed, and never unknown again.
    #[test]
    fn round_trips_are_smoothed() {
        let node_table = node_table();
        assert_eq!(node_table.round_trip(node(0)), None);
        node_table.note_round_trip(node(0), Duration::from_micros(800));
        node_table.note_round_trip(node(0), Duration::from_micros(1_600));
        assert_eq!(node_table.round_trip(node(0)), Some(Duration::from_micros(900)));
    }
}
