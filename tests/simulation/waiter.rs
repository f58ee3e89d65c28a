//! Waiting in the queue: drives the real `Waiter` by its contract, as `runtime/waiting.rs` does in the library.
//!
//! Decides nothing: it hands the nodes what the waiter wants sent, and the waiter the owners it wants; it claims when told
//! to, and feeds back how that went. What the others of its client have to do with it is in `wakeups.rs`.

use std::time::Duration;

use redquorum::protocol::lease::{Asking, Failure, Lease};
use redquorum::protocol::message::{HolderValue, NotSent, Operation, Reply, Unknown};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::Ttl;
use redquorum::protocol::wait_queue::rank::{self, NodeName, QueueNodes, Ranks};
use redquorum::protocol::wait_queue::waiter::{Event as WaiterEvent, Waiter, WaiterSettings};

use super::broken::Switch;
use super::client::Tenure;
use super::clock::TrueTime;
use super::counters::Seen;
use super::laws::Law;
use super::line_laws;
use super::network::{Purpose, connection_id};
use super::trace::note;
use super::wakeups::{GroupName, Mailbox, Member, Signals};
use super::world::{Event, World};

/// One waiter, and what carries it.
#[derive(Debug)]
pub struct Queued {
    pub waiter: Waiter,
    pub client: usize,
    pub task: usize,
    pub key: usize,
    ttl: Ttl,
    queues: QueueNodes,
    /// When the wait ends, on the client's clock.
    pub deadline: Instant,
    /// The present owner, and all it ever had.
    pub owner: Option<usize>,
    pub owners: Vec<usize>,
    /// Which of its mailboxes counts.
    pub generation: u32,
    pub signals: Signals,
    seat: Option<(GroupName, Member)>,
    /// The claim under way.
    pub claim: Option<usize>,
    /// It holds the lock, or has left.
    pub over: bool,
    asked: Instant,
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
    pub fn ranks(&self, client: usize, key: usize) -> Ranks {
        let name = |node: usize| self.links[self.link_of(client, node)].name;
        let names: Vec<Option<NodeName>> = (0..self.nodes.len()).map(name).collect();
        rank::rank(self.keys[key].as_bytes(), &names, self.plan.quorum)
    }

    /// What a lease of this client has to know of the queues for a key; nothing where it does not wait in one.
    pub fn queues(&self, client: usize, key: usize) -> Option<QueueNodes> {
        let client_id = self.clients[client].board.client;
        self.clients[client].in_queue.then(|| self.ranks(client, key).queues(client_id, self.plan.quorum))
    }

    /// A task waits in the queue until `deadline`.
    pub fn stand_in_line(&mut self, task: usize, key: usize, ttl: Ttl, deadline: Instant) -> usize {
        let client = self.tasks[task].client;
        let ranks = self.ranks(client, key);
        let board = &self.clients[client].board;
        let terms = self.plan.terms(ttl);
        let habits = WaiterSettings {
            client: board.client,
            hand_over: rank::hand_over(board.pace, ttl),
            reply_timeout: terms.reply_timeout,
            drift: terms.drift,
        };
        let queues = ranks.queues(board.client, self.plan.quorum);
        let waiter = Waiter::new(self.keys[key].clone(), ranks, habits, self.draw.next());
        let number = self.waiters.len();
        note!(self, "c{client} task {task} waits in the queue for {} as w{number}", self.keys[key]);
        self.counters.add(Seen::StoodInLine);
        self.waiters.push(Queued {
            waiter,
            client,
            task,
            key,
            ttl,
            queues,
            deadline,
            owner: None,
            owners: Vec::new(),
            generation: 0,
            signals: Signals::default(),
            seat: None,
            claim: None,
            over: false,
            asked: Instant::default(),
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
                Some(WaiterEvent::Claim { patient }) => return self.claim(number, patient),
                Some(WaiterEvent::Standing { place, dropped }) => {
                    let node = self.waiters[number].waiter.node().index();
                    note!(self, "w{number} is {}. at {}", place.before, NodeId::new(node));
                    if let Some(holder) = &place.holder
                        && !matches!(holder.value, HolderValue::Owner(_))
                    {
                        self.counters.add(Seen::ForeignWaitedFor);
                    }
                    if dropped {
                        self.counters.add(Seen::PlaceGivenBack);
                    }
                    let before = self.waiters[number].place.replace((node, place.score, place.before));
                    self.demand(Law::PlaceIsKept, line_laws::place_is_kept(before, node, place.score));
                    self.take_seat(number, place.score, dropped);
                }
                Some(WaiterEvent::Unable(reply)) => {
                    self.counters.add(Seen::NoLine);
                    self.leave_line(number);
                    return self.no_line(self.waiters[number].task, reply);
                }
                None if self.waiters[number].signals != Signals::default() => self.take_signals(number),
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
            let subject = self.owners[owner].owner;
            let node = self.waiters[number].waiter.node().index();
            self.waiters[number].generation += 1;
            self.waiters[number].signals = Signals::default();
            if let Some((group, member)) = self.waiters[number].seat.take() {
                if group.1 != node {
                    self.nudge(client, group, subject);
                }
                self.rise(client, group, member);
            }
            if let Some(earlier) = earlier {
                self.clients[client].board.listen_no_more(earlier);
            }
            let mailbox = Mailbox { waiter: number, generation: self.waiters[number].generation };
            self.clients[client].board.listen(owner, mailbox);
            let deaf = self.is_deaf(client, node);
            self.clients[client].board.contended_keys.insert(key, node);
            let now = self.client_now(client);
            if self.waiters[number].stands != node {
                (self.waiters[number].place, self.waiters[number].since) = (None, now);
            }
            self.waiters[number].stands = node;
            note!(self, "w{number} (task {task}) is o{owner} at {}", NodeId::new(node));
            let waiter = &mut self.waiters[number];
            waiter.owner = Some(owner);
            waiter.owners.push(owner);
            waiter.waiter.supply(subject, deaf, now);
            self.pump_waiter(number);
        }
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
            self.waiters[number].asked = now;
            let purpose = Purpose::Line { waiter: number, call: send.call, generation };
            let admitted = self.send(client, node.index(), owner, send.operation, purpose, send.debt);
            if releases && owed.is_none() {
                self.owners[owner].nodes[node.index()].given_back = true;
                self.clients[client].board.listen_no_more(owner);
            } else if releases {
                self.release_went(client, owner, node, owed, admitted.is_ok());
                if self.waiters[number].owner == Some(owner)
                    && self.broken != Some(Switch::ListensAfterRelease)
                {
                    self.clients[client].board.listen_no_more(owner);
                }
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
        let waiter = &self.waiters[number];
        // While it claims, nobody opens the mailbox; and the one of an earlier owner is gone.
        if waiter.over || waiter.claim.is_some() || waiter.generation != generation {
            return;
        }
        let client = waiter.client;
        let now = self.client_now(client);
        if taken_over {
            let round_trip = now.since(waiter.asked);
            self.clients[client].board.note_pace(round_trip);
        }
        self.waiters[number].waiter.handle_reply(name, connection_id(connection), reply, now);
        self.drive(number);
        if let (true, Some(earlier)) = (taken_over, earlier) {
            self.taken_over(earlier, node, connection_id(connection));
        }
    }

    /// What was waiting for the waiter beside answers.
    fn take_signals(&mut self, number: usize) {
        let signals = std::mem::take(&mut self.waiters[number].signals);
        let now = self.client_now(self.waiters[number].client);
        let stands = self.waiters[number].waiter.node();
        let waiter = &mut self.waiters[number];
        waiter.urged |= signals.nudged || signals.usable.contains(stands);
        if signals.woken {
            waiter.waiter.handle_wake();
        }
        if let Some(leads) = signals.leads {
            match leads {
                Some(look) => waiter.waiter.take_lead(look, now),
                None => waiter.waiter.set_leads(false, now),
            }
        }
        if signals.nudged {
            waiter.waiter.handle_nudge(now);
        }
        for node in signals.usable {
            self.waiters[number].waiter.handle_usable(node, now);
            if self.waiters[number].waiter.wants_owner() && node != stands {
                self.counters.add(Seen::MovedToBetterNode);
            }
        }
    }

    /// Takes a seat among the client's waiters, or keeps it, and learns whether it has to look for all.
    fn take_seat(&mut self, number: usize, score: u64, dropped: bool) {
        let Queued { client, key, generation, seat, .. } = self.waiters[number];
        let waiter = &self.waiters[number].waiter;
        let group = (key, waiter.node().index());
        let (owner, better) = (waiter.owner(), waiter.better());
        let member = (score, owner);
        let look = waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let leads = if seat == Some((group, member)) {
            self.sit_on(client, group, member, look)
        } else {
            let mailbox = Mailbox { waiter: number, generation };
            let leads = self.sit(client, group, member, mailbox, look, better);
            if let Some((group, member)) = self.waiters[number].seat.replace((group, member)) {
                self.rise(client, group, member);
            }
            leads
        };
        let leads = (leads || self.broken == Some(Switch::EverybodyLooks))
            && self.broken != Some(Switch::NeverWokenNorLooking);
        self.waiters[number].waiter.set_leads(leads, look);
        let now = self.client_now(client);
        if leads && self.waiters[number].waiter.wants_back(now) && self.broken != Some(Switch::NeverReturns) {
            for node in better.filter(|node| self.is_usable(client, node.index())).collect::<Vec<_>>() {
                self.send_to(client, group, node);
            }
        }
        if dropped && leads {
            self.nudge(client, group, owner);
        }
    }

    fn set_waiter_timer(&mut self, number: usize) {
        let waiter = &self.waiters[number];
        let due = waiter.waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let due = if self.broken == Some(Switch::WaitsOn) { due } else { due.min(waiter.deadline) };
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

    pub fn waiter_timer(&mut self, number: usize) {
        let waiter = &mut self.waiters[number];
        if waiter.over || waiter.claim.is_some() {
            return;
        }
        waiter.timer = TrueTime::MAX;
        let (client, task, deadline) = (waiter.client, waiter.task, waiter.deadline);
        let now = self.client_now(client);
        if now >= deadline && self.broken != Some(Switch::WaitsOn) {
            return self.wait_is_over(number, task);
        }
        self.waiters[number].waiter.handle_timeout(now);
        self.drive(number);
    }

    fn wait_is_over(&mut self, number: usize, task: usize) {
        note!(self, "w{number}: the wait is over");
        self.counters.add(Seen::TimedOut);
        if self.has_vote(number) {
            self.counters.add(Seen::WaitOverAtHandOver);
        }
        self.see_wait_end(number);
        self.leave_line(number);
        self.think(task);
    }

    /// Claims all nodes under the waiter's owner.
    fn claim(&mut self, number: usize, patient: bool) {
        let Queued { client, task, key, ttl, queues, owner, seat, .. } = self.waiters[number];
        let Some(owner) = owner else { return };
        if let Some((group, member)) = seat {
            self.waiters[number].seat = None;
            self.rise(client, group, member);
        }
        let (node, doubt) = (self.waiters[number].waiter.node(), self.waiters[number].waiter.doubt());
        let subject = self.owners[owner].owner;
        let now = self.client_now(client);
        let lease = Lease::acquire(self.plan.terms(ttl), self.keys[key].clone(), subject, Asking::Claim, now)
            .with_lines(queues)
            .voted_by(node, doubt, patient);
        let lease = self.fence(lease, client);
        let tenure = self.tenures.len();
        let mut holder = Tenure::new(lease, client, task, owner, ttl.as_millis(), self.now);
        holder.waiter = Some(number);
        holder.patient = patient;
        self.tenures.push(holder);
        self.waiters[number].claim = Some(tenure);
        note!(self, "w{number} claims as o{owner}{}", if patient { ", patiently" } else { "" });
        self.drain(tenure);
        self.falsify_claim(tenure);
    }

    /// The claim is granted: the waiter has what it waited for.
    pub fn claim_granted(&mut self, number: usize) {
        self.counters.add(Seen::HandOverClaimed);
        let waiter = &mut self.waiters[number];
        (waiter.over, waiter.claim) = (true, None);
        self.grant_in_line(number);
        self.see_wait_end(number);
    }

    /// A wait ends, with the lock or without.
    fn see_wait_end(&mut self, number: usize) {
        let Queued { client, deadline, .. } = self.waiters[number];
        if deadline == Instant::FAR_FUTURE {
            return;
        }
        // A claim that was begun just before; its timer and those of the wait end late.
        // In a healed world the latency is a quarter of what it was when they were set.
        let timers = if self.healed { 16 } else { 4 };
        // A fencing token may take a second round.
        let raised = self.tenures.iter().any(|tenure| tenure.waiter == Some(number) && tenure.raises);
        let rounds = if raised { 2 } else { 1 };
        let slack = rounds * self.plan.reply_timeout + Duration::from_nanos(timers * self.plan.latency);
        let ended = self.client_when(client, deadline);
        let excused = self.clients[client].paused_until + slack.as_nanos() as u64 >= ended;
        let now = self.client_now(client);
        self.demand(Law::WaitEndsInTime, line_laws::wait_ends_in_time(now, deadline, slack, excused));
    }

    /// The claim failed: the vote is kept, where this is the queue that counts.
    pub fn claim_failed(&mut self, number: usize, tenure: usize, failure: Failure) {
        let mut claim_failure = self.waiters[number].waiter.claim_failure(self.tenures[tenure].lease.round());
        self.falsify_setback(&mut claim_failure);
        note!(self, "w{number}: {failure:?}, {claim_failure:?}");
        let doubt = self.tenures[tenure].lease.surrender().unwrap_or_default();
        self.tenures[tenure].dropped = true;
        let client = self.waiters[number].client;
        self.clients[client].board.listen_no_more(self.tenures[tenure].owner);
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
        // At its end a wait begins nothing more.
        let Queued { task, deadline, .. } = self.waiters[number];
        if now >= deadline && self.broken != Some(Switch::WaitsOn) {
            return self.wait_is_over(number, task);
        }
        self.drive(number);
    }

    /// Leaves the queue, wherever the waiter stands. A claim under way is its lease's to undo.
    pub fn leave_line(&mut self, number: usize) {
        self.waiters[number].waiter.give_up();
        self.pump_waiter(number);
        let Queued { client, owner, seat, .. } = self.waiters[number];
        let waiter = &mut self.waiters[number];
        waiter.over = true;
        waiter.seat = None;
        let claimed = waiter.claim.take().is_some();
        if let Some((group, member)) = seat {
            self.rise(client, group, member);
        }
        if let (Some(owner), false) = (owner, claimed) {
            self.clients[client].board.listen_no_more(owner);
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

/// Whether a queue that could not be used is not worth another try.
pub fn is_final(reply: &Reply) -> bool {
    let in_doubt = matches!(reply, Reply::Unknown(Unknown::Error(_)));
    debug_assert!(!matches!(reply, Reply::NotSent(NotSent::Backlog)));
    reply.is_an_answer() || in_doubt
}
