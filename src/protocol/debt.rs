//! Doubts and debts: what is not known about one owner on one node, and the duty to clear it.
//!
//! A [`Doubt`] is kept with the lease while it lives. Undo and release turn it into a [`Debt`], which travels with the
//! command; where the answer settles it, nothing more happens, and otherwise the [`Ledger`] repeats the command.
//! Upholds rules 3 and 4.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::message::{ClientId, ConnectionId, Key, NotSent, Operation, Owner, Reply};
use super::quorum::NodeId;
use super::time::Instant;
use super::validity::{Drift, Ttl};

/// How long a debt is kept beyond the last possible expiry of its key: room for a command that was on its way for
/// some time before the server counted its TTL.
pub const MARGIN: Duration = Duration::from_secs(1);

/// Most debts kept for one node. At 100 bytes each, a node that is away can cost a client some 10 MB.
pub const MAX_DEBTS_PER_NODE: usize = 65_536;

/// Most settlements in flight to one node: enough to clear 65 536 debts in seconds, few enough that a node that just
/// came back is not flooded.
pub const MAX_IN_FLIGHT: usize = 256;

/// Pause before the first repetition on one node; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between two repetitions, and between two looks at a node that takes nothing.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is not known about one owner on one node: which sets were sent there, on which connection, and which of them
/// were never answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Doubt {
    /// The connection of the latest set.
    connection: ConnectionId,
    /// Unanswered sets on that connection.
    here: u8,
    /// Unanswered sets on earlier connections.
    elsewhere: u8,
    /// Whether a set was answered "granted".
    granted: bool,
    /// Whether a set was ever written.
    written: bool,
    /// When a key from what was sent so far is gone at the latest, if the last of it is executed without delay.
    lives_until: Instant,
    /// Until when the owner may stand in the node's line, and be handed the key, as long as no answer says that it left.
    stands_until: Instant,
}

impl Doubt {
    /// What is known of an owner that a node names to us: it may be there, and nothing is on its way.
    pub fn named(now: Instant, ttl: Ttl) -> Self {
        let lives_until = now.after(ttl.duration());
        Self { granted: true, written: true, lives_until, ..Self::default() }
    }

    /// What is known of an owner of which a set may still be on its way, from a process that handed it on.
    pub fn owed(now: Instant, ttl: Ttl) -> Self {
        Self { granted: false, elsewhere: 1, ..Self::named(now, ttl) }
    }

    /// A set or claim was handed to a connection.
    pub fn wrote(&mut self, connection: ConnectionId, now: Instant, ttl: Ttl) {
        if self.connection != connection {
            self.elsewhere = self.elsewhere.saturating_add(self.here);
            self.here = 0;
            self.connection = connection;
        }
        self.here = self.here.saturating_add(1);
        self.written = true;
        self.lengthened(now, ttl);
    }

    /// A look was handed to a connection, by which the owner enters the line or stays in it: it may be given the key at once,
    /// for the length of a hand-over, or be handed it as long as its entry lives.
    pub fn looked(&mut self, connection: ConnectionId, now: Instant, hand_over: Ttl, life: Duration) {
        self.wrote(connection, now, hand_over);
        self.stands_until = self.stands_until.max(now.after(life));
    }

    /// An extension was handed to a connection: a key that is there may live longer.
    pub fn lengthened(&mut self, now: Instant, ttl: Ttl) {
        self.lives_until = self.lives_until.max(now.after(ttl.duration()));
    }

    /// The answer to a set or claim. [`Reply::Unknown`] is none: the doubt stays.
    pub fn answered(&mut self, connection: ConnectionId, reply: &Reply) {
        if matches!(reply, Reply::Unknown(_)) {
            return;
        }
        let unanswered = if connection == self.connection { &mut self.here } else { &mut self.elsewhere };
        *unanswered = unanswered.saturating_sub(1);
        // Who stands in line may be given the key at any moment until it leaves.
        if matches!(
            reply,
            Reply::Granted | Reply::Fenced(_) | Reply::Uncounted(_) | Reply::Voted | Reply::Queued(_)
        ) {
            self.granted = true;
        }
    }

    /// Whether everything sent went over this connection, so that the node has executed all of it before whatever was
    /// sent there later.
    pub fn is_all_on(&self, connection: ConnectionId) -> bool {
        self.connection == connection && self.elsewhere == 0
    }

    /// Whether every set and claim was answered.
    pub fn is_answered(&self) -> bool {
        self.here == 0 && self.elsewhere == 0
    }

    /// Whether anything was ever written, so that the node must be told on release.
    pub fn is_written(&self) -> bool {
        self.written
    }

    /// Whether the node certainly carries nothing of this owner, now and later.
    pub fn is_clear(&self) -> bool {
        !self.granted && self.is_answered()
    }

    /// Whether the answer to a compare-and-delete, received on `connection`, leaves nothing open (rule 4).
    ///
    /// On the connection of the sets, every answer but an error does: the node executed them before. On another
    /// one, an old set may still be on its way. There "deleted" settles it, if a single set is all that can have made
    /// the key; "not yours" settles nothing that was not answered.
    pub fn is_settled_by(&self, connection: ConnectionId, reply: &Reply) -> bool {
        let unanswered = self.elsewhere.saturating_add(self.here);
        let open = if connection == self.connection { self.elsewhere } else { unanswered };
        match reply {
            // An unanswered set on this connection may have made the deleted key as well as the old one elsewhere.
            Reply::Granted | Reply::HandedOver => open == 0 || (unanswered == 1 && !self.granted),
            reply if reply.denies_ownership() => open == 0,
            _ => false,
        }
    }
}

/// The duty to clear one doubtful outcome on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Debt {
    /// The node.
    pub node: NodeId,
    /// The key.
    pub key: Key,
    /// The owner to be cleared.
    pub owner: Owner,
    /// Where the node may keep a line: who owes it, and the length of a hand-over.
    line: Option<(ClientId, Ttl)>,
    doubt: Doubt,
    /// When a key of this owner must be gone.
    ends: Instant,
}

impl Debt {
    /// The debt that an undo or release leaves until it is settled. It ends by itself when the key must be gone:
    /// last send + TTL + a margin for the clocks' rates and for the way.
    pub fn new(node: NodeId, key: Key, owner: Owner, doubt: Doubt, ttl: Ttl, drift: Drift) -> Self {
        let ends = doubt.lives_until.after(drift.allowance(ttl)).after(MARGIN);
        Self { node, key, owner, line: None, doubt, ends }
    }

    /// The same on a node that may keep a line for the key: what settles it also hands over, and leaves the line.
    pub fn in_line(mut self, client: ClientId, hand_over: Ttl) -> Self {
        self.line = Some((client, hand_over));
        self
    }

    /// When it ends at the latest.
    pub fn ends(&self) -> Instant {
        self.ends.max(self.doubt.stands_until.after(MARGIN))
    }

    /// What an answer to its compare-and-delete leaves of it: nothing where it settles it. Any answer says that the owner
    /// stands in line no more, and what is still open is a key.
    ///
    /// A look that is executed late nevertheless, on a dead connection, may give it the key for the length of a hand-over,
    /// like any vote, or let it enter once more: then it is handed the key in vain, at most once, and its client passes it
    /// on.
    pub fn after(mut self, connection: ConnectionId, reply: &Reply) -> Option<Self> {
        if self.doubt.is_settled_by(connection, reply) {
            return None;
        }
        if reply.answers_release() {
            self.doubt.stands_until = Instant::default();
        }
        Some(self)
    }

    /// The command that settles it.
    pub fn operation(&self) -> Operation {
        let (key, owner) = (self.key.clone(), self.owner);
        match self.line {
            Some((client, hand_over)) => Operation::HandOver { key, owner, client, hand_over },
            None => Operation::Release { key, owner },
        }
    }
}

/// Names one debt in a [`Ledger`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DebtId(pub u64);

/// A settlement to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// The debt, for the answer.
    pub debt: DebtId,
    /// Where to.
    pub node: NodeId,
    /// What to send.
    pub operation: Operation,
}

/// How the debts so far ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// Cleared by an answer.
    pub answered: u64,
    /// Left to the TTL: nothing settled them before the key must have expired.
    pub expired: u64,
    /// Given up for want of room.
    pub dropped: u64,
}

/// All open debts of a client, and when each is to be tried again.
///
/// Drive it like everything here: `owe`, `handle_reply` and `handle_usable` in, then [`Ledger::poll_send`] until it has
/// nothing, then wait until [`Ledger::poll_timeout`] or the next reply.
#[derive(Debug, Default)]
pub struct Ledger {
    debts: BTreeMap<DebtId, Entry>,
    nodes: BTreeMap<NodeId, NodeDebts>,
    next: u64,
    settled: Settled,
}

#[derive(Debug)]
struct Entry {
    debt: Debt,
    /// When it is due; `None` while its settlement is in flight.
    due: Option<Instant>,
    repetitions: u32,
}

#[derive(Debug, Default)]
struct NodeDebts {
    due: BTreeSet<(Instant, DebtId)>,
    ends: BTreeSet<(Instant, DebtId)>,
    in_flight: usize,
    /// The node takes nothing: look again then, with one debt.
    blocked_until: Option<Instant>,
}

impl Ledger {
    /// Takes on a debt, to be tried at once. With no room left, the debt of that node which ends first is given up:
    /// its key expires soonest.
    pub fn owe(&mut self, debt: Debt, now: Instant) {
        let id = DebtId(self.next);
        self.next += 1;
        let node = self.nodes.entry(debt.node).or_default();
        node.due.insert((now, id));
        node.ends.insert((debt.ends(), id));
        let full = node.ends.len() > MAX_DEBTS_PER_NODE;
        let first_to_end = node.ends.first().map(|(_, id)| *id);
        self.debts.insert(id, Entry { debt, due: Some(now), repetitions: 0 });
        if let (true, Some(first)) = (full, first_to_end) {
            self.remove(first);
            self.settled.dropped += 1;
        }
    }

    /// The answer to a settlement.
    pub fn handle_reply(&mut self, id: DebtId, connection: ConnectionId, reply: &Reply, now: Instant) {
        let Some(entry) = self.debts.get_mut(&id) else { return };
        let Some(node) = self.nodes.get_mut(&entry.debt.node) else { return };
        if entry.due.is_none() {
            node.in_flight = node.in_flight.saturating_sub(1);
        }
        let blocked = match reply {
            // Nobody tells when a full node has room again, which is a matter of round trips.
            Reply::NotSent(NotSent::Backlog) => Some(FIRST_PAUSE),
            Reply::NotSent(_) => Some(LONGEST_PAUSE),
            _ => None,
        };
        node.blocked_until = blocked.map(|pause| now.after(pause));
        let Some(left) = entry.debt.clone().after(connection, reply) else {
            self.remove(id);
            self.settled.answered += 1;
            return;
        };
        if left.ends() != entry.debt.ends() {
            node.ends.remove(&(entry.debt.ends(), id));
            node.ends.insert((left.ends(), id));
            entry.debt = left;
        }
        let due = if blocked.is_none() {
            let pause = FIRST_PAUSE.saturating_mul(1 << entry.repetitions.min(10)).min(LONGEST_PAUSE);
            entry.repetitions += 1;
            now.after(pause)
        } else {
            now
        };
        if let Some(before) = entry.due.replace(due) {
            node.due.remove(&(before, id));
        }
        node.due.insert((due, id));
    }

    /// A node takes work again: everything owed to it is due at once.
    pub fn handle_usable(&mut self, node: NodeId, now: Instant) {
        let Some(debts) = self.nodes.get_mut(&node) else { return };
        debts.blocked_until = None;
        let waiting = std::mem::take(&mut debts.due);
        for (_, id) in waiting {
            debts.due.insert((now, id));
            if let Some(entry) = self.debts.get_mut(&id) {
                entry.due = Some(now);
                entry.repetitions = 0;
            }
        }
    }

    /// The next settlement to send, if one is due.
    pub fn poll_send(&mut self, now: Instant) -> Option<Settlement> {
        self.expire(now);
        let (id, node) = self.nodes.iter_mut().find_map(|(id, node)| {
            if node.blocked_until.is_some_and(|until| now < until) || node.in_flight >= MAX_IN_FLIGHT {
                return None;
            }
            let (due, debt) = *node.due.first()?;
            (due <= now).then(|| {
                node.due.pop_first();
                node.in_flight += 1;
                // One debt at a time looks whether a blocked node takes work again.
                node.blocked_until = node.blocked_until.map(|_| now.after(LONGEST_PAUSE));
                (debt, *id)
            })
        })?;
        let entry = self.debts.get_mut(&id)?;
        entry.due = None;
        Some(Settlement { debt: id, node, operation: entry.debt.operation() })
    }

    /// When to poll again, if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let moments = self.nodes.values().filter_map(|node| {
            let due = node.due.first().filter(|_| node.in_flight < MAX_IN_FLIGHT);
            let due = due.map(|(due, _)| node.blocked_until.unwrap_or_default().max(*due));
            let ends = node.ends.first().map(|(ends, _)| *ends);
            due.into_iter().chain(ends).min()
        });
        moments.min()
    }

    /// How many debts are open.
    pub fn open(&self) -> usize {
        self.debts.len()
    }

    /// How many debts are open on one node.
    pub fn open_on(&self, node: NodeId) -> usize {
        self.nodes.get(&node).map_or(0, |node| node.ends.len())
    }

    /// How the debts so far ended.
    pub fn settled(&self) -> Settled {
        self.settled
    }

    fn expire(&mut self, now: Instant) {
        let over: Vec<DebtId> = self
            .nodes
            .values()
            .flat_map(|node| node.ends.iter().take_while(|(ends, _)| *ends <= now).map(|(_, id)| *id))
            .collect();
        for id in over {
            self.remove(id);
            self.settled.expired += 1;
        }
    }

    fn remove(&mut self, id: DebtId) {
        let Some(entry) = self.debts.remove(&id) else { return };
        let Some(node) = self.nodes.get_mut(&entry.debt.node) else { return };
        node.ends.remove(&(entry.debt.ends(), id));
        match entry.due {
            Some(due) => {
                node.due.remove(&(due, id));
            }
            None => node.in_flight = node.in_flight.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Holder, Unknown};
    use super::*;

    const C1: ConnectionId = ConnectionId(1);
    const C2: ConnectionId = ConnectionId(2);

    fn at(millis: u64) -> Instant {
        Instant::default().after(Duration::from_millis(millis))
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_secs(10), Drift::default(), Duration::from_secs(10)).unwrap()
    }

    fn lost() -> Reply {
        Reply::Unknown(Unknown::ConnectionLost("reset".into()))
    }

    fn unanswered_set() -> Doubt {
        let mut doubt = Doubt::default();
        doubt.wrote(C1, at(0), ttl());
        doubt
    }

    fn debt(doubt: Doubt, owner: u8) -> Debt {
        let owner = Owner::from_bytes([owner; 16]);
        Debt::new(NodeId::new(0), Key::new(*b"k"), owner, doubt, ttl(), Drift::default())
    }

    /// Rule 4: on the set's own connection any answer settles; on a later one only "deleted".
    #[test]
    fn not_yours_on_another_connection_settles_nothing() {
        let doubt = unanswered_set();

        assert!(doubt.is_settled_by(C1, &Reply::Absent));
        assert!(doubt.is_settled_by(C1, &Reply::Granted));
        assert!(doubt.is_settled_by(C2, &Reply::Granted));
        for reply in [Reply::Absent, Reply::NotOurs, Reply::Held(Holder::UNNAMED), lost()] {
            assert!(!doubt.is_settled_by(C2, &reply), "{reply:?}");
        }
        assert!(!doubt.is_settled_by(C1, &Reply::Refused("MISCONF".into())));
    }

    /// Who has left the line, as an answer says, owes only for the key that a late look may have brought.
    #[test]
    fn leaving_the_line_shortens_a_debt() {
        let (mut ledger, hand_over) = (Ledger::default(), Ttl::unchecked(Duration::from_millis(500)));
        let mut doubt = Doubt::default();
        doubt.looked(C1, at(0), hand_over, Duration::from_secs(60));
        let owner = Owner::from_bytes([1; 16]);
        let debt = Debt::new(NodeId::new(0), Key::new(*b"k"), owner, doubt, hand_over, Drift::default());
        let debt = debt.in_line(ClientId::from_bytes([2; 16]), hand_over);
        ledger.owe(debt, at(10));
        let first = ledger.poll_send(at(10)).unwrap();
        ledger.handle_reply(first.debt, C2, &lost(), at(20));
        assert!(ledger.poll_send(at(1_600)).is_some(), "no answer, no end before the entry's");

        ledger.handle_reply(first.debt, C2, &Reply::Absent, at(1_610));

        assert_eq!(ledger.poll_send(at(1_610)), None);
        assert_eq!((ledger.open(), ledger.settled().expired), (0, 1));
    }

    /// An answered set is no doubt any more: "not yours" settles it on every connection.
    #[test]
    fn answered_set_is_settled_anywhere() {
        let mut doubt = unanswered_set();
        doubt.answered(C1, &Reply::Granted);

        assert!(!doubt.is_clear(), "the key is there");
        assert!(doubt.is_settled_by(C2, &Reply::Absent));
        assert!(doubt.is_settled_by(C2, &Reply::Granted));
    }

    /// With a granted key and an old unanswered set, "deleted" may speak of the granted one alone.
    #[test]
    fn deleted_does_not_settle_an_older_unanswered_set() {
        let mut doubt = unanswered_set();
        doubt.wrote(C2, at(5), ttl());
        doubt.answered(C2, &Reply::Granted);

        assert!(!doubt.is_settled_by(C2, &Reply::Granted));
        assert!(!doubt.is_settled_by(C2, &Reply::Absent));
    }

    /// The same while the newer set is unanswered: its release, on its own connection, deletes what it made.
    #[test]
    fn deleted_does_not_settle_an_older_set_behind_an_unanswered_one() {
        let mut doubt = unanswered_set();
        doubt.wrote(C2, at(5), ttl());

        assert!(!doubt.is_settled_by(C2, &Reply::Granted));
        doubt.answered(C2, &Reply::Held(Holder::UNNAMED));
        assert!(doubt.is_settled_by(C2, &Reply::Granted), "only the older one can have made it");
    }

    #[test]
    fn refused_or_held_set_leaves_no_doubt() {
        for reply in
            [Reply::Held(Holder::UNNAMED), Reply::Refused("OOM".into()), Reply::NotSent(NotSent::Suspect)]
        {
            let mut doubt = unanswered_set();
            doubt.answered(C1, &reply);
            assert!(doubt.is_clear() && doubt.is_written());
        }
        let mut doubt = unanswered_set();
        doubt.answered(C1, &lost());
        assert!(!doubt.is_clear());
    }

    /// What a node names to us may be there for a TTL, and nothing is on its way.
    #[test]
    fn named_owner_may_be_there() {
        let doubt = Doubt::named(at(7), ttl());

        assert!(doubt.is_written() && doubt.is_answered() && !doubt.is_clear());
        assert!(doubt.is_settled_by(C1, &Reply::Absent));
        assert_eq!(debt(doubt, 1).ends(), at(7 + 10_000 + 102 + 1_000));
    }

    /// What another process handed on may also still be on its way: only "deleted" settles it.
    #[test]
    fn owed_owner_may_be_on_its_way() {
        let doubt = Doubt::owed(at(7), ttl());

        assert!(doubt.is_written() && !doubt.is_answered() && !doubt.is_clear());
        assert!(doubt.is_settled_by(C1, &Reply::Granted) && !doubt.is_settled_by(C1, &Reply::Absent));
        assert_eq!(debt(doubt, 1).ends(), at(7 + 10_000 + 102 + 1_000));
    }

    /// Rule 4: repeated with growing pauses, and no longer than last send + TTL + margin.
    #[test]
    fn repeats_with_growing_pauses_until_its_end() {
        let mut ledger = Ledger::default();
        let debt = debt(unanswered_set(), 1);
        let ends = debt.ends();
        assert_eq!(ends, at(10_000 + 102 + 1_000));
        ledger.owe(debt, at(0));

        let mut sends = Vec::new();
        let mut now = at(0);
        while let Some(wake) = ledger.poll_timeout() {
            now = now.max(wake);
            while let Some(settlement) = ledger.poll_send(now) {
                sends.push(now);
                ledger.handle_reply(settlement.debt, C2, &Reply::Absent, now);
            }
        }

        assert_eq!(sends[..4], [at(0), at(50), at(150), at(350)]);
        assert!(sends.len() > 10 && sends.last().is_some_and(|last| *last < ends));
        assert_eq!(now, ends);
        assert_eq!(ledger.settled(), Settled { expired: 1, ..Settled::default() });
    }

    /// A node that takes nothing is looked at with one debt, and gets all of them once it is back.
    #[test]
    fn blocked_node_is_probed_by_one_debt() {
        let mut ledger = Ledger::default();
        for owner in 0..10 {
            ledger.owe(debt(unanswered_set(), owner), at(0));
        }

        let first = ledger.poll_send(at(0)).unwrap();
        ledger.handle_reply(first.debt, ConnectionId(0), &Reply::NotSent(NotSent::Suspect), at(0));
        assert_eq!(ledger.poll_send(at(0)), None);
        assert_eq!(ledger.poll_timeout(), Some(at(1_000)));
        assert!(ledger.poll_send(at(1_000)).is_some());
        assert_eq!(ledger.poll_send(at(1_000)), None);

        ledger.handle_usable(NodeId::new(0), at(1_200));
        let mut settled = 0;
        while let Some(settlement) = ledger.poll_send(at(1_200)) {
            ledger.handle_reply(settlement.debt, C2, &Reply::Granted, at(1_200));
            settled += 1;
        }
        assert_eq!((settled, ledger.open()), (9, 1), "the probe itself is still in flight");
        assert_eq!(ledger.settled(), Settled { answered: 9, ..Settled::default() });
    }

    /// Nobody says that a full node has room again, so it is tried soon: a key left there meanwhile stands in the way
    /// of everybody.
    #[test]
    fn full_node_is_tried_again_soon() {
        let mut ledger = Ledger::default();
        ledger.owe(debt(unanswered_set(), 1), at(0));

        let first = ledger.poll_send(at(0)).unwrap();
        ledger.handle_reply(first.debt, ConnectionId(0), &Reply::NotSent(NotSent::Backlog), at(0));
        assert_eq!(ledger.poll_send(at(0)), None);
        assert_eq!(ledger.poll_timeout(), Some(at(50)));
        assert!(ledger.poll_send(at(50)).is_some());
    }

    /// Bounds: a few hundred in flight, and with no room the debt that ends first is given up and counted.
    #[test]
    fn bounds_hold() {
        let mut ledger = Ledger::default();
        for extra in 0..MAX_DEBTS_PER_NODE as u64 + 3 {
            let mut doubt = Doubt::default();
            doubt.wrote(C1, at(extra), ttl());
            ledger.owe(debt(doubt, 0), at(extra));
        }
        assert_eq!(ledger.open_on(NodeId::new(0)), MAX_DEBTS_PER_NODE);
        assert_eq!(ledger.settled().dropped, 3);

        let now = at(MAX_DEBTS_PER_NODE as u64 + 3).min(at(9_000));
        let mut in_flight = Vec::new();
        while let Some(settlement) = ledger.poll_send(now) {
            in_flight.push(settlement.debt);
        }
        assert_eq!(in_flight.len(), MAX_IN_FLIGHT);
        assert_eq!(in_flight[0], DebtId(3), "the first three were given up");
        // What is due has to wait for an answer, and nobody polls for it meanwhile.
        assert!(ledger.poll_timeout().is_some_and(|wake| wake > now));
        ledger.handle_reply(in_flight[0], C1, &Reply::Absent, now);
        assert!(ledger.poll_send(now).is_some());
    }

    #[test]
    fn unknown_debts_and_nodes_are_ignored() {
        let mut ledger = Ledger::default();
        ledger.handle_reply(DebtId(7), C1, &Reply::Granted, at(0));
        ledger.handle_usable(NodeId::new(3), at(0));
        assert_eq!((ledger.open(), ledger.poll_timeout(), ledger.poll_send(at(0))), (0, None, None));
        assert_eq!(ledger.open_on(NodeId::new(3)), 0);
    }
}
