//! What users do: acquire, hold, extend, release, walk away at any moment. And in a healed world: get in.

use std::time::Duration;

use redquorum::protocol::backoff::{Backoff, RetryReason};
use redquorum::protocol::lease::{Asking, Event as LeaseEvent, Failure, Lease, NotExtended, Released};
use redquorum::protocol::message::{HolderValue, Owner, Reply};
use redquorum::protocol::quorum::NodeSet;
use redquorum::protocol::renewal::Schedule;
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::Ttl;

use super::broken::Switch;
use super::client::Tenure;
use super::clock::MILLI;
use super::counters::Seen;
use super::trace::note;
use super::waiter::{self, Queued};
use super::witness::{OwnerWitness, RoundKind};
use super::world::{Event, World};

/// Where a task stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Thinking,
    Acquiring(usize),
    /// In line, or claiming from there.
    Queued(usize),
    /// Between two attempts.
    Waiting,
    Holding(usize),
    Releasing(usize),
    Done,
}

/// One task of one client.
#[derive(Debug)]
pub struct Task {
    pub client: usize,
    pub state: State,
    key: usize,
    backoff: Backoff,
    attempts_left: u64,
    extensions_left: u64,
    /// Extends in good time, again and again: by the schedule of the renewal task.
    keep: Option<Schedule>,
    asking: Asking,
    ttl: Ttl,
    /// It waits in the queue where it can, until then on its client's clock.
    in_queue: bool,
    deadline: Instant,
    /// Each wake-up carries the number it was set with; an older one means nothing any more.
    alarm: u32,
    /// It has acquired and released in the healed world.
    got_in: bool,
    /// The owner of the attempt before, for the switch that uses it again.
    last_owner: Option<usize>,
}

impl Task {
    pub fn new(client: usize, ttl: Ttl) -> Self {
        Self {
            client,
            state: State::Thinking,
            key: 0,
            backoff: Backoff::new(Duration::ZERO, Duration::ZERO),
            attempts_left: 0,
            extensions_left: 0,
            keep: None,
            asking: Asking::Set,
            ttl,
            in_queue: false,
            deadline: Instant::FAR_FUTURE,
            alarm: 0,
            got_in: false,
            last_owner: None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

impl World {
    fn wake_after(&mut self, task: usize, pause: u64) {
        self.tasks[task].alarm += 1;
        let alarm = self.tasks[task].alarm;
        self.schedule(self.now + pause, Event::Task { task, alarm });
    }

    pub fn wake(&mut self, task: usize, alarm: u32) {
        if self.tasks[task].alarm != alarm {
            return;
        }
        match self.tasks[task].state {
            State::Thinking => self.set_out(task),
            State::Waiting => self.attempt(task),
            State::Acquiring(tenure) => {
                self.counters.add(Seen::AbandonedMidRound);
                self.walk_away(tenure);
            }
            State::Queued(waiter) => self.walk_out_of_line(task, waiter),
            State::Holding(tenure) => self.act_as_holder(task, tenure),
            State::Releasing(tenure) => {
                self.counters.add(Seen::ReleaseAbandoned);
                self.walk_away(tenure);
            }
            State::Done => {}
        }
    }

    /// Thinks for a while; in the healed world, has had enough once it got in.
    pub fn think(&mut self, task: usize) {
        if self.healed && self.tasks[task].got_in {
            self.tasks[task].state = State::Done;
            self.all_in_at = self.now;
            return;
        }
        self.tasks[task].state = State::Thinking;
        let pause = self.draw.below(self.plan.think);
        self.wake_after(task, pause);
    }

    fn set_out(&mut self, task: usize) {
        let key = self.draw.below(self.keys.len() as u64) as usize;
        let client = self.tasks[task].client;
        let queues = self.clients[client].in_queue;
        let waits = queues && (self.healed || self.draw.chance(self.plan.waits));
        let attempts_left = match self.healed || waits {
            true => u64::MAX,
            // A newcomer that tries once beside those in the queue.
            false if queues => 1,
            false => self.draw.spread(1, 32),
        };
        let mut deadline = Instant::FAR_FUTURE;
        let limited = waits && !self.healed && self.broken != Some(Switch::NeverReturns);
        if limited && self.draw.chance(800) {
            let wait = self.draw.spread(MILLI, self.plan.wait);
            deadline = self.client_now(client).after(Duration::from_nanos(wait));
        }
        let ttl = self.draw.pick(&self.plan.ttls);
        let least = Duration::from_nanos(4 * self.plan.latency.max(MILLI));
        let backoff = Backoff::new(least, self.plan.backoff);
        let asking = if self.draw.chance(800) { Asking::Set } else { Asking::Claim };
        self.tasks[task] = Task {
            key,
            backoff,
            attempts_left,
            asking,
            ttl,
            in_queue: waits,
            deadline,
            ..std::mem::replace(&mut self.tasks[task], Task::new(0, ttl))
        };
        if waits && self.clients[client].board.contended_keys.contains_key(&key) {
            self.counters.add(Seen::HintedIntoLine);
            return self.enter_line(task);
        }
        self.attempt(task);
    }

    /// One round under a new owner.
    fn attempt(&mut self, task: usize) {
        let Task { client, key, asking, .. } = self.tasks[task];
        let ttl = match self.tasks[task].in_queue {
            true => self.tasks[task].ttl,
            false => self.draw.pick(&self.plan.ttls),
        };
        let owner = self.owner_for(task);
        let terms = self.plan.terms(ttl);
        let subject = self.owners[owner].owner;
        let now = self.client_now(client);
        let lease = Lease::acquire(terms, self.keys[key].clone(), subject, asking, now);
        let lease = self.fence(lease, client);
        let lease = match self.queues(client, key) {
            Some(queues) => lease.with_lines(queues),
            None => lease,
        };
        let tenure = self.tenures.len();
        self.tenures.push(Tenure::new(lease, client, task, owner, ttl.as_millis(), self.now));
        note!(
            self,
            "c{client} task {task} acquires {} as o{owner} for {} ms",
            self.keys[key],
            ttl.as_millis()
        );
        self.tasks[task].state = State::Acquiring(tenure);
        if !self.healed && self.draw.chance(self.plan.impatience) {
            let patience = self.draw.spread(self.plan.latency / 4, 8 * self.plan.latency);
            self.wake_after(task, patience);
        } else {
            self.tasks[task].alarm += 1;
        }
        self.drain(tenure);
    }

    fn owner_for(&mut self, task: usize) -> usize {
        if let (Some(Switch::OwnerReused), Some(last)) = (self.broken, self.tasks[task].last_owner) {
            return last;
        }
        let Task { client, key, .. } = self.tasks[task];
        let owner = self.new_owner(client, key, None);
        self.tasks[task].last_owner = Some(owner);
        owner
    }

    /// An owner that was never sent before.
    pub fn new_owner(&mut self, client: usize, key: usize, waiter: Option<usize>) -> usize {
        let owner = self.owners.len();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(owner as u64).to_be_bytes());
        bytes[8..].copy_from_slice(&self.draw.next().to_be_bytes());
        self.owners.push(OwnerWitness {
            owner: Owner::from_bytes(bytes),
            key,
            client,
            waiter,
            wake_lost: false,
            undone: false,
            retired: false,
            told: NodeSet::EMPTY,
            longest_ttl: 0,
            nodes: Default::default(),
        });
        owner
    }

    /// What a lease says, heard by its task.
    pub fn tell_task(&mut self, tenure: usize, event: LeaseEvent) {
        let Some(task) = self.tenures[tenure].task else { return };
        match event {
            LeaseEvent::Held(_) => {
                match self.tenures[tenure].waiter {
                    Some(waiter) => self.claim_granted(waiter),
                    None => self.grant_beside_the_line(self.owners[self.tenures[tenure].owner].key),
                }
                self.begin_to_hold(task, tenure)
            }
            LeaseEvent::Failed(failure) => match self.tenures[tenure].waiter {
                Some(waiter) => self.claim_failed(waiter, tenure, failure),
                None => self.failed(task, tenure, failure),
            },
            LeaseEvent::Extended(_) => {
                self.counters.add(Seen::Extended);
                self.keep_on(task, tenure, true);
            }
            LeaseEvent::NotExtended(NotExtended::Unconfirmed) => {
                self.counters.add(Seen::ExtensionUnconfirmed);
                self.keep_on(task, tenure, false);
            }
            LeaseEvent::NotExtended(why) => {
                let lost = why == NotExtended::Lost;
                self.counters.add(if lost { Seen::ExtensionLost } else { Seen::ExtensionTooLate });
                self.tasks[task].last_owner = None;
                self.think(task);
            }
            LeaseEvent::Released(how) => self.released(task, how),
        }
    }

    fn begin_to_hold(&mut self, task: usize, tenure: usize) {
        self.counters.add(Seen::Granted);
        if self.tenures[tenure].round.answered.len() < self.plan.quorum.nodes() {
            self.counters.add(Seen::HeldWithSilentNode);
        }
        self.tasks[task].state = State::Holding(tenure);
        let keeps = self.draw.chance(300);
        let most = if keeps { 8 } else { 2 };
        let extends = keeps || self.draw.chance(250);
        let extensions = if extends && !self.healed { self.draw.between(1, most) } else { 0 };
        let random = self.random();
        let lease = &self.tenures[tenure].lease;
        let ttl = lease.longest();
        self.tasks[task].keep = keeps.then(|| Schedule::new(ttl, lease.round().started(), random));
        self.tasks[task].extensions_left = extensions;
        let hold = self.hold_time(task, tenure);
        self.wake_after(task, hold);
    }

    fn random(&mut self) -> u32 {
        (self.draw.next() >> 32) as u32
    }

    /// After the verdict on a keeper's extension: when the next is due, unless the holder is about to let go.
    fn keep_on(&mut self, task: usize, tenure: usize, confirmed: bool) {
        let (random, now) = (self.random(), self.client_now(self.tasks[task].client));
        let started = self.tenures[tenure].lease.round().started();
        let Some(keep) = &mut self.tasks[task].keep else { return };
        match confirmed {
            true => keep.confirmed(started, random),
            false => keep.unconfirmed(now, random),
        }
        if self.tasks[task].extensions_left > 0 {
            let pause = self.hold_time(task, tenure);
            self.wake_after(task, pause);
        }
    }

    /// Until the holder does something again: mostly short; sometimes up to the very end of validity, or beyond.
    fn hold_time(&mut self, task: usize, tenure: usize) -> u64 {
        let holder = &self.tenures[tenure];
        let until = holder.valid_until.map_or(self.now, |until| self.client_when(holder.client, until));
        let left = until.saturating_sub(self.now);
        let round_trip = 2 * self.plan.latency;
        if let (Some(keep), false) = (self.tasks[task].keep, self.healed) {
            let due = self.client_when(holder.client, keep.due());
            return due.saturating_sub(self.now).min(left);
        }
        match self.draw.below(100) {
            _ if self.healed => self.draw.below(round_trip),
            0..68 => self.draw.below(2 * round_trip),
            68..80 if !self.plan.calm => self.draw.below(left + 1),
            // A holder that lets its lock run out is taken for hung, so none does while the order is demanded.
            _ if self.plan.calm => self.draw.below(left / 2 + 1),
            80..91 => left.saturating_sub(self.draw.below(round_trip)),
            _ => left + self.draw.below(left + 1),
        }
    }

    fn act_as_holder(&mut self, task: usize, tenure: usize) {
        let holder = &self.tenures[tenure];
        let now = self.client_now(holder.client);
        let valid = holder.valid_until.is_some_and(|until| now < until);
        if !valid && self.clients[holder.client].paused_until == self.now {
            self.counters.add(Seen::PausedBeyondValidity);
        }
        if self.tasks[task].extensions_left > 0 {
            self.tasks[task].extensions_left -= 1;
            return self.extend(task, tenure);
        }
        if self.draw.chance(250) && !self.healed {
            return self.walk_away(tenure);
        }
        note!(self, "task {task} releases o{}", self.tenures[tenure].owner);
        self.tasks[task].state = State::Releasing(tenure);
        let now = self.lease_now(tenure);
        self.tenures[tenure].lease.release(now);
        self.tasks[task].alarm += 1;
        if self.draw.chance(self.plan.impatience) && !self.healed {
            let patience = self.draw.below(4 * self.plan.latency);
            self.wake_after(task, patience);
        }
        self.drain(tenure);
    }

    fn extend(&mut self, task: usize, tenure: usize) {
        let ttl = self.draw.pick(&self.plan.ttls);
        let ttl = self.tasks[task].keep.map_or(ttl, |keep| keep.ttl());
        note!(self, "task {task} extends o{} by {} ms", self.tenures[tenure].owner, ttl.as_millis());
        if self.tenures[tenure].round.kind == RoundKind::Extend && !self.tenures[tenure].round.decided {
            self.counters.add(Seen::ExtensionReplaced);
        }
        let record = &mut self.owners[self.tenures[tenure].owner];
        record.longest_ttl = record.longest_ttl.max(ttl.as_millis());
        if self.tasks[task].keep.is_none() {
            let again = self.hold_time(task, tenure);
            self.wake_after(task, again);
        } else if self.tasks[task].extensions_left == 0 {
            // Lets go while its last extension may still be under way.
            let again = self.draw.below(4 * self.plan.latency);
            self.wake_after(task, again);
        } else {
            // The verdict says when to go on.
            self.tasks[task].alarm += 1;
        }
        let now = self.lease_now(tenure);
        self.tenures[tenure].lease.extend(ttl, now);
        self.drain(tenure);
    }

    fn failed(&mut self, task: usize, tenure: usize, failure: Failure) {
        let round = self.tenures[tenure].lease.round();
        let majority = round.majority_holder().cloned();
        let remaining = round.shortest_remaining();
        if matches!(majority, Some(HolderValue::Foreign(_))) {
            self.counters.add(Seen::ForeignHolder);
        }
        let (seen, cause) = match failure {
            Failure::Contended if majority.is_none() => (Seen::SplitVote, RetryReason::Split),
            Failure::Contended => (Seen::Contended, RetryReason::Held(remaining)),
            Failure::Unavailable => (Seen::Unavailable, RetryReason::Unavailable),
            Failure::TooYoung { .. } => (Seen::FailedByRestartDelay, RetryReason::Unavailable),
            Failure::Exhausted { .. } => (Seen::Exhausted, RetryReason::Unavailable),
        };
        self.counters.add(seen);
        self.tenures[tenure].dropped = self.draw.chance(300);
        let random = self.draw.next();
        let actor = &mut self.tasks[task];
        actor.attempts_left -= 1;
        if actor.attempts_left == 0 {
            return self.think(task);
        }
        if actor.in_queue && failure == Failure::Contended {
            return self.enter_line(task);
        }
        let actor = &mut self.tasks[task];
        actor.state = State::Waiting;
        // Contention is known now: the path that also tells the holder's remaining life.
        actor.asking = if failure == Failure::Contended { Asking::Claim } else { actor.asking };
        let pause = actor.backoff.next(cause, random).as_nanos() as u64;
        self.wake_after(task, pause);
    }

    /// Waits in the queue, for as long as its wait lasts.
    fn enter_line(&mut self, task: usize) {
        let Task { client, key, ttl, deadline, .. } = self.tasks[task];
        if self.client_now(client) >= deadline {
            return self.think(task);
        }
        let waiter = self.stand_in_line(task, key, ttl, deadline);
        self.tasks[task].state = State::Queued(waiter);
        if !self.healed && self.draw.chance(self.plan.impatience) {
            let patience = self.draw.spread(self.plan.latency / 4, 1_500 * MILLI);
            self.wake_after(task, patience);
        } else {
            self.tasks[task].alarm += 1;
        }
        self.drive(waiter);
    }

    /// No queue can be used: asks again after a pause. One that could not be reached is tried again.
    pub fn no_line(&mut self, task: usize, reply: Reply) {
        let random = self.draw.next();
        let actor = &mut self.tasks[task];
        actor.in_queue &= !waiter::is_final(&reply);
        actor.asking = if actor.in_queue { actor.asking } else { Asking::Claim };
        let (client, deadline) = (actor.client, actor.deadline);
        let pause = actor.backoff.next(RetryReason::Held(None), random).as_nanos() as u64;
        if self.client_now(client) >= deadline {
            return self.think(task);
        }
        self.tasks[task].state = State::Waiting;
        self.wake_after(task, pause);
    }

    /// The future of an acquire is dropped while it waits in the queue, or claims from there.
    fn walk_out_of_line(&mut self, task: usize, waiter: usize) {
        note!(self, "task {task} drops w{waiter}");
        let voted = self.has_vote(waiter);
        match self.waiters[waiter].claim {
            Some(tenure) => {
                self.counters.add(Seen::DroppedWhileClaiming);
                self.abandon(tenure);
                self.drain(tenure);
                self.tenures[tenure].dropped = true;
            }
            None => {
                self.counters.add(if voted { Seen::DroppedAtHandOver } else { Seen::DroppedInLine });
                self.leave_line(waiter);
                self.think(task);
            }
        }
    }

    /// A waiter may be dropped, or its wait may end, just when it is given the vote.
    pub fn strike_at_hand_over(&mut self, owner: usize) {
        let Some(waiter) = self.owners[owner].waiter else { return };
        let Queued { client, task, over, deadline, .. } = self.waiters[waiter];
        if self.healed || over || !self.draw.chance(self.plan.bad_timing) {
            return;
        }
        let soon = self.draw.below(8 * self.plan.latency);
        if self.draw.chance(500) {
            self.wake_after(task, soon);
        } else {
            let ends = self.client_now(client).after(Duration::from_nanos(soon));
            self.waiters[waiter].deadline = deadline.min(ends);
            self.schedule(self.client_when(client, ends), Event::WaiterTimer(waiter));
        }
    }

    fn released(&mut self, task: usize, how: Released) {
        self.counters.add(match how {
            Released::Confirmed => Seen::ReleaseConfirmed,
            Released::Gone => Seen::ReleaseGone,
            Released::TakenOver => Seen::ReleaseTakenOver,
            Released::Unconfirmed => Seen::ReleaseUnconfirmed,
        });
        self.tasks[task].got_in |= self.healed;
        self.tasks[task].last_owner = None;
        self.think(task);
    }

    fn walk_away(&mut self, tenure: usize) {
        self.abandon(tenure);
        self.drain(tenure);
        self.tenures[tenure].dropped = self.draw.chance(700);
    }

    /// A task whose lease was abandoned goes on with something else.
    pub fn forget_lease(&mut self, task: usize) {
        self.tasks[task].last_owner = None;
        self.think(task);
    }
}
