//! What really happened in the queues: who stood where, to whom the votes went, who looked when.
//!
//! Written as commands are executed and owners are sent, beside the nodes' own books, which are what is checked.

use redquorum::protocol::message::{ConnectionId, HolderValue, Operation, Owner, Reply};
use redquorum::protocol::quorum::NodeId;

use super::counters::Seen;
use super::laws::{self, Law};
use super::line_laws;
use super::trace::note;
use super::waiter::Queued;
use super::world::World;

/// The queue for one key at one node.
#[derive(Clone, Debug, Default)]
pub struct LineWitness {
    /// The waiters in the order of their arrival.
    pub waiting: Vec<usize>,
    /// Those who had the vote, in that order, and neither hold the lock nor have left.
    pub voted: Vec<usize>,
    /// The owner that has the vote and has done nothing with it.
    pub idle_vote: Option<usize>,
    /// The last owner in whose place a vote ran out.
    lapsed: Option<usize>,
}

/// A key before and after a command.
#[derive(Clone, Debug)]
pub struct Change {
    pub before: Option<HolderValue>,
    pub after: Option<HolderValue>,
}

impl World {
    /// The number of an owner: it stands in its first half.
    pub fn owner_number(&self, owner: Owner) -> Option<usize> {
        let number = u64::from_str_radix(std::str::from_utf8(&owner.to_hex()[..16]).ok()?, 16).ok()?;
        let number = usize::try_from(number).ok()?;
        self.owners.get(number).filter(|record| record.owner == owner).map(|_| number)
    }

    fn owner_of(&self, value: Option<&HolderValue>) -> Option<usize> {
        match value {
            Some(HolderValue::Owner(owner)) => self.owner_number(*owner),
            _ => None,
        }
    }

    pub fn line_record(&mut self, key: usize, node: usize) -> &mut LineWitness {
        let place = key * self.nodes.len() + node;
        &mut self.line_records[place]
    }

    /// A node executed a command. `subject` is the command's owner.
    pub fn witness_line(
        &mut self,
        node: usize,
        subject: usize,
        operation: &Operation,
        reply: &Reply,
        change: &Change,
    ) {
        let key = self.owners[subject].key;
        let holder = self.owner_of(change.after.as_ref());
        self.see_lapsed_vote(key, node, subject, operation, change);
        match operation {
            Operation::Queue { rename_from, .. } => {
                let earlier = rename_from.and_then(|earlier| self.owner_number(earlier));
                if let Some(earlier) = earlier {
                    self.owners[earlier].nodes[node].in_queue = false;
                }
                match reply {
                    Reply::Queued(place) => {
                        self.see_place(key, node, subject, place.entered);
                        if let Some(next) = holder.filter(|_| change.before != change.after) {
                            self.see_handed(key, node, next);
                            self.counters.add(Seen::HandedOverByLook);
                        }
                    }
                    Reply::Voted => {
                        let by_look = change.before == change.after && self.owners[subject].wake_lost;
                        if by_look {
                            self.counters.add(Seen::LostWakeUpMadeUpFor);
                        }
                        if earlier.is_none() && change.before != change.after {
                            self.see_vote(key, node, subject, false);
                        }
                        self.owners[subject].nodes[node].in_queue = false;
                        self.line_record(key, node).idle_vote = Some(subject);
                    }
                    _ => {}
                }
            }
            Operation::HandOver { .. } | Operation::Release { .. } => {
                let leaves = matches!(operation, Operation::HandOver { .. });
                let stood = leaves && std::mem::take(&mut self.owners[subject].nodes[node].in_queue);
                if let (true, Some(waiter)) = (stood, self.owners[subject].waiter) {
                    self.line_record(key, node).waiting.retain(|other| *other != waiter);
                }
                let own = self.owner_of(change.before.as_ref()) == Some(subject);
                match holder {
                    Some(next) if next != subject && change.before != change.after => {
                        self.see_handed(key, node, next);
                        if own && self.owners[subject].undone {
                            self.counters.add(Seen::UndoHandedOver);
                        }
                    }
                    None if own && self.plan.calm => {
                        let waiting = &self.line_record(key, node).waiting;
                        let finding = line_laws::release_hands_over(waiting, node);
                        self.demand(Law::ReleaseHandsOver, finding);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn see_handed(&mut self, key: usize, node: usize, next: usize) {
        self.see_vote(key, node, next, true);
        self.owners[next].nodes[node].in_queue = false;
        self.line_record(key, node).idle_vote = Some(next);
    }

    /// A vote that nobody has done anything with, and that is gone.
    fn see_lapsed_vote(
        &mut self,
        key: usize,
        node: usize,
        subject: usize,
        operation: &Operation,
        change: &Change,
    ) {
        let Some(voted) = self.line_record(key, node).idle_vote else { return };
        let renames = matches!(operation, Operation::Queue { rename_from: Some(earlier), .. }
            if self.owner_number(*earlier) == Some(voted));
        if self.owner_of(change.before.as_ref()) == Some(voted) {
            if voted == subject || renames {
                self.line_record(key, node).idle_vote = None;
            }
            return;
        }
        self.line_record(key, node).idle_vote = None;
        self.line_record(key, node).lapsed = Some(voted);
        note!(self, "the vote of {} for o{voted} has run out", NodeId::new(node));
        self.counters.add(Seen::VoteRanOut);
        if self.plan.calm {
            self.demand(Law::VotesAreUsed, line_laws::votes_are_used(Some(voted), node));
        }
    }

    fn see_place(&mut self, key: usize, node: usize, subject: usize, entered: bool) {
        self.owners[subject].nodes[node].in_queue = true;
        let finding = laws::settled_stays_clear(&self.owners[subject], node);
        self.demand(Law::SettledStaysClear, finding);
        if self.owners[subject].retired && entered {
            self.counters.add(Seen::DeadOwnerInLine);
        }
        let Some(waiter) = self.owners[subject].waiter else { return };
        let line = self.line_record(key, node);
        if !line.waiting.contains(&waiter) {
            line.waiting.push(waiter);
        }
        let elsewhere = (0..self.nodes.len()).any(|other| {
            let live = |waiter: &usize| !self.waiters[*waiter].over;
            other != node && self.line_records[key * self.nodes.len() + other].waiting.iter().any(live)
        });
        if elsewhere {
            self.counters.add(Seen::TwoLines);
        }
    }

    /// A node gives its vote to an owner: by a hand-over, or because it looked at the right moment.
    fn see_vote(&mut self, key: usize, node: usize, owner: usize, handed: bool) {
        if handed {
            let finding = line_laws::handed_only_to_the_line(&self.owners[owner], node, owner);
            self.demand(Law::HandedOnlyToTheLine, finding);
            self.demand(Law::SettledStaysClear, laws::settled_stays_clear(&self.owners[owner], node));
            self.counters.add(Seen::HandedOver);
        }
        let Some(waiter) = self.owners[owner].waiter else { return };
        if handed && self.clients[self.waiters[waiter].client].deaf {
            self.counters.add(Seen::PollerHandedTo);
        }
        let waiting = self.line_record(key, node).waiting.clone();
        for skipped in waiting.iter().take_while(|other| **other != waiter && waiting.contains(&waiter)) {
            self.see_skipped(key, node, *skipped);
        }
        if self.plan.calm {
            self.demand(Law::FirstComeFirstServed, line_laws::first_come_first_served(&waiting, waiter));
        }
        let left = self.waiters[waiter].over;
        let line = self.line_record(key, node);
        line.waiting.retain(|other| *other != waiter);
        if !left && !line.voted.contains(&waiter) {
            line.voted.push(waiter);
        }
    }

    /// Somebody who came before was passed over.
    fn see_skipped(&mut self, key: usize, node: usize, waiter: usize) {
        let Queued { client, owner, .. } = self.waiters[waiter];
        let listens =
            |line: &super::network::Connection| line.listens && (line.client, line.node) == (client, node);
        let present = self.connections.iter().any(listens);
        let lapsed = self.line_record(key, node).lapsed;
        let hangs = lapsed.is_some_and(|lapsed| self.owners[lapsed].client == client);
        if !present {
            self.counters.add(Seen::DeadClientSkipped);
        } else if hangs || owner.is_some() && self.clients[client].paused_until > self.now {
            self.counters.add(Seen::HungClientSkipped);
        }
    }

    /// The waiter's claim was granted.
    pub fn grant_in_line(&mut self, waiter: usize) {
        let (key, node) = (self.waiters[waiter].key, self.waiters[waiter].waiter.node().index());
        if self.plan.calm {
            let finding = line_laws::grants_follow_votes(&self.line_record(key, node).voted, waiter);
            self.demand(Law::FirstComeFirstServed, finding);
        }
        for node in 0..self.nodes.len() {
            self.line_record(key, node).voted.retain(|other| *other != waiter);
        }
    }

    /// A lease that never waited in the queue is held while a vote of this key is on its way to somebody.
    pub fn grant_beside_the_line(&mut self, key: usize) {
        let overtaken = (0..self.nodes.len()).any(|node| self.line_record(key, node).idle_vote.is_some());
        if overtaken {
            self.counters.add(Seen::NewcomerWon);
        }
    }

    /// A waiter has left. Every owner that it sent anywhere was released there, or another owner took its place over.
    pub fn witness_leaving(&mut self, waiter: usize, claimed: bool) {
        let Queued { key, owner, .. } = self.waiters[waiter];
        for place in 0..self.waiters[waiter].owners.len() {
            let one = self.waiters[waiter].owners[place];
            if claimed && Some(one) == owner {
                continue;
            }
            let finding = laws::release_reaches_every_write(&self.owners[one]);
            self.demand(Law::ReleaseReachesEveryWrite, finding);
        }
        for node in 0..self.nodes.len() {
            self.line_record(key, node).voted.retain(|other| *other != waiter);
        }
    }

    /// A take-over is sent: the earlier owner is never sent again.
    pub fn witness_take_over(&mut self, node: usize, operation: &Operation) {
        let Operation::Queue { rename_from: Some(earlier), .. } = operation else { return };
        let Some(earlier) = self.owner_number(*earlier) else { return };
        let record = &mut self.owners[earlier];
        record.retired = true;
        record.nodes[node].taken_over = true;
    }

    /// A take-over was answered. Where everything of the earlier owner went over the same connection, nothing of it is
    /// left; otherwise it has been released as well.
    pub fn taken_over(&mut self, earlier: usize, node: usize, connection: ConnectionId) {
        if self.owners[earlier].nodes[node].released {
            self.counters.add(Seen::TakenOverElsewhere);
        } else {
            let same = self.owners[earlier].nodes[node].connection == connection;
            self.counters.add(if same { Seen::TakenOver } else { Seen::TakenOverElsewhere });
            self.settle(earlier, node);
        }
    }

    /// A waiter looks.
    pub fn witness_look(&mut self, waiter: usize, node: usize, operation: &Operation) {
        let Operation::Queue { owner, rename_from, polls, .. } = operation else { return };
        let Queued { client, key, place, .. } = self.waiters[waiter];
        let urged = std::mem::take(&mut self.waiters[waiter].urged);
        let now = self.client_now(client);
        let looked_before =
            self.owner_number(*owner).is_some_and(|owner| self.owners[owner].nodes[node].written);
        let idle = place.is_some_and(|(at, _, before)| at == node && before > 1);
        if rename_from.is_some() || *polls || !looked_before {
            return;
        }
        self.counters.add(Seen::Looked);
        if idle && !urged {
            let previous = self.idle_looks.insert((client, key, node), now);
            if self.plan.calm {
                self.demand(Law::OneLooksForAll, line_laws::one_looks_for_all(previous, now));
            }
        }
    }

    /// Nobody stays at a worse node than it has to.
    pub fn see_where_it_stands(&mut self, waiter: usize) {
        let client = self.waiters[waiter].client;
        let now = self.client_now(client);
        let resumed = self.clients[client].clock.at(self.clients[client].paused_until);
        for better in self.waiters[waiter].waiter.better() {
            let link = self.link_of(client, better.index());
            let since = self.links[link].usable_since.max(self.waiters[waiter].since).max(resumed);
            if self.is_usable(client, better.index()) {
                let finding = line_laws::stands_at_the_best_node(waiter, now.since(since), better);
                self.demand(Law::StandsAtTheBestNode, finding);
            }
        }
    }

    /// The queues of a node are gone.
    pub fn forget_lines(&mut self, node: usize) {
        for key in 0..self.keys.len() {
            *self.line_record(key, node) = LineWitness::default();
        }
        for record in &mut self.owners {
            record.nodes[node].in_queue = false;
        }
    }
}
