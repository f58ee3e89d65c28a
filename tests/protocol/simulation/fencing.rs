//! Fencing tokens: the clients' wall clocks, which suggest them, and what became of them.
//!
//! In *tame* histories the clients' wall clocks, and that of one node which all have met, are off by a small part of the restart delay. In all others they
//! are off by hours, and one may be years ahead: tokens rise all the same, unless a node loses its counters.
//!
//! It draws from a stream of its own, so that a history without fenced locks is what it would be without this file.

use std::time::Duration;

use redquorum::protocol::fencing::{self, Carry, Counter, END, Fence, FencingToken, MOST_AHEAD, Retention};
use redquorum::protocol::message::{HolderValue, Key, Operation, Owner, Reply};
use redquorum::protocol::quorum::{NodeId, Quorum};
use redquorum::protocol::time::Instant;

use super::broken::Switch;
use super::clock::{MILLI, TrueTime};
use super::counters::Seen;
use super::draw::Draw;
use super::laws::{Finding, Law, require};
use super::network::{Call, Purpose};
use super::node::Node;
use super::plan::Plan;
use super::witness::{MOST_NODES, RoundWitness};
use super::world::World;

/// What a wall clock that is right shows when the history begins, in microseconds.
const NOON: u64 = 5_000_000_000;

/// By how much clocks are off that nobody keeps, in microseconds: most of an hour.
const FAR_OFF: u64 = 3_000_000_000;

/// A decade of a client's clock that is years ahead.
const DECADE: i64 = 315_360_000_000_000;

/// Claims may advance a counter by one microsecond each, without any clock's doing. A history has fewer than this.
const CLAIMS: u64 = 1_000;

/// What a history has to do with fencing tokens.
#[derive(Clone, Debug)]
pub struct Fencing {
    draw: Draw,
    /// Per mille of acquires that ask for a token.
    share: u64,
    /// By how much wall clocks may be off, in microseconds; `None` for hours.
    tame: Option<u64>,
    retention: Duration,
    /// How far the wall clock of each client is off, in microseconds.
    off: Vec<i64>,
    /// The last token of each key that was handed out, and whose it is.
    last: Vec<Option<(FencingToken, usize)>>,
    /// Some node has lost its counters.
    lost: bool,
    /// Counters come to their end.
    spends: bool,
    /// Whose clock is drawn next.
    next_node: usize,
    /// All other nodes' clocks are behind.
    behind: bool,
    /// The node whose counters are at any number.
    liar: Option<usize>,
    /// Per mille of nodes whose clock a client does not know, beside the first.
    unmet: u64,
}

impl Fencing {
    pub fn draw(seed: u64, plan: &Plan, broken: Option<Switch>) -> Self {
        let mut draw = Draw::new(seed ^ 0x6665_6e63_696e_6721);
        let share = draw.pick(&[0, 0, 0, 500, 1_000]);
        let always = broken.is_some_and(|switch| switch.is_about_tokens());
        let (guard, tame) = (plan.guard() / 1_000, draw.chance(500));
        let tame = match broken {
            Some(Switch::CandidateUncapped | Switch::AnyNumberCounts) => false,
            Some(Switch::CountersLost | Switch::ClocksApart | Switch::CappedByEachNode) => true,
            _ => tame,
        };
        // Short of the guard, or of the retention, by a round.
        let bound = draw.between(1, guard / 4);
        let unmet = draw.pick(&[0, 0, 300, 900]);
        let longest = plan.longest_ttl().duration();
        let retention = if tame && draw.chance(300) { longest } else { Duration::from_secs(3_600) };
        let mut fencing = Self {
            draw,
            share: if always { 1_000 } else { share },
            tame: tame.then_some(bound),
            retention,
            off: vec![0; plan.clients],
            last: vec![None; plan.keys],
            lost: false,
            spends: false,
            next_node: 0,
            behind: broken == Some(Switch::CappedByEachNode),
            unmet,
            liar: None,
        };
        if broken == Some(Switch::ClocksApart) {
            fencing.tame = Some(50 * guard);
        }
        (0..plan.clients).for_each(|client| fencing.step(client));
        let lies = broken == Some(Switch::AnyNumberCounts) || fencing.draw.chance(200);
        let nodes = plan.quorum.nodes();
        // Of one or two nodes, none can contradict the other.
        fencing.liar = (lies && nodes >= 3).then(|| fencing.draw.below(nodes as u64) as usize);
        fencing.spends = broken == Some(Switch::GoesOnAfterTheEnd) || fencing.draw.chance(100);
        fencing
    }

    /// Whether any lock of the history has a token.
    pub fn is_on(&self) -> bool {
        self.share > 0
    }

    /// A client's wall clock steps.
    pub fn step(&mut self, client: usize) {
        self.off[client] = match self.tame {
            None if self.draw.chance(200) => DECADE,
            _ => self.error(),
        };
    }

    fn error(&mut self) -> i64 {
        self.error_within(self.tame.unwrap_or(FAR_OFF))
    }

    fn error_within(&mut self, bound: u64) -> i64 {
        self.draw.below(2 * bound + 1) as i64 - bound as i64
    }

    /// What a node's clock shows when the history begins, in nanoseconds: servers count by the time of day. Also where clients'
    /// clocks are tame, all nodes but the first may be off by hours.
    pub fn node_origin(&mut self) -> u64 {
        let first = std::mem::replace(&mut self.next_node, 1) == 0;
        let wild = !first && self.draw.chance(500);
        let error = match wild || (self.behind && !first) {
            true if self.behind => -self.error_within(FAR_OFF).abs(),
            true => self.error_within(FAR_OFF),
            false => self.error(),
        };
        NOON.saturating_add_signed(error) * 1_000 + self.draw.below(1_000)
    }

    pub fn counters_lost(&mut self) {
        self.lost = true;
    }
}

impl World {
    /// Whether a lease has a token, as drawn for it, and what its client's clock suggests.
    ///
    /// The second is the highest number that the clocks which it knows explain.
    pub fn draw_fence(&mut self, client: usize) -> (Option<Fence>, Option<u64>) {
        if !self.fencing.is_on() || !self.fencing.draw.chance(self.fencing.share) {
            return (None, None);
        }
        let wall = (NOON + self.now / 1_000).saturating_add_signed(self.fencing.off[client]);
        // All have met the first node.
        let met: Vec<_> = (0..self.nodes.len())
            .filter(|node| *node == 0 || !self.fencing.draw.chance(self.fencing.unmet))
            .map(|node| micros(self.nodes[node].clock.at(self.now)))
            .collect();
        let expected = fencing::most_expected(met.iter().copied());
        let expected = expected.filter(|_| self.broken != Some(Switch::AnyNumberCounts));
        let mut candidate = fencing::candidate(wall, met);
        if candidate < wall {
            self.counters.add(Seen::CandidateCapped);
        }
        if self.broken == Some(Switch::CandidateUncapped) {
            candidate = wall;
        }
        let retention = Retention::new(self.fencing.retention);
        (Some(Fence::Advance { candidate, retention }), expected)
    }

    /// Now and then a node's counter of a key is at any number: somebody wrote there, or the node lies. It is always the same node.
    pub fn forge_counter(&mut self) {
        let Some(liar) = self.fencing.liar.filter(|_| self.fencing.draw.chance(100)) else { return };
        let key = self.fencing.draw.below(self.keys.len() as u64) as usize;
        let owner = Owner::from_bytes([0xed; 16]);
        let ahead = self.fencing.draw.pick(&[60_000_000, 4 * FAR_OFF, END - 2 * NOON]);
        let local = micros(self.nodes[liar].clock.at(self.now));
        let number = (2 * FAR_OFF + local.max(NOON) + ahead).min(END - 4);
        self.nodes[liar].store.put_counter(&self.keys[key], Counter { number, owner, expires: u64::MAX });
        self.counters.add(Seen::CounterForged);
    }

    /// Now and then the counter of a key is at its end on many nodes, as after a client whose clock was ages ahead.
    pub fn spend_counters(&mut self) {
        if !self.fencing.spends || !self.fencing.draw.chance(100) {
            return;
        }
        let key = self.fencing.draw.below(self.keys.len() as u64) as usize;
        let owner = Owner::from_bytes([0xee; 16]);
        let spent = Counter { number: END, owner, expires: u64::MAX };
        for node in &mut self.nodes {
            if self.fencing.draw.chance(800) {
                node.store.put_counter(&self.keys[key], spent);
            }
        }
    }

    /// A node executed a command of a lease: where its counter stands, and why.
    pub fn witness_counter(&mut self, node: usize, call: usize, reply: &Reply, before: Option<Owner>) {
        let Call { owner, ref operation, purpose, .. } = self.calls[call];
        let Purpose::Lease { tenure, call: number } = purpose else { return };
        let fenced = matches!(
            operation,
            Operation::Claim { fence: Some(_), .. }
                | Operation::Extend { carry: Some(_), .. }
                | Operation::Raise { .. }
        );
        if !reply.is_granted() || !fenced {
            return;
        }
        let subject = self.owners[owner].owner;
        let key = &self.keys[self.owners[owner].key];
        let place = &mut self.nodes[node];
        let local = place.clock.at(self.now);
        let stands = place.store.counter(key, local).map_or(0, |counter| counter.number);
        let carries = place.carries_at(key, subject, local);
        match operation {
            Operation::Claim { fence: Some(_), .. } if before == Some(subject) => {
                self.counters.add(Seen::ClaimRepeated);
            }
            Operation::Claim { fence: Some(Fence::Carry(_)), .. } => self.counters.add(Seen::CounterHealed),
            _ => {}
        }
        let round = &mut self.tenures[tenure].round;
        if carries && round.call == number {
            round.stands[node] = stands;
        }
    }

    /// A lease was handed out with a token.
    pub fn judge_token(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let (owner, began, round, client) = (holder.owner, holder.began, holder.round, holder.client);
        let Some(token) = holder.lease.fencing_token() else { return };
        let key = self.owners[owner].key;
        let highest = self.nodes.iter().map(|node| micros(node.clock.at(self.now))).max().unwrap_or(0);
        self.counters.add(Seen::TokenHandedOut);
        self.demand(Law::TokenStandsAtQuorum, token_stands_at_quorum(&round, token, self.plan.quorum));
        self.demand(Law::TokensAreBounded, tokens_are_bounded(token, highest));
        let last = self.fencing.last[key].replace((token, owner));
        // Here the wall clock stands still with the other one.
        let actor = &self.clients[client];
        let stood = actor.client_clock.stood_still().is_some();
        // Nor can a client whose clock stood still know before it looked that its grant is long over.
        if actor.stood.is_none() && self.clocks_may_tell(began, stood) {
            if self.fencing.lost {
                self.counters.add(Seen::TokenAfterLoss);
            }
            self.demand(Law::TokensRise, tokens_rise(last, token));
        }
    }

    /// A lease was extended, and its token with it.
    pub fn judge_carried_token(&mut self, tenure: usize) {
        let holder = &self.tenures[tenure];
        let Some(token) = holder.lease.fencing_token() else { return };
        let finding = token_stands_at_quorum(&holder.round, token, self.plan.quorum);
        self.demand(Law::TokenStandsAtQuorum, finding);
    }

    /// Whether tokens must rise: nothing was lost, or all clocks differ by less than the guard, less the time that this acquire
    /// has taken, and so does the time for which counters are kept. A wall clock that `stood` still tells nothing.
    fn clocks_may_tell(&self, began: TrueTime, stood: bool) -> bool {
        let expire = self.fencing.retention < Duration::from_secs(3_600);
        if !self.fencing.lost && !expire || self.broken == Some(Switch::ClocksApart) {
            return true;
        }
        let guard = self.plan.guard().min(self.fencing.retention.as_nanos() as u64) / 1_000;
        let took = (self.now - began) / 1_000;
        // A rate that is off by half a per cent, over the guard and the round.
        let rates = (guard + took) / 100;
        !stood && self.fencing.tame.is_some_and(|bound| 2 * bound + took + rates + CLAIMS < guard)
    }

    /// While the switch is on, a node loses its counters every now and then, and nothing answers for it.
    pub fn lose_counters(&mut self, node: usize) {
        if self.broken == Some(Switch::CountersLost) {
            for key in &self.keys {
                self.nodes[node].store.remove_counter(key);
            }
        }
    }

    /// Whether a raise is left undone, and taken for done.
    pub fn skips_raise(&self, operation: &Operation) -> bool {
        self.broken == Some(Switch::NoRaise) && matches!(operation, Operation::Raise { .. })
    }

    /// Counts that a lease needs a second round for its token.
    pub fn see_raise(&mut self, tenure: usize, operation: &Operation) {
        let raises = matches!(operation, Operation::Raise { .. });
        if raises && !std::mem::replace(&mut self.tenures[tenure].raises, true) {
            self.counters.add(Seen::RaiseNeeded);
            if let Some(task) = self.tenures[tenure].task {
                self.tasks[task].raises = true;
            }
        }
    }
}

/// Tokens rise strictly from one fenced holder of a key to the next.
fn tokens_rise(last: Option<(FencingToken, usize)>, token: FencingToken) -> Finding {
    let Some((before, owner)) = last else { return Ok(()) };
    require(before < token, || format!("token {token} after {before} of o{owner}"))
}

/// Q nodes stand at the token while they carry its owner: in the round that brought it, and in each extension.
fn token_stands_at_quorum(round: &RoundWitness, token: FencingToken, quorum: Quorum) -> Finding {
    let standing = |node: &NodeId| round.stands[node.index()] >= token.as_u64();
    let standing: Vec<_> = quorum.all().filter(standing).collect();
    require(standing.len() >= quorum.needed(), || format!("only {standing:?} stand at token {token}"))
}

/// No client's clock moves a token by more than 10 s beyond the clock of every node.
fn tokens_are_bounded(token: FencingToken, highest: u64) -> Finding {
    let most = highest + MOST_AHEAD.as_micros() as u64 + CLAIMS;
    require(token.as_u64() <= most, || format!("token {token} at {highest} by the foremost node's clock"))
}

/// What a node does to its counters instead while a switch is on; `None` where it does the usual.
pub fn count_falsely(
    switch: Option<Switch>,
    node: &mut Node,
    operation: &Operation,
    local: Instant,
) -> Option<Reply> {
    let raise = |node: &mut Node, key: &Key, owner: Owner, carry: Carry| {
        let raise = Operation::Raise { key: key.clone(), owner, carry };
        node.store.execute(&raise, local)
    };
    match (switch?, operation) {
        // As clients of an earlier revision do it: each node holds the candidate back by its own clock.
        (
            Switch::CappedByEachNode,
            Operation::Claim { key, owner, ttl, fence: Some(Fence::Advance { candidate, retention }) },
        ) => {
            let capped = (*candidate).min(micros(local) + MOST_AHEAD.as_micros() as u64);
            let fence = Some(Fence::Advance { candidate: capped, retention: *retention });
            let claim = Operation::Claim { key: key.clone(), owner: *owner, ttl: *ttl, fence };
            Some(node.store.execute(&claim, local))
        }
        // A raise counts only where the claim was granted, so a node that lies must have lied before.
        (Switch::TokenOfAllNodes, Operation::Claim { fence: Some(Fence::Advance { candidate, .. }), .. }) => {
            let reply = node.store.execute(operation, local);
            let refused = matches!(reply, Reply::Held(_));
            Some(if refused { Reply::Fenced(FencingToken::new(*candidate)) } else { reply })
        }
        (Switch::TokenOfAllNodes, Operation::Raise { key, carry, .. }) => {
            let reply = node.store.execute(operation, local);
            let holder = node.store.holder(key, local).map(|holder| holder.value);
            if let Some(HolderValue::Owner(holder)) = holder {
                raise(node, key, holder, *carry);
            }
            Some(if reply.is_an_answer() { Reply::Granted } else { reply })
        }
        (Switch::CounterLeftBehind, Operation::Claim { key, owner, ttl, fence: Some(Fence::Carry(_)) }) => {
            let claim = Operation::Claim { key: key.clone(), owner: *owner, ttl: *ttl, fence: None };
            Some(node.store.execute(&claim, local))
        }
        (Switch::CounterLeftBehind, Operation::Extend { key, owner, ttl, carry: Some(_) }) => {
            let extend = Operation::Extend { key: key.clone(), owner: *owner, ttl: *ttl, carry: None };
            Some(node.store.execute(&extend, local))
        }
        _ => None,
    }
}

/// What a node's `TIME` tells.
fn micros(local: Instant) -> u64 {
    local.as_nanos() / 1_000
}

/// Tame clocks differ by so little that tokens have to rise after every loss, in all but the slowest rounds.
#[test]
fn tame_clocks_are_within_the_guard() {
    for seed in 0..1_000 {
        let plan = Plan::draw(&mut Draw::new(seed));
        let fencing = Fencing::draw(seed, &plan, None);
        assert!(fencing.off.len() == plan.clients && MOST_NODES >= plan.quorum.nodes());
        if let Some(bound) = fencing.tame {
            assert!(fencing.off.iter().all(|off| off.unsigned_abs() <= bound));
            assert!(2 * bound <= plan.guard() / 2_000, "seed {seed}, {} ms", plan.guard() / MILLI);
        }
    }
}
