//! Waiting in the queue: drives the real `Waiter` by its contract.
//!
//! Decides nothing: it hands the nodes what the waiter wants sent, and the waiter the owners it wants; it claims when told
//! to, and feeds back how that went. How long it stays is the acquisition's to say (`task.rs`), and what the others of its
//! client have to do with it, the groups' (`wakeups.rs`).

use redquorum::protocol::acquire::{Failed, Step};
use redquorum::protocol::lease::{Asking, Failure, Lease, Options};
use redquorum::protocol::message::{HolderValue, Operation, Place, Reply, Unknown};
use redquorum::protocol::quorum::NodeSet;
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::group::Stand;
use redquorum::protocol::wait_queue::rank::{self, NodeName, QueueNodes, Ranks};
use redquorum::protocol::wait_queue::signal::Signals;
use redquorum::protocol::wait_queue::waiter::{Event as WaiterEvent, QueueVote, Waiter, WaiterSettings};

use super::broken::Switch;
use super::client::Tenure;
use super::clock::TrueTime;
use super::counters::Seen;
use super::laws::Law;
use super::line_laws;
use super::network::{Purpose, connection_id};
use super::trace::note;
use super::world::{Event, World};

/// One waiter, and what carries it.
#[derive(Debug)]
pub struct Queued {
    pub waiter: Waiter,
    pub client: usize,
    pub task: usize,
    pub key: usize,
    queues: QueueNodes,
    /// The present owner, and all it ever had.
    pub owner: Option<usize>,
    pub owners: Vec<usize>,
    /// Which of its mailboxes counts: one for each of its owners, so that what was meant for an earlier one is lost.
    pub generation: u32,
    pub signals: Signals,
    /// Whether these give it a reason to look beside its turn.
    pub urges: bool,
    /// The claim under way.
    pub claim: Option<usize>,
    /// It holds the lock, or has left.
    pub over: bool,
    timer: TrueTime,
    /// The last place that it was told, where it was told it.
    pub place: Option<(usize, u64, u32)>,
    /// It was given a reason to look beside its turn.
    pub urged: bool,
    /// The node at which it stands, or is about to.
    stands: usize,
    /// Since when it stands, or is about to stand, at its node.
    pub since: Instant,
}

impl World {
    /// The nodes that may keep the queue for a key, as a client knows them.
    fn ranks(&self, client: usize, key: usize) -> Ranks {
        let name = |node: usize| self.links[self.link_of(client, node)].name;
        let names: Vec<Option<NodeName>> = (0..self.nodes.len()).map(name).collect();
        rank::rank(self.keys[key].as_bytes(), &names, self.plan.quorum)
    }

    /// What a lease of this client has to know of the queues for a key; nothing where it does not wait in one.
    pub fn queues(&self, client: usize, key: usize) -> Option<QueueNodes> {
        let id = self.clients[client].id;
        self.clients[client].in_queue.then(|| self.ranks(client, key).queues(id, self.plan.quorum))
    }

    /// A task waits in the queue.
    pub fn stand_in_line(&mut self, task: usize) -> usize {
        let (client, key) = (self.tasks[task].client, self.tasks[task].key);
        let (ranks, terms) = (self.ranks(client, key), self.plan.terms(self.tasks[task].ttl));
        let id = self.clients[client].id;
        let habits = WaiterSettings {
            client: id,
            hand_over: rank::hand_over(self.clients[client].pace, terms.ttl),
            reply_timeout: terms.reply_timeout,
            drift: terms.drift,
        };
        let waiter = Waiter::new(self.keys[key].clone(), ranks, habits, self.draw.next());
        let number = self.waiters.len();
        note!(self, "c{client} task {task} waits in the queue for {} as w{number}", self.keys[key]);
        self.counters.add(Seen::StoodInLine);
        self.waiters.push(Queued {
            waiter,
            client,
            task,
            key,
            queues: ranks.queues(id, self.plan.quorum),
            owner: None,
            owners: Vec::new(),
            generation: 0,
            signals: Signals::default(),
            urges: false,
            claim: None,
            over: false,
            timer: TrueTime::MAX,
            place: None,
            urged: false,
            stands: usize::MAX,
            since: self.client_now(client),
        });
        number
    }

    /// Takes everything that a waiter has to give, until there is nothing (the contract of `Waiter`).
    pub fn drive(&mut self, number: usize) {
        if self.waiters[number].over || self.waiters[number].claim.is_some() {
            return;
        }
        loop {
            self.settle_waiter(number);
            match self.waiters[number].waiter.poll_event() {
                Some(WaiterEvent::Claim(vote)) => return self.claim(number, vote),
                Some(WaiterEvent::Standing { place, dropped }) => self.stand(number, place, dropped),
                Some(WaiterEvent::Unable(reply)) => {
                    self.counters.add(Seen::NoLine);
                    let (task, reply) = (self.waiters[number].task, self.falsify_unable(reply));
                    self.tell_acquisition(task, |acquisition, random, now| {
                        acquisition.handle_unable(&reply, random, now);
                    });
                    self.leave_line(number);
                    return self.advance(task);
                }
                None if !self.waiters[number].signals.is_empty() => self.take_signals(number),
                None => break,
            }
        }
        self.set_waiter_timer(number);
        self.see_where_it_stands(number);
    }

    /// Hands the nodes what the waiter wants sent, and the waiter the owners it wants.
    fn settle_waiter(&mut self, number: usize) {
        self.pump_waiter(number);
        while self.waiters[number].waiter.wants_owner() {
            let Queued { client, key, task, owner: earlier, .. } = self.waiters[number];
            let owner = match (self.broken, earlier) {
                (Some(Switch::HeadKeepsItsOwner), Some(earlier)) => earlier,
                _ => self.new_owner(client, key, Some(number)),
            };
            let (subject, node) = (self.owners[owner].owner, self.waiters[number].waiter.node());
            self.renew_mailbox(number);
            self.leave_group(number, Some(node));
            if let Some(earlier) = earlier {
                self.listen_no_more(client, earlier);
            }
            self.clients[client].groups.listen(subject);
            self.clients[client].contended_keys.note(&self.keys[key], node);
            let (deaf, now) = (self.is_deaf(client, node.index()), self.client_now(client));
            if self.waiters[number].stands != node.index() {
                (self.waiters[number].place, self.waiters[number].since) = (None, now);
            }
            self.waiters[number].stands = node.index();
            note!(self, "w{number} (task {task}) is o{owner} at {node}");
            let waiter = &mut self.waiters[number];
            waiter.owner = Some(owner);
            waiter.owners.push(owner);
            waiter.waiter.supply(subject, deaf, now);
            self.pump_waiter(number);
        }
    }

    pub fn listen_no_more(&mut self, client: usize, owner: usize) {
        self.clients[client].groups.forget(self.owners[owner].owner);
    }

    /// Whether wake-ups of a node do not reach a client.
    fn is_deaf(&self, client: usize, node: usize) -> bool {
        self.clients[client].deaf || self.nodes[node].forbids_wake_ups
    }

    fn pump_waiter(&mut self, number: usize) {
        while let Some(mut send) = self.waiters[number].waiter.poll_send() {
            let Queued { client, generation, .. } = self.waiters[number];
            let Some(owner) = send.operation.owner().and_then(|owner| self.owner_number(owner)) else {
                continue;
            };
            let (node, releases, owed) = (send.node, send.operation.releases(), send.debt.clone());
            if releases {
                self.owners[owner].retired = true;
                if self.broken == Some(Switch::LeavesWithoutRelease) {
                    continue;
                }
            }
            let now = self.client_now(client);
            self.witness_look(number, node.index(), &send.operation);
            self.falsify_look(client, &mut send.operation);
            let purpose = Purpose::Line { waiter: number, call: send.call, generation };
            let admitted = self.send(client, node.index(), owner, send.operation, purpose, send.debt);
            if releases && owed.is_none() {
                self.owners[owner].nodes[node.index()].given_back = true;
            } else if releases {
                self.release_went(client, owner, node, owed, admitted.is_ok());
            }
            if send.leaves && self.broken != Some(Switch::ListensAfterRelease) {
                self.listen_no_more(client, owner);
            }
            self.waiters[number].waiter.handle_sent(send.call, admitted, now);
        }
    }

    /// An answer to a look.
    pub fn feed_waiter(&mut self, number: usize, call: usize, reply: Reply) {
        let Purpose::Line { call: name, generation, .. } = self.calls[call].purpose else { return };
        let earlier = match &self.calls[call].operation {
            Operation::Queue { rename_from: Some(earlier), .. } => self.owner_number(*earlier),
            _ => None,
        };
        let (connection, node) = {
            let connection = self.calls[call].connection;
            (connection, self.connections[connection].node)
        };
        let taken_over = matches!(reply, Reply::Voted | Reply::Queued(_));
        let refused = reply.is_an_answer() || matches!(reply, Reply::Unknown(Unknown::Error(_)));
        self.tasks[self.waiters[number].task].refused |= refused && !taken_over;
        let waiter = &self.waiters[number];
        // While it claims, nobody opens the mailbox; and the one of an earlier owner is gone.
        if waiter.over || waiter.claim.is_some() || waiter.generation != generation {
            return;
        }
        let client = waiter.client;
        let now = self.client_now(client);
        let took = self.waiters[number].waiter.handle_reply(name, connection_id(connection), reply, now);
        if let Some(took) = took {
            let pace = &mut self.clients[client].pace;
            *pace = rank::worst_of_late(*pace, took);
        }
        self.drive(number);
        if let (true, Some(earlier)) = (taken_over, earlier) {
            self.taken_over(earlier, node, connection_id(connection));
        }
    }

    /// The waiter has a place: among those in the queue, and among those of its client.
    fn stand(&mut self, number: usize, place: Place, dropped: bool) {
        let (client, task, node) = {
            let waiter = &self.waiters[number];
            (waiter.client, waiter.task, waiter.waiter.node())
        };
        note!(self, "w{number} is {}. at {node}", place.before);
        if let Some(holder) = &place.holder
            && !matches!(holder.value, HolderValue::Owner(_))
        {
            self.counters.add(Seen::ForeignWaitedFor);
        }
        if dropped {
            self.counters.add(Seen::PlaceGivenBack);
        }
        let before = self.waiters[number].place.replace((node.index(), place.score, place.before));
        self.demand(Law::PlaceIsKept, line_laws::place_is_kept(before, node.index(), place.score));
        let mut usable = NodeSet::EMPTY;
        for better in self.waiters[number].waiter.better() {
            if self.is_usable(client, better.index()) && self.broken != Some(Switch::NeverReturns) {
                usable.insert(better);
            }
        }
        let (now, look) = (self.client_now(client), self.waiters[number].waiter.poll_timeout());
        let stand = Stand { score: place.score, dropped, usable };
        let waiter = &mut self.waiters[number].waiter;
        self.clients[client].groups.stand(waiter, stand, now);
        self.falsify_lead(number, look);
        let urged = self.waiters[number].urged;
        self.deliver_signals(client, urged);
        self.tell_acquisition(task, |acquisition, _, _| acquisition.handle_standing(node, place.holder));
    }

    fn set_waiter_timer(&mut self, number: usize) {
        let waiter = &self.waiters[number];
        let due = waiter.waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let due = due.min(self.wait_until(waiter.task));
        if due == Instant::FAR_FUTURE {
            return;
        }
        let at = self.client_when(waiter.client, due).max(self.now);
        if at != waiter.timer {
            self.waiters[number].timer = at;
            // Timers end late, never early.
            let late = self.draw.between(0, self.plan.latency);
            self.schedule(at + late, Event::WaiterTimer(number));
        }
    }

    /// Until when the acquisition of a task stays in the queue.
    fn wait_until(&self, task: usize) -> Instant {
        match self.tasks[task].step() {
            Some(Step::Queue { until }) => until,
            _ => Instant::FAR_FUTURE,
        }
    }

    pub fn waiter_timer(&mut self, number: usize) {
        let waiter = &mut self.waiters[number];
        if waiter.over || waiter.claim.is_some() {
            return;
        }
        waiter.timer = TrueTime::MAX;
        let (task, client) = (waiter.task, waiter.client);
        let now = self.client_now(client);
        self.tell_acquisition(task, |acquisition, _, now| acquisition.handle_timeout(now));
        if self.stays(number) {
            self.waiters[number].waiter.handle_timeout(now);
            self.drive(number);
        }
    }

    /// Whether the acquisition still waits in the queue; else the waiter leaves, and what comes next begins.
    fn stays(&mut self, number: usize) -> bool {
        let task = self.waiters[number].task;
        if matches!(self.tasks[task].step(), Some(Step::Queue { .. })) {
            return true;
        }
        if self.has_vote(number) {
            self.counters.add(Seen::WaitOverAtHandOver);
        }
        self.leave_line(number);
        self.advance(task);
        false
    }

    /// Claims all nodes under the waiter's owner.
    fn claim(&mut self, number: usize, vote: QueueVote) {
        let Queued { client, task, key, queues, owner, .. } = self.waiters[number];
        let Some(owner) = owner else { return };
        self.leave_group(number, None);
        self.see_attempt(task);
        let (subject, ttl) = (self.owners[owner].owner, self.tasks[task].ttl);
        let now = self.client_now(client);
        let (fence, expected) = self.draw_fence(client);
        let options =
            Options { queues: Some(queues), vote: Some(vote), fence, expected, ..Options::default() };
        let terms = self.plan.terms(ttl);
        let lease = Lease::acquire(terms, self.keys[key].clone(), subject, Asking::Claim, options, now);
        let tenure = self.tenures.len();
        let mut holder = Tenure::new(lease, client, task, owner, ttl.as_millis(), self.now);
        holder.round.expected = expected.unwrap_or(u64::MAX);
        holder.waiter = Some(number);
        holder.patient = vote.patient;
        self.tenures.push(holder);
        self.waiters[number].claim = Some(tenure);
        note!(self, "w{number} claims as o{owner}{}", if vote.patient { ", patiently" } else { "" });
        self.drain(tenure);
        self.falsify_claim(tenure);
    }

    /// The claim is granted: the waiter has what it waited for.
    pub fn claim_granted(&mut self, number: usize) {
        self.counters.add(Seen::HandOverClaimed);
        let waiter = &mut self.waiters[number];
        (waiter.over, waiter.claim) = (true, None);
        self.grant_in_line(number);
    }

    /// The claim failed: the vote is kept, where this is the queue that counts.
    pub fn claim_failed(&mut self, number: usize, tenure: usize, failure: Failure) {
        let round = self.tenures[tenure].lease.round().clone();
        let mut claim_failure = self.waiters[number].waiter.claim_failure(&round);
        self.falsify_setback(&mut claim_failure);
        note!(self, "w{number}: {failure:?}, {claim_failure:?}");
        let doubt = self.tenures[tenure].lease.surrender().unwrap_or_default();
        self.tenures[tenure].dropped = true;
        let Queued { client, task, .. } = self.waiters[number];
        self.listen_no_more(client, self.tenures[tenure].owner);
        let now = self.client_now(client);
        self.waiters[number].claim = None;
        let waiter = &mut self.waiters[number].waiter;
        waiter.claim_failed(doubt, claim_failure, now);
        let kept = waiter.wants_owner();
        self.counters.add(match kept {
            true => Seen::VoteKept,
            false if claim_failure.best => Seen::GaveWay,
            false => Seen::VoteGivenBack,
        });
        self.see_failure(task, tenure);
        self.tell_acquisition(task, |acquisition, _, at| {
            acquisition.handle_claim_failed(Failed { failure, round, at }, at);
        });
        if self.stays(number) {
            self.drive(number);
        }
    }

    /// Leaves the queue, wherever the waiter stands. A claim under way is its lease's to undo.
    pub fn leave_line(&mut self, number: usize) {
        self.waiters[number].waiter.give_up();
        self.pump_waiter(number);
        self.leave_group(number, None);
        let waiter = &mut self.waiters[number];
        waiter.over = true;
        let claimed = waiter.claim.take().is_some();
        let Queued { client, owner, .. } = self.waiters[number];
        if let (Some(owner), false) = (owner, claimed) {
            self.listen_no_more(client, owner);
        }
        self.witness_leaving(number, claimed);
    }

    /// Whether its node has given the waiter its vote by now.
    pub fn has_vote(&mut self, number: usize) -> bool {
        let waiter = &self.waiters[number];
        let (key, node) = (waiter.key, waiter.waiter.node().index());
        let Some(owner) = waiter.owner.map(|owner| self.owners[owner].owner) else { return false };
        self.nodes[node].carries(&self.keys[key], owner, self.now)
    }
}
