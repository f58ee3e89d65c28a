//! What users do: acquire, hold, extend, release, walk away at any moment. And in a healed world: get in.

use std::time::Duration;

use redquorum::protocol::acquire::{Acquisition, Failed, Outlook, Rules, Step, Wait};
use redquorum::protocol::backoff::Backoff;
use redquorum::protocol::lease::{
    Asking, Event as LeaseEvent, Failure, Lease, NotExtended, Options, Released,
};
use redquorum::protocol::message::{HolderValue, Owner};
use redquorum::protocol::quorum::NodeSet;
use redquorum::protocol::renewal::Schedule;
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::Ttl;

use super::broken::Switch;
use super::client::Tenure;
use super::clock::MILLI;
use super::counters::Seen;
use super::laws::{self, Law};
use super::line_laws;
use super::trace::note;
use super::waiter::Queued;
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
    pub key: usize,
    pub ttl: Ttl,
    /// What it does to get the lock, until it has it.
    acquisition: Option<Acquisition>,
    extensions_left: u64,
    /// Extends in good time, again and again: by the schedule of the renewal task.
    keep: Option<Schedule>,
    /// Whether its acquire waits, and until when on its client's clock: beside the acquisition's own books.
    pub waits: bool,
    pub deadline: Instant,
    /// How often its acquire asked all nodes.
    pub asked: u64,
    /// A queue was refused to its acquire.
    pub refused: bool,
    /// A quorum of nodes told its acquire that no token is left.
    pub spent: bool,
    /// A quorum of nodes refused its last attempt, so that it has to wait in the queue next.
    pub must_queue: bool,
    /// One of its claims needed a second round for its token.
    pub raises: bool,
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
            ttl,
            acquisition: None,
            extensions_left: 0,
            keep: None,
            waits: false,
            deadline: Instant::FAR_FUTURE,
            asked: 0,
            refused: false,
            spent: false,
            must_queue: false,
            raises: false,
            alarm: 0,
            got_in: false,
            last_owner: None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// What its acquire does next; `None` if it is not acquiring.
    pub fn step(&self) -> Option<Step> {
        self.acquisition.as_ref().map(Acquisition::step)
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
            State::Waiting => {
                self.tell_acquisition(task, |acquisition, _, now| acquisition.handle_timeout(now));
                self.advance(task);
            }
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
        self.tasks[task].acquisition = None;
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
        // One of a client in the queue that does not wait is a newcomer that tries once beside it.
        let waits = self.healed || self.draw.chance(if queues { self.plan.waits } else { 700 });
        let limited = waits && !self.healed && !self.broken.is_some_and(Switch::is_about_moving);
        let limit = Duration::from_nanos(self.draw.spread(MILLI, self.plan.wait));
        let now = self.client_now(client);
        let (wait, deadline) = match (waits, limited && self.draw.chance(800)) {
            (false, _) => (Wait::No, now),
            (true, true) => (Wait::AtMost(limit), now.after(limit)),
            (true, false) => (Wait::Unlimited, Instant::FAR_FUTURE),
        };
        let ttl = self.draw.pick(&self.plan.ttls);
        let least = Duration::from_nanos(4 * self.plan.latency.max(MILLI));
        let rules = Rules {
            quorum: self.plan.quorum,
            wait: if waits && self.broken == Some(Switch::WaitsOn) { Wait::Unlimited } else { wait },
            backoff: Backoff::new(least, self.plan.backoff),
            queues,
            contended: self.clients[client].contended_keys.contains(&self.keys[key]),
        };
        let acquisition = Acquisition::new(rules, now);
        if matches!(acquisition.step(), Step::Queue { .. }) {
            self.counters.add(Seen::HintedIntoLine);
        }
        let acquisition = Some(acquisition);
        let before = std::mem::replace(&mut self.tasks[task], Task::new(client, ttl));
        let Task { alarm, got_in, last_owner, .. } = before;
        let acquiring =
            Task { key, acquisition, waits, deadline, alarm, got_in, last_owner, ..Task::new(client, ttl) };
        self.tasks[task] = acquiring;
        self.advance(task);
    }

    /// Tells the acquisition of a task what happened, with a random number and the time.
    pub fn tell_acquisition(&mut self, task: usize, tell: impl FnOnce(&mut Acquisition, u64, Instant)) {
        let (random, now) = (self.draw.next(), self.client_now(self.tasks[task].client));
        if let Some(acquisition) = &mut self.tasks[task].acquisition {
            tell(acquisition, random, now);
        }
    }

    /// Does what the acquisition of a task says.
    pub fn advance(&mut self, task: usize) {
        loop {
            match self.tasks[task].step() {
                None => return,
                Some(Step::Attempt(asking)) => return self.attempt(task, asking),
                Some(Step::Queue { .. }) => return self.enter_line(task),
                Some(Step::Sleep(until)) => return self.sleep(task, until),
                Some(Step::Look) => self.look_at_guards(task),
                Some(Step::Fail) => return self.fail(task),
            }
        }
    }

    fn sleep(&mut self, task: usize, until: Instant) {
        self.tasks[task].state = State::Waiting;
        let at = self.client_when(self.tasks[task].client, until).max(self.now);
        // Timers end late, never early.
        let late = self.draw.between(0, self.plan.latency);
        self.wake_after(task, at + late - self.now);
    }

    /// What the restart delay means for an acquire, by what its client knows of the nodes.
    fn look_at_guards(&mut self, task: usize) {
        let client = self.tasks[task].client;
        let now = self.client_now(client);
        let connected = |node: &usize| self.links[self.link_of(client, *node)].connection.is_some();
        let nodes = (0..self.nodes.len()).filter(connected);
        let standings = nodes.map(|node| self.standing(client, node));
        let outlook = Outlook::of(self.plan.quorum, standings, now);
        self.tell_acquisition(task, |acquisition, random, now| {
            acquisition.handle_outlook(outlook, random, now);
        });
        if outlook != Outlook::Open && matches!(self.tasks[task].step(), Some(Step::Sleep(_))) {
            self.counters.add(Seen::GuardSleptOut);
        }
    }

    /// An acquire has ended without the lock.
    fn fail(&mut self, task: usize) {
        let Some(end) = self.tasks[task].acquisition.take().map(Acquisition::into_end) else { return };
        note!(self, "task {task} gives up after {:?}: {:?}", end.waited, end.last.failure);
        let is_final = end.waited.is_none() && end.last.is_final();
        self.counters.add(match end.waited {
            Some(_) => Seen::TimedOut,
            None if is_final => Seen::TokensExhausted,
            None if self.tasks[task].waits => Seen::GuardOutlastsWait,
            None => Seen::AskedOnceInVain,
        });
        self.see_wait_end(task);
        if is_final && self.broken == Some(Switch::GoesOnAfterTheEnd) {
            return self.attempt(task, Asking::Set);
        }
        // There is nothing to wait for, so that it has had its turn.
        self.tasks[task].got_in |= self.healed && is_final;
        self.think(task);
    }

    /// All nodes are about to be asked, by an attempt or by a claim from the queue.
    pub fn see_attempt(&mut self, task: usize) {
        self.demand(Law::AsksNoMore, laws::asks_no_more(&self.tasks[task]));
        self.demand(Law::ContentionQueues, laws::contention_queues(&self.tasks[task]));
        self.tasks[task].asked += 1;
    }

    /// They refused, by what they truly answered.
    pub fn see_failure(&mut self, task: usize, tenure: usize) {
        let (round, needed) = (&self.tenures[tenure].round, self.plan.quorum.needed());
        let (held, spent) = (round.held.len() >= needed, round.spent.len() >= needed);
        let (counted, beside) = (round.uncounted.is_empty(), self.tenures[tenure].waiter.is_none());
        let queues = self.clients[self.tasks[task].client].in_queue;
        let now = self.client_now(self.tasks[task].client);
        let actor = &mut self.tasks[task];
        actor.spent |= spent && counted;
        actor.must_queue = beside && held && queues && actor.waits && !actor.refused && now < actor.deadline;
    }

    /// A wait ends, with the lock or without.
    fn see_wait_end(&mut self, task: usize) {
        let Task { client, deadline, raises, .. } = self.tasks[task];
        if deadline == Instant::FAR_FUTURE {
            return;
        }
        // A claim that was begun just before; its timer and those of the wait end late.
        // In a healed world the latency is a quarter of what it was when they were set.
        let timers = if self.healed { 16 } else { 4 };
        // A fencing token may take a second round.
        let rounds = if raises { 2 } else { 1 };
        let slack = rounds * self.plan.reply_timeout + Duration::from_nanos(timers * self.plan.latency);
        let ended = self.client_when(client, deadline);
        // A clock that is put forward may go beyond the end.
        let excused = self.clients[client].paused_until + slack.as_nanos() as u64 >= ended
            || self.clients[client].client_clock.stood_still().is_some();
        let now = self.client_now(client);
        self.demand(Law::WaitEndsInTime, line_laws::wait_ends_in_time(now, deadline, slack, excused));
    }

    /// One round under a new owner.
    fn attempt(&mut self, task: usize, asking: Asking) {
        self.see_attempt(task);
        let Task { client, key, ttl, .. } = self.tasks[task];
        let owner = self.owner_for(task);
        let terms = self.plan.terms(ttl);
        let subject = self.owners[owner].owner;
        let now = self.client_now(client);
        let (fence, expected) = self.draw_fence(client);
        let options = Options { queues: self.queues(client, key), fence, expected, ..Options::default() };
        let lease = Lease::acquire(terms, self.keys[key].clone(), subject, asking, options, now);
        let tenure = self.tenures.len();
        let mut holder = Tenure::new(lease, client, task, owner, ttl.as_millis(), self.now);
        holder.round.expected = expected.unwrap_or(u64::MAX);
        self.tenures.push(holder);
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
        self.see_wait_end(task);
        self.tasks[task].acquisition = None;
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
        let round = self.tenures[tenure].lease.round().clone();
        let majority = round.majority_holder();
        if matches!(majority, Some(HolderValue::Foreign(_))) {
            self.counters.add(Seen::ForeignHolder);
        }
        self.counters.add(match failure {
            Failure::Contended if majority.is_none() => Seen::SplitVote,
            Failure::Contended => Seen::Contended,
            Failure::Unavailable => Seen::Unavailable,
            Failure::TooYoung { .. } => Seen::FailedByRestartDelay,
            Failure::Exhausted { .. } => Seen::Exhausted,
        });
        self.tenures[tenure].dropped = self.draw.chance(300);
        self.see_failure(task, tenure);
        self.tell_acquisition(task, |acquisition, random, at| {
            acquisition.handle_failure(Failed { failure, round, at }, random, at);
        });
        self.advance(task);
    }

    /// Waits in the queue, for as long as the acquisition says.
    fn enter_line(&mut self, task: usize) {
        self.tasks[task].must_queue = false;
        let waiter = self.stand_in_line(task);
        self.tasks[task].state = State::Queued(waiter);
        if !self.healed && self.draw.chance(self.plan.impatience) {
            let patience = self.draw.spread(self.plan.latency / 4, 1_500 * MILLI);
            self.wake_after(task, patience);
        } else {
            self.tasks[task].alarm += 1;
        }
        self.drive(waiter);
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

    /// A waiter may be dropped just when it is given the vote.
    pub fn strike_at_hand_over(&mut self, owner: usize) {
        let Some(waiter) = self.owners[owner].waiter else { return };
        let Queued { task, over, .. } = self.waiters[waiter];
        if !self.healed && !over && self.draw.chance(self.plan.bad_timing) {
            let soon = self.draw.below(8 * self.plan.latency);
            self.wake_after(task, soon);
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
