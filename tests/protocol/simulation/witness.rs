//! What really happened, seen from outside: the record that the laws are checked against.
//!
//! Written by the world as commands pass its boundary, never by the protocol, and never read by it.

use redquorum::protocol::in_doubt::{Debt, MARGIN};
use redquorum::protocol::lease::End;
use redquorum::protocol::message::{CallId, ConnectionId, Operation, Owner, Reply};
use redquorum::protocol::quorum::{NodeId, NodeSet, Quorum};
use redquorum::protocol::time::Instant;

use super::client::Tenure;
use super::clock::TrueTime;
use super::counters::Seen;
use super::laws::{self, Law};
use super::network::{Call, Purpose, connection_id};
use super::world::World;

/// The round of a lease's acquire; later ones are extensions and the release.
const FIRST_CALL: CallId = CallId(0);

/// Most nodes of a history.
pub const MOST_NODES: usize = 7;

/// One owner, from its first command on.
#[derive(Clone, Debug)]
pub struct OwnerWitness {
    pub owner: Owner,
    pub key: usize,
    pub client: usize,
    /// The waiter whose owner it is or was.
    pub waiter: Option<usize>,
    /// A wake-up of it never came.
    pub wake_lost: bool,
    /// Its lease was never held.
    pub undone: bool,
    /// An undo or release of it was sent somewhere, or tried.
    pub retired: bool,
    /// Nodes that its lease has sent a release to, or tried to.
    pub told: NodeSet,
    /// The longest TTL asked for, in milliseconds.
    pub longest_ttl: u64,
    pub nodes: [NodeWitness; MOST_NODES],
}

/// One owner on one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeWitness {
    /// A set or claim was handed to a connection.
    pub written: bool,
    /// The connection of the latest of them.
    pub connection: ConnectionId,
    /// A release was handed to a connection, or is owed, or was not needed.
    pub released: bool,
    /// The protocol takes the node for clear of this owner, for ever.
    pub settled: bool,
    /// A debt was left to the TTL here.
    pub left_to_ttl: bool,
    /// When the last set, claim or extension was sent, on the client's clock.
    pub last_sent: Instant,
    /// One of them took effect so late that no debt can be expected to wait for it.
    pub effective_late: bool,
    /// A set was executed.
    pub executed: bool,
    /// A grant was read by the client.
    pub heard_grant: bool,
    /// Whether one of them counted.
    pub claim_counted: bool,
    /// It was sent to wait in the queue here.
    pub queued: bool,
    /// It waits in the queue here.
    pub in_queue: bool,
    /// Its vote was given back; it has still to leave the queue.
    pub given_back: bool,
    /// Another owner was sent to take its place here.
    pub taken_over: bool,
    /// When a wake-up last named it, on the client's clock.
    pub named: Instant,
}

/// The round that a lease is in, as its replies really were.
#[derive(Clone, Copy, Debug)]
pub struct RoundWitness {
    pub call: CallId,
    pub kind: RoundKind,
    pub started: TrueTime,
    /// The client's clock at the first send.
    pub started_locally: Instant,
    /// Nodes that were sent its request, and those that were sent its healing.
    pub asked: NodeSet,
    pub healed: NodeSet,
    /// Nodes whose outcome the client has learned.
    pub answered: NodeSet,
    /// Nodes that refused, and may be asked again.
    pub refused: NodeSet,
    /// Nodes that truly granted, and said so: set by this round, or still held by this owner.
    pub granted: NodeSet,
    /// The grants of the claims before a raise.
    pub claimed: NodeSet,
    /// Nodes that held the key for somebody else, those where no token is left, and those whose grants did not count: in
    /// this round or the ones before.
    pub held: NodeSet,
    pub spent: NodeSet,
    pub uncounted: NodeSet,
    /// Where each node's fencing counter stood when it last executed a command of this round and carried the owner.
    pub stands: [u64; MOST_NODES],
    /// The numbers that nodes told in this round, and the highest that clocks explain.
    pub numbers: [u64; MOST_NODES],
    pub expected: u64,
    /// The lease has told its verdict.
    pub decided: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoundKind {
    Acquire,
    /// The second round of a fenced acquire.
    Raise,
    Extend,
    Release,
}

/// One debt in a ledger.
#[derive(Clone, Copy, Debug)]
pub struct DebtWitness {
    pub owner: usize,
    pub node: usize,
    pub ends: Instant,
    pub ends_once_left: Instant,
    /// A wake-up named it, which says nothing of what was sent.
    pub named: bool,
}

impl RoundWitness {
    /// A round before its first send. Its number is none that a lease gives.
    pub fn unstarted() -> Self {
        Self {
            call: CallId(u64::MAX - 1),
            kind: RoundKind::Acquire,
            started: 0,
            started_locally: Instant::default(),
            asked: NodeSet::EMPTY,
            healed: NodeSet::EMPTY,
            answered: NodeSet::EMPTY,
            refused: NodeSet::EMPTY,
            granted: NodeSet::EMPTY,
            claimed: NodeSet::EMPTY,
            held: NodeSet::EMPTY,
            spent: NodeSet::EMPTY,
            uncounted: NodeSet::EMPTY,
            stands: [0; MOST_NODES],
            numbers: [0; MOST_NODES],
            expected: u64::MAX,
            decided: false,
        }
    }

    /// The node of three or more whose number neither a clock explains nor another node's, which is as high.
    pub fn lone_number(&self, quorum: Quorum) -> Option<NodeId> {
        let highest = *self.numbers.iter().max()?;
        let mut at = quorum.all().filter(|node| self.numbers[node.index()] == highest);
        let first = at.next().filter(|_| highest > self.expected && quorum.nodes() >= 3)?;
        at.next().is_none().then_some(first)
    }
}

impl World {
    /// A command was handed to a connection.
    pub fn witness_send(
        &mut self,
        client: usize,
        node: usize,
        owner: usize,
        connection: usize,
        operation: &Operation,
    ) {
        let local = self.client_now(client);
        let record = &mut self.owners[owner];
        let on_node = &mut record.nodes[node];
        match operation {
            Operation::Release { .. }
            | Operation::HandOver { .. }
            | Operation::Inspect { .. }
            | Operation::Raise { .. }
            | Operation::ExtendAll { .. } => return,
            Operation::Set { ttl, .. } | Operation::Claim { ttl, .. } => {
                if on_node.written && on_node.connection != connection_id(connection) {
                    self.counters.add(Seen::SetOnTwoConnections);
                }
                on_node.written = true;
                on_node.connection = connection_id(connection);
                record.longest_ttl = record.longest_ttl.max(ttl.as_millis());
            }
            Operation::Queue { .. } => {
                (on_node.written, on_node.queued) = (true, true);
                on_node.connection = connection_id(connection);
            }
            Operation::Extend { ttl, .. } => record.longest_ttl = record.longest_ttl.max(ttl.as_millis()),
        }
        on_node.last_sent = local;
        if matches!(operation, Operation::Extend { .. }) {
            let finding = laws::nothing_follows_release(&self.owners[owner], NodeId::new(node));
            self.demand(Law::NothingFollowsRelease, finding);
        }
    }

    /// A lease gives out a send. One with a new number begins a round; the claims by which an extension heals carry
    /// the extension's.
    pub fn witness_call(&mut self, tenure: usize, node: NodeId, call: CallId, operation: &Operation) {
        let (started, started_locally) = (self.now, self.client_now(self.tenures[tenure].client));
        let Tenure { owner, round, valid_until, resuming, .. } = &mut self.tenures[tenure];
        let kind = match operation {
            Operation::Release { .. } | Operation::HandOver { .. } => RoundKind::Release,
            Operation::Extend { .. } => RoundKind::Extend,
            Operation::Raise { .. } => RoundKind::Raise,
            Operation::Set { .. } | Operation::Claim { .. } => RoundKind::Acquire,
            Operation::Queue { .. } | Operation::Inspect { .. } | Operation::ExtendAll { .. } => return,
        };
        if round.call != call {
            // The undo of a failed round begins before anybody hears of the failure.
            let RoundWitness { granted: claimed, held, spent, uncounted, expected, .. } = *round;
            *round = RoundWitness {
                call,
                kind,
                started,
                started_locally,
                claimed,
                held,
                spent,
                uncounted,
                expected,
                ..RoundWitness::unstarted()
            };
        }
        let asked = match kind {
            RoundKind::Release => &mut self.owners[*owner].told,
            _ if round.kind == kind => &mut round.asked,
            _ => &mut round.healed,
        };
        let once = laws::asked_once(*asked, node, operation);
        asked.insert(node);
        // A client that stood still between two sends could not look at its clock.
        let (until, resuming) = (*valid_until, *resuming);
        self.see_raise(tenure, operation);
        self.demand(Law::AskedOnce, once);
        if let (RoundKind::Extend, Some(until), false) = (kind, until, resuming) {
            let finding = laws::expired_is_not_extended(started_locally, until);
            self.demand(Law::ExpiredIsNotExtended, finding);
        }
    }

    /// A claim after the acquire heals.
    pub fn witness_healing(&mut self, purpose: Purpose, operation: &Operation) {
        let Purpose::Lease { tenure, call } = purpose else { return };
        let holder = &self.tenures[tenure];
        if operation.creates() && call != FIRST_CALL && !holder.resuming {
            let now = self.client_now(holder.client);
            let finding = laws::heals_only_while_valid(now, holder.valid_until);
            self.demand(Law::HealsOnlyWhileValid, finding);
            let finding = laws::heals_after_quorum(&self.tenures[tenure].round, self.plan.quorum);
            self.demand(Law::HealsAfterQuorum, finding);
        }
    }

    /// A lease gives out a release.
    pub fn witness_release(&mut self, tenure: usize, node: NodeId, debt: Option<&Debt>) {
        let holder = &self.tenures[tenure];
        let (now, owner) = (self.client_now(holder.client), holder.owner);
        let undone = holder.lease.end() == Some(End::NotAcquired);
        self.demand(Law::SilentBeforeRelease, laws::silent_before_release(now, holder.valid_until));
        let record = &mut self.owners[owner];
        record.retired = true;
        record.undone |= undone;
        let on_node = &record.nodes[node.index()];
        if on_node.executed && !on_node.heard_grant && debt.is_some() {
            self.counters.add(Seen::LostReplyUndone);
        }
    }

    /// A node executed a command, which made the owner's key, or found it and left it there.
    pub fn witness_execution(&mut self, node: usize, call: usize, made: bool, kept: bool) {
        let Call { owner, connection, sent, .. } = self.calls[call];
        let record = &mut self.owners[owner];
        let on_a_dead_connection = self.connections[connection].closed;
        if on_a_dead_connection {
            self.counters.add(Seen::LateExecution);
            if made && record.retired {
                self.counters.add(Seen::LateSetOfDeadOwner);
            }
        }
        let on_node = &mut record.nodes[node];
        on_node.executed |= made;
        // A tenth of the margin is for the clocks.
        let queued = matches!(self.calls[call].operation, Operation::Queue { .. });
        on_node.effective_late |=
            (made || kept || queued) && self.now - sent > MARGIN.as_nanos() as u64 / 10 * 9;
        // A look that is executed late lets its owner enter once more, to be handed the key at any time: rule 4 leaves that
        // to the wake-up, and to the length of a hand-over.
        on_node.effective_late |= queued && on_a_dead_connection;
    }

    /// A client learned what became of a call.
    ///
    /// `told` is the number in it, also if its grant does not count.
    pub fn witness_reply(&mut self, tenure: usize, node: usize, call: usize, reply: &Reply, told: u64) {
        let answered = &self.calls[call];
        let Purpose::Lease { call: number, .. } = answered.purpose else { return };
        let Tenure { round, owner, patient, .. } = &mut self.tenures[tenure];
        let votes = match round.kind {
            RoundKind::Acquire => answered.operation.creates(),
            RoundKind::Extend => matches!(answered.operation, Operation::Extend { .. }),
            RoundKind::Raise => matches!(answered.operation, Operation::Raise { .. }),
            RoundKind::Release => false,
        };
        let of_round = votes && round.call == number;
        let counts = !matches!(reply, Reply::Uncounted(_));
        let granted = (reply.is_granted() || !counts) && answered.truly_granted;
        if !counts {
            self.counters.add(Seen::Uncounted);
        }
        if granted && answered.operation.creates() {
            let on_node = &mut self.owners[*owner].nodes[node];
            on_node.heard_grant = true;
            on_node.claim_counted |= counts;
            if number != FIRST_CALL {
                self.counters.add(Seen::HealedByExtension);
            } else if round.decided || !of_round {
                self.counters.add(Seen::StragglingGrant);
            }
        }
        if of_round && *patient && !round.decided && matches!(reply, Reply::Held(_)) {
            // Not the node's last word: it may be asked again.
            round.asked.remove(NodeId::new(node));
            round.refused.insert(NodeId::new(node));
            return;
        }
        if of_round && granted && round.refused.contains(NodeId::new(node)) {
            self.counters.add(Seen::GrantedAfterAll);
        }
        if of_round && !round.answered.contains(NodeId::new(node)) {
            round.answered.insert(NodeId::new(node));
            round.numbers[node] = told;
            match reply {
                Reply::Held(_) => round.held.insert(NodeId::new(node)),
                Reply::CounterExhausted => round.spent.insert(NodeId::new(node)),
                Reply::Uncounted(_) => round.uncounted.insert(NodeId::new(node)),
                _ => {}
            }
            // A raise says that the lock is this owner's, which it may be by a vote in the queue that ends soon.
            let full = round.kind != RoundKind::Raise || self.owners[*owner].nodes[node].claim_counted;
            if granted && counts && full {
                round.granted.insert(NodeId::new(node));
            }
        }
    }
}
