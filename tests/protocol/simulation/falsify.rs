//! What each switch of `broken.rs` does: which clock is shown, what is told to the protocol, what is left undone.
//!
//! All of it happens at the boundary. Without a switch, every function here hands on what it was given.

use std::time::Duration;

use redquorum::protocol::answer::Answer;
use redquorum::protocol::in_doubt::Debt;
use redquorum::protocol::lease::End;
use redquorum::protocol::message::{CallId, ConnectionId, NotSent, Operation, Reply};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::restart::{Reading, Run, Standing};
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::{Drift, Ttl};

use super::broken::Switch;
use super::client::Tenure;
use super::clock::TrueTime;
use super::network::Purpose;
use super::node::Node;
use super::witness::RoundKind;
use super::world::World;

/// How much slower time goes for the ledger while debts never end.
const SLOWLY: u64 = 1_000;

impl World {
    /// What the client takes for now.
    pub fn client_now(&self, client: usize) -> Instant {
        let client = &self.clients[client];
        let now = client.clock.at(self.now);
        match self.broken {
            Some(Switch::WallClock) => shifted(now, client.wall_shift),
            Some(Switch::ClockSleeps) => shifted(now, -(client.slept as i64)),
            _ => now,
        }
    }

    /// The true moment at which the client's clock will show `reading`, if it is not stepped before.
    pub fn client_when(&self, client: usize, reading: Instant) -> TrueTime {
        let client = &self.clients[client];
        match self.broken {
            Some(Switch::WallClock) => client.clock.when(shifted(reading, -client.wall_shift)),
            Some(Switch::ClockSleeps) => client.clock.when(shifted(reading, client.slept as i64)),
            _ => client.clock.when(reading),
        }
    }

    /// What a client takes for a node's word of itself.
    pub fn falsify_reading(&self, reading: Reading) -> Reading {
        match self.broken {
            Some(Switch::OlderStateUnnoticed) => Reading { kept: reading.kept.map(|_| u64::MAX), ..reading },
            Some(Switch::ReplicaIsRestart) => {
                let just_started = |run| Run { uptime: Some(Duration::ZERO), ..run };
                Reading { run: reading.run.map(just_started), ..reading }
            }
            _ => reading,
        }
    }

    /// The moment that a lease is told.
    pub fn lease_now(&self, tenure: usize) -> Instant {
        let holder = &self.tenures[tenure];
        let now = self.client_now(holder.client);
        match (self.broken, holder.valid_until) {
            (Some(Switch::ExpiredRevived), Some(until)) if until <= now => {
                Instant::from_nanos(until.as_nanos() - 1)
            }
            (Some(Switch::ValidityUnchecked), None) if holder.round.kind == RoundKind::Acquire => {
                holder.round.started_locally.max(Instant::from_nanos(1))
            }
            _ => now,
        }
    }

    /// The moment that a ledger is told.
    pub fn ledger_now(&self, client: usize) -> Instant {
        let now = self.client_now(client);
        match self.broken {
            Some(Switch::DebtsNeverEnd) => Instant::from_nanos(now.as_nanos() / SLOWLY),
            Some(Switch::DebtsEndEarly) => now.after(self.plan.longest_ttl().duration() * 2),
            _ => now,
        }
    }

    /// The true moment at which the ledger will be told `reading`.
    pub fn ledger_when(&self, client: usize, reading: Instant) -> TrueTime {
        match self.broken {
            Some(Switch::DebtsNeverEnd) => {
                let reading = Instant::from_nanos(reading.as_nanos().saturating_mul(SLOWLY));
                self.client_when(client, reading).min(self.now + self.plan.guard())
            }
            _ => self.client_when(client, reading),
        }
    }

    /// What the holder takes for the end of its validity.
    pub fn falsify_validity(&self, tenure: usize, told: Option<Instant>) -> Option<Instant> {
        let holder = &self.tenures[tenure];
        match self.broken {
            Some(Switch::ValidityFromReplies) if holder.valid_until.is_none() => {
                let took = self.client_now(holder.client).since(holder.round.started_locally);
                told.map(|until| until.after(took))
            }
            Some(Switch::ValidityFromReplies) => told.and(holder.valid_until),
            // What is told again is no news.
            Some(Switch::ExtensionFromReplies) if holder.valid_until.is_some() => told.map(|until| {
                let took = self.client_now(holder.client).since(holder.round.started_locally);
                let news = Some(until) > holder.valid_until;
                if news { until.after(took) } else { holder.valid_until.unwrap_or(until) }
            }),
            Some(Switch::ValidAfterRelease) => told.or(holder.valid_until),
            Some(Switch::ExtensionShortens) if holder.valid_until.is_some() => told
                .map(|until| until.min(holder.round.started_locally.after(self.plan.ttls[0].duration() / 2))),
            _ => told,
        }
    }

    /// What a lease is told of an answer, which it would weigh like this; `None` where it is told nothing.
    pub fn falsify_answer(
        &mut self,
        tenure: usize,
        call: usize,
        answer: Answer,
        weighed: &Reply,
    ) -> Option<Answer> {
        let absent =
            matches!(self.calls[call].operation, Operation::Extend { .. }) && *weighed == Reply::Absent;
        let granted = Answer { reply: Reply::Granted, standing: Standing::COUNTS, ..answer };
        match self.broken {
            Some(Switch::UnknownCounts) if matches!(weighed, Reply::Unknown(_)) => Some(granted),
            Some(Switch::AbsentCounts) if absent => Some(granted),
            Some(Switch::HealsAfterRelease | Switch::HealsExpired | Switch::HealsUnconfirmed) if absent => {
                self.heal_regardless(tenure, answer.node.index(), call);
                Some(answer)
            }
            Some(Switch::WaitsForAll) => self.withhold(tenure, answer),
            _ => Some(answer),
        }
    }

    /// A debt as the ledger takes it on. Returns it unchanged unless silence is taken for an answer.
    pub fn falsify_debt(&self, debt: Debt, now: Instant) -> Debt {
        if self.broken != Some(Switch::DebtsEndInSilence) {
            return debt;
        }
        debt.clone().after(ConnectionId(u64::MAX), &Reply::Absent, now).unwrap_or(debt)
    }

    /// Whether an answer is taken for one that settles a debt.
    pub fn settles_falsely(&self, reply: &Reply) -> bool {
        self.broken == Some(Switch::DenialSettles) && reply.denies_ownership()
    }

    /// Why a ledger is told that its settlement was not sent.
    pub fn falsify_refusal(&self, refusal: NotSent) -> NotSent {
        match (self.broken, refusal) {
            (Some(Switch::FullNodeWaits), NotSent::Backlog) => NotSent::Suspect,
            (_, refusal) => refusal,
        }
    }

    /// Whether a release is not sent at all.
    pub fn swallows_release(&self, owner: usize, node: NodeId) -> bool {
        let said_yes = self.owners[owner].nodes[node.index()].heard_grant;
        self.broken == Some(Switch::UndoOnlyGrants) && !said_yes
    }

    /// Before a timeout: the silent count as grants.
    pub fn falsify_timeout(&mut self, tenure: usize) {
        if self.broken == Some(Switch::UnknownCounts) {
            let answered = self.tenures[tenure].round.answered;
            for node in self.plan.quorum.all().filter(|node| !answered.contains(*node)) {
                self.grant_falsely(tenure, node);
            }
        }
    }

    /// After a reply: with Q − 1 grants, one more.
    pub fn falsify_round(&mut self, tenure: usize) {
        let round = self.tenures[tenure].round;
        let granted = round.granted.len();
        let one_short = granted > 0 && granted + 1 == self.plan.quorum.needed();
        let acquiring = round.kind == RoundKind::Acquire && !round.decided;
        if self.broken == Some(Switch::QuorumLessOne) && acquiring && one_short {
            let silent = self.plan.quorum.all().find(|node| !round.answered.contains(*node));
            if let Some(node) = silent {
                self.grant_falsely(tenure, node);
            }
        }
    }

    pub fn grant_falsely(&mut self, tenure: usize, node: NodeId) {
        let now = self.lease_now(tenure);
        let Tenure { lease, round, .. } = &mut self.tenures[tenure];
        lease.handle_answer(
            Answer {
                node,
                call: round.call,
                connection: ConnectionId(0),
                creates: false,
                reply: Reply::Granted,
                standing: Standing::COUNTS,
                read: now,
            },
            now,
        );
    }

    fn heal_regardless(&mut self, tenure: usize, node: usize, call: usize) {
        let (owner, client) = (self.tenures[tenure].owner, self.tenures[tenure].client);
        let over = match self.broken {
            Some(Switch::HealsAfterRelease) => self.owners[owner].retired,
            Some(Switch::HealsUnconfirmed) => !self.tenures[tenure].round.decided,
            _ => self.tenures[tenure].valid_until.is_some_and(|until| until <= self.client_now(client)),
        };
        if over {
            let key = self.calls[call].operation.key().clone();
            let claim = Operation::Claim {
                key,
                owner: self.owners[owner].owner,
                ttl: self.plan.longest_ttl(),
                fence: None,
            };
            let purpose = self.calls[call].purpose;
            let _ = self.send(client, node, owner, claim, purpose, None);
        }
    }

    /// After a release was handed to a node: an extension that follows it.
    pub fn falsify_release(&mut self, tenure: usize, node: NodeId, call: CallId) {
        let Tenure { client, owner, ref lease, .. } = self.tenures[tenure];
        if self.broken == Some(Switch::ExtendsAfterRelease) && lease.end() == Some(End::Released) {
            let (key, ttl) = (lease.key().clone(), self.plan.longest_ttl());
            let extension = Operation::Extend { key, owner: self.owners[owner].owner, ttl, carry: None };
            let _ = self.send(client, node.index(), owner, extension, Purpose::Lease { tenure, call }, None);
        }
    }

    /// Keeps the answers of an acquire back until all nodes have answered.
    fn withhold(&mut self, tenure: usize, answer: Answer) -> Option<Answer> {
        let holder = &mut self.tenures[tenure];
        if holder.round.kind != RoundKind::Acquire {
            return Some(answer);
        }
        holder.withheld.push(answer);
        if holder.round.answered.len() == self.plan.quorum.nodes() {
            for answer in std::mem::take(&mut holder.withheld) {
                self.feed_lease(tenure, answer);
            }
        }
        None
    }
}

/// What a node does instead while a switch is on; `None` where it does the usual.
pub fn execute_falsely(
    switch: Option<Switch>,
    node: &mut Node,
    operation: &Operation,
    local: Instant,
) -> Option<Reply> {
    match (switch?, operation) {
        (Switch::BlindDelete, Operation::Release { key, .. }) => {
            Some(if node.store.remove(key) { Reply::Granted } else { Reply::Absent })
        }
        (Switch::HealedCounts, Operation::Extend { key, owner, ttl, .. }) => {
            let claim = Operation::Claim { key: key.clone(), owner: *owner, ttl: *ttl, fence: None };
            Some(node.store.execute(&claim, local))
        }
        (Switch::KeysOutliveTtl, Operation::Set { key, owner, .. } | Operation::Claim { key, owner, .. }) => {
            let hour = Duration::from_secs(3_600);
            let ttl = Ttl::new(hour, Drift::default(), hour).ok()?;
            Some(
                node.store
                    .execute(&Operation::Claim { key: key.clone(), owner: *owner, ttl, fence: None }, local),
            )
        }
        _ => None,
    }
}

/// What a node does instead of lengthening a life while a switch is on: it sets the life that is asked for, whatever is left. An
/// extension that asks for more than one of the TTLs does so since more is left: the switch may take that from it.
pub fn give_life_falsely(
    switch: Option<Switch>,
    ttls: &[Ttl; 3],
    node: &mut Node,
    operation: &Operation,
    local: Instant,
) -> Option<Reply> {
    let (key, owner, ttl) = match (switch?, operation) {
        (Switch::AsksForLess, Operation::Extend { key, owner, ttl, .. }) => {
            (key, owner, if ttls.contains(ttl) { ttl } else { &ttls[0] })
        }
        (
            Switch::LivesAreSet,
            Operation::Extend { key, owner, ttl, .. }
            | Operation::Claim { key, owner, ttl, .. }
            | Operation::Queue { key, owner, hand_over: ttl, .. },
        ) => (key, owner, ttl),
        _ => return None,
    };
    let reply = node.store.execute(operation, local);
    if reply.is_granted() || reply == Reply::Voted {
        node.store.put_foreign(key, &owner.to_hex(), Some(ttl.duration()), local);
    }
    Some(reply)
}

fn shifted(reading: Instant, nanos: i64) -> Instant {
    Instant::from_nanos(reading.as_nanos().saturating_add_signed(nanos))
}
