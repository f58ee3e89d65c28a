//! The calls on one connection, in order, until it ends.
//!
//! One future, polled by the node's task alone: takes queued calls, hands them to the connection, and reads all answers in order.
//! It owns every call until it is answered, so a caller may be gone long before. What is under way on the connection is
//! the [`wire`](super::wire)'s.
//!
//! A hung server never errors a connection: hence the limits of silence here.

use std::collections::BTreeMap;
use std::iter::once;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};
use tokio::time::{Instant as TokioInstant, Sleep};
use tokio_util::sync::CancellationToken;

use super::command::{self, Form, ServerError};
use super::facts::{self, Beat, Look};
use super::handshake::Link;
use super::health::Health;
use super::late::Late;
use super::wire::{Arrived, Wire, Work};
use super::{LINGER, Settings, refuse};
use crate::clock::Clock;
use crate::node::silence::SilenceLimits;
use crate::node::{Call, Inbox};
use crate::protocol::message::{ConnectionId, Operation, Reply, ServerMessage, Unknown};
use crate::protocol::restart::{LOOK_EVERY, LOOKS_LAST, Standing};
use crate::protocol::time::Instant;
use crate::registry::Adoption;

/// Calls taken in one poll before answers are read and other tasks get their turn.
const BATCH: usize = 128;

/// A connection is asked this often whether it is still there, and in step.
const PROBE_EVERY: Duration = Duration::from_secs(5);

/// An idle one where the protocol does not tell of a closed connection (RESP2).
const PROBE_EVERY_RESP2: Duration = Duration::from_secs(1);

/// Why a session ended.
pub(super) enum Ended {
    /// The connection is gone, or was given up.
    ConnectionLost(ServerMessage),
    /// There is nobody left to work for.
    ClientGone,
}

/// Where answers are not those to the questions.
const OUT_OF_STEP: &str = "answers come to other questions, connection given up";

/// How soon after one look at the server another may follow, where an answer gives cause.
const LEAST_BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// How often a marker is tried to be set on a server that refuses it, being full for instance.
const MARK_EVERY: Duration = Duration::from_secs(1);

/// A wall clock that goes further or less far than the client's own is a hint that one of them stood still.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// What the server is asked of itself besides the calls: one question at a time.
type Asking = Pin<Box<dyn Future<Output = RedisResult<Told>> + Send>>;

/// What it told.
enum Told {
    Look(Look),
    Beat(Beat),
    /// A copied marker was taken away, if it still stood there.
    Unmarked(bool),
}

/// A call about many leases that was sent as a command for each, and its answers so far.
struct Parts {
    call: Call,
    replies: Vec<Option<Reply>>,
}

/// One connection's calls. See the module.
pub(super) struct Session<'a> {
    inbox: &'a mut Inbox,
    link: Link,
    wire: Wire,
    health: &'a mut Health,
    late: &'a mut Late,
    connection: ConnectionId,
    settings: &'a Settings,
    clock: &'a Clock,
    silence: SilenceLimits,
    probe_every: Duration,
    /// Calls that were sent in parts, by number.
    parts: BTreeMap<u64, Parts>,
    next_parts: u64,
    last_heard: TokioInstant,
    last_probe: TokioInstant,
    probes: u64,
    /// A look at the server that is under way.
    look: Option<Asking>,
    last_look: TokioInstant,
    /// The same on the client's own clock.
    look_began: Instant,
    next_look: TokioInstant,
    next_mark: TokioInstant,
    /// How often looks at all nodes had been asked for.
    looks_asked: u64,
    /// The client's own clock and the wall clock, in microseconds, when they were last compared.
    clocks: (Instant, u64),
    suspect: bool,
    tick: Pin<Box<Sleep>>,
    /// When the tick should have come.
    tick_due: TokioInstant,
    /// Whether the last tick was too late to judge by.
    excused: bool,
    /// Until when a client that is gone may finish what it admitted.
    linger: Option<TokioInstant>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        inbox: &'a mut Inbox,
        link: Link,
        health: &'a mut Health,
        late: &'a mut Late,
        settings: &'a Settings,
        clock: &'a Clock,
    ) -> Self {
        let now = TokioInstant::now();
        let connection = inbox.open(link.name, link.deaf.is_some());
        let wire = Wire::new(link.connection.clone(), link.abilities, settings.prefix.clone());
        let probe_every = if link.tells_ending { PROBE_EVERY } else { PROBE_EVERY_RESP2 };
        Self {
            inbox,
            link,
            wire,
            health,
            late,
            connection,
            settings,
            clock,
            silence: SilenceLimits::after(settings.reply_timeout),
            probe_every,
            parts: BTreeMap::new(),
            next_parts: 0,
            last_heard: now,
            last_probe: now,
            probes: 0,
            look: None,
            last_look: now,
            look_began: clock.now(),
            next_look: now + LOOK_EVERY,
            next_mark: now,
            looks_asked: settings.node_table.looks_asked(),
            clocks: (clock.now(), clock.wall_micros()),
            suspect: false,
            tick: Box::pin(tokio::time::sleep_until(now)),
            tick_due: now,
            excused: false,
            linger: None,
        }
    }

    /// Serves the inbox until the connection ends or the client is gone.
    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Ended {
        let mut cancelled = std::pin::pin!(shutdown.cancelled());
        let serving = std::future::poll_fn(|cx| {
            if self.linger.is_none() && cancelled.as_mut().poll(cx).is_ready() {
                self.inbox.shut();
                self.linger = Some(TokioInstant::now() + LINGER);
                // The tick may be far away: look at once.
                self.tick_due = TokioInstant::now();
                self.tick.as_mut().reset(self.tick_due);
            }
            self.poll(cx)
        });
        let ended = tokio::task::unconstrained(serving).await;
        let trouble: ServerMessage = match &ended {
            Ended::ConnectionLost(trouble) => trouble.clone(),
            Ended::ClientGone => "client closed".into(),
        };
        // No caller may find the door open while the calls of this connection are being answered.
        self.inbox.close(trouble.clone());
        let now = self.clock.now();
        if self.wire.abilities().no_scripts {
            self.wire.without_answer(|operation| self.late.left(operation));
            for Parts { call, replies } in self.parts.values() {
                let Some(Operation::ExtendAll { extensions }) =
                    call.request().map(|request| &request.operation)
                else {
                    continue;
                };
                let unanswered =
                    extensions.as_slice().iter().zip(replies).filter(|(_, reply)| reply.is_none());
                unanswered.for_each(|(extension, _)| self.late.left(&extension.clone().into()));
            }
        }
        let under_way = self.wire.into_calls();
        let in_parts = self.parts.into_values().map(|parts| parts.call);
        for call in under_way.into_iter().chain(in_parts) {
            call.finish(Reply::Unknown(Unknown::ConnectionLost(trouble.clone())), now);
        }
        ended
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        self.health.node_table().wake_for_looks(self.inbox.id(), cx.waker());
        self.hear_of_others();
        let (taken, callers_gone) = self.poll_calls(cx);
        if let Poll::Ready(ended) = self.poll_answers(cx) {
            return Poll::Ready(ended);
        }
        self.link.ending.waker.register(cx.waker());
        if self.link.ending.ended.load(Ordering::SeqCst) {
            return Poll::Ready(Ended::ConnectionLost("closed by the server".into()));
        }
        if let Poll::Ready(ended) = self.poll_tick(cx) {
            return Poll::Ready(ended);
        }
        // A look that began with this tick or answer is written now, and not at some later time.
        self.poll_look(cx);
        if (callers_gone || self.linger.is_some()) && self.wire.is_idle() && taken < BATCH {
            return Poll::Ready(Ended::ClientGone);
        }
        if taken == BATCH {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Takes queued calls, a batch at most. Returns how many, and whether there will never be another.
    fn poll_calls(&mut self, cx: &mut Context<'_>) -> (usize, bool) {
        let (mut taken, mut callers_gone) = (0, false);
        while taken < BATCH && !callers_gone {
            match self.inbox.poll_call(cx) {
                Poll::Ready(Some(call)) => {
                    if taken == 0 && self.health.is_out_of_date() {
                        self.look_first(cx);
                    }
                    taken += 1;
                    let refused = call.request().and_then(|request| {
                        self.late.sends(&request.operation);
                        self.wire.abilities().refuses(&request.operation)
                    });
                    if call.connection != self.connection {
                        refuse(call, self.clock);
                    } else if let Some(why) = refused {
                        call.finish(Reply::Refused(why), self.clock.now());
                    } else if call.request().is_some_and(|request| request.operation.keys() > 1) {
                        self.wire.send_added(cx);
                        self.send_many(call, cx);
                    } else {
                        self.wire.add(call);
                    }
                }
                Poll::Ready(None) => callers_gone = true,
                Poll::Pending => break,
            }
        }
        self.wire.send_added(cx);
        (taken, callers_gone)
    }

    /// Sends a call about many leases, by itself: it takes a server longer than others.
    fn send_many(&mut self, call: Call, cx: &mut Context<'_>) {
        if self.wire.abilities().one_by_one() { self.send_parts(call, cx) } else { self.wire.send(call, cx) }
    }

    /// Sends a call about many leases as a command for each.
    fn send_parts(&mut self, call: Call, cx: &mut Context<'_>) {
        let Some(Operation::ExtendAll { extensions }) = call.request().map(|request| &request.operation)
        else {
            return;
        };
        let extensions = extensions.clone();
        let each = extensions.as_slice();
        let number = self.next_parts;
        self.next_parts += 1;
        self.parts.insert(number, Parts { call, replies: vec![None; each.len()] });
        for (index, extension) in each.iter().enumerate() {
            let operation = extension.clone().into();
            if let Some(why) = self.wire.abilities().refuses(&operation) {
                self.part_settled(number, index, Reply::Refused(why));
                continue;
            }
            let form = command::form(&operation, *self.wire.abilities());
            self.wire.send_part(&operation, form, (number, index), cx);
        }
    }

    fn part_settled(&mut self, number: u64, index: usize, reply: Reply) {
        let Some(parts) = self.parts.get_mut(&number) else { return };
        if let Some(slot) = parts.replies.get_mut(index) {
            *slot = Some(reply);
        }
        if parts.replies.iter().all(Option::is_some)
            && let Some(Parts { call, replies }) = self.parts.remove(&number)
        {
            call.finish(Reply::Each(replies.into_iter().flatten().collect()), self.clock.now());
        }
    }

    fn part_answered(
        &mut self,
        (number, index, form): (u64, usize, Form),
        answer: Result<Value, ServerError>,
        cx: &mut Context<'_>,
    ) {
        let Some(parts) = self.parts.get(&number) else { return };
        let Some(Operation::ExtendAll { extensions }) =
            parts.call.request().map(|request| &request.operation)
        else {
            return;
        };
        let Some(extension) = extensions.as_slice().get(index) else { return };
        let operation: Operation = extension.clone().into();
        let reply = match answer {
            Ok(value) => command::decode(&operation, form, &value),
            Err(error) => {
                let abilities = self.wire.abilities();
                let other = command::other_form(form, &error, abilities)
                    .or_else(|| command::without_scripts(&operation, form, &error, abilities));
                match other {
                    Some(form) => return self.wire.send_part(&operation, form, (number, index), cx),
                    None => command::decode_error(form, &error),
                }
            }
        };
        let reply = self.weighed(&operation, form, reply);
        self.part_settled(number, index, reply);
    }

    /// What an answer is worth with what was left of earlier connections.
    fn weighed(&self, operation: &Operation, form: Form, reply: Reply) -> Reply {
        if form == Form::SetIfEq { self.late.weigh(operation, reply) } else { reply }
    }

    /// Reads answers, and does with each what it asks for.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        while let Poll::Ready((since, arrived)) = self.wire.poll_answer(cx) {
            // A look that was sent before has been answered before, and says what this answer is worth.
            self.poll_look(cx);
            let (calls, answers) = match arrived {
                Arrived::Many(calls, answers) => (calls.into_iter(), answers),
                Arrived::One(work, answer) => {
                    if let Poll::Ready(ended) = self.one_answered(work, answer, since, cx) {
                        return Poll::Ready(ended);
                    }
                    continue;
                }
            };
            match answers {
                Ok(answers) if answers.len() == calls.len() => {
                    let at = self.heard(since);
                    let mut answered = calls.zip(answers);
                    while let Some((call, answer)) = answered.next() {
                        match read(Ok(answer)) {
                            Ok(answer) => self.call_answered(call, answer, at, cx),
                            Err(error) => {
                                let rest = answered.map(|(call, _)| call);
                                let calls = once(call).chain(rest).map(|(call, _)| call);
                                return self.lost(calls, &error.to_string());
                            }
                        }
                    }
                }
                Ok(_) => return self.lost(calls.map(|(call, _)| call), OUT_OF_STEP),
                Err(error) => return self.lost(calls.map(|(call, _)| call), &error.to_string()),
            }
        }
        Poll::Pending
    }

    fn one_answered(
        &mut self,
        work: Work,
        answer: RedisResult<Value>,
        since: TokioInstant,
        cx: &mut Context<'_>,
    ) -> Poll<Ended> {
        let answer = match read(answer) {
            Ok(answer) => answer,
            Err(error) => {
                let call = match work {
                    Work::Call { call, .. } => Some(call),
                    Work::Part { .. } | Work::Probe { .. } => None,
                };
                return self.lost(call, &error.to_string());
            }
        };
        let at = self.heard(since);
        match work {
            Work::Call { call, form } => self.call_answered((call, form), answer, at, cx),
            Work::Part { call, index, form } => self.part_answered((call, index, form), answer, cx),
            Work::Probe { token } if is_echo(&answer, token) => {}
            Work::Probe { .. } => return self.lost([], OUT_OF_STEP),
        }
        Poll::Pending
    }

    /// The node speaks. Returns when, on the client's clock.
    fn heard(&mut self, since: TokioInstant) -> Instant {
        self.last_heard = TokioInstant::now();
        self.inbox.note_round_trip(self.last_heard.duration_since(since));
        if self.suspect {
            self.suspect = false;
            self.inbox.set_suspect(false);
        }
        self.clock.now()
    }

    /// The connection is at its end, and these calls were not answered.
    fn lost(&self, calls: impl IntoIterator<Item = Call>, trouble: &str) -> Poll<Ended> {
        let trouble: ServerMessage = trouble.into();
        for call in calls {
            call.finish(Reply::Unknown(Unknown::ConnectionLost(trouble.clone())), self.clock.now());
        }
        Poll::Ready(Ended::ConnectionLost(trouble))
    }

    fn call_answered(
        &mut self,
        (call, form): (Call, Form),
        answer: Result<Value, ServerError>,
        at: Instant,
        cx: &mut Context<'_>,
    ) {
        let Some(request) = call.request() else { return };
        let operation = &request.operation;
        let reply = match answer {
            Ok(value) => {
                if let Some(form) = command::next_form(operation, form, &value, *self.wire.abilities()) {
                    return self.wire.send_as(form, call, cx);
                }
                self.weighed(operation, form, command::decode(operation, form, &value))
            }
            Err(error) => {
                // Behind its own release, nothing that creates a key may be sent in a second form (rule 2).
                let may_repeat = !(operation.creates() && request.mailbox.is_over());
                let abilities = self.wire.abilities();
                let other = command::other_form(form, &error, abilities)
                    .or_else(|| command::without_scripts(operation, form, &error, abilities));
                if let Some(form) = other.filter(|_| may_repeat) {
                    return self.wire.send_as(form, call, cx);
                }
                if matches!(operation, Operation::ExtendAll { .. }) && self.wire.abilities().no_scripts {
                    return self.send_parts(call, cx);
                }
                if matches!(error.code.as_str(), "READONLY" | "MASTERDOWN") {
                    self.look_soon();
                }
                if matches!(operation, Operation::ExtendAll { .. }) && command::is_about_keys(&error) {
                    self.wire.abilities().one_slot |= error.code == "CROSSSLOT";
                    return self.send_parts(call, cx);
                }
                command::decode_error(form, &error)
            }
        };
        if operation.creates() && reply.is_granted() && self.inbox.standing(at) == Standing::Replica {
            // A replica takes no writes: it may be one no longer.
            self.look_soon();
        }
        tracing::trace!(node = %self.inbox.id(), operation = operation.name(), ?reply, "answered");
        call.finish(reply, at);
    }

    /// Looks at the server at once, unless that was just done.
    fn look_soon(&mut self) {
        self.next_look = self.next_look.min(self.last_look + LEAST_BETWEEN_LOOKS);
        self.look_if_due(TokioInstant::now());
    }

    /// What this client knows of the node is out of date: a look that is written before the calls that follow is answered
    /// before them.
    fn look_first(&mut self, cx: &mut Context<'_>) {
        let now = TokioInstant::now();
        // One that began before this client stood still would not help. It was written, and its answers go nowhere.
        if self.clock.now().since(self.look_began) > LOOKS_LAST {
            self.look = None;
        }
        if self.look.is_none() {
            self.next_look = now;
            self.look_if_due(now);
        }
        self.poll_look(cx);
    }

    /// What other nodes' looks showed may concern this one; and so may its own word.
    fn hear_of_others(&mut self) {
        let node_table = self.health.node_table();
        let (asked, doubted) = (node_table.looks_asked(), node_table.is_doubted(self.inbox.id()));
        if std::mem::replace(&mut self.looks_asked, asked) != asked {
            self.health.hear_of_clock();
            self.look_soon();
        } else if doubted {
            self.look_soon();
        }
    }

    fn look_if_due(&mut self, now: TokioInstant) {
        if self.look.is_some() {
            return;
        }
        if self.next_look <= now {
            (self.last_look, self.next_look) = (now, now + LOOK_EVERY);
            self.look_began = self.clock.now();
            let (connection, clock) = (self.link.connection.clone(), self.clock.clone());
            let asked = self.health.asked(self.settings.marker_prefix(), false, self.link.tracked);
            let look = async move { facts::look(&connection, &clock, &asked).await.map(Told::Look) };
            self.look = Some(Box::pin(look));
        } else if self.health.is_unmarked() && self.next_mark <= now {
            self.next_mark = now + MARK_EVERY;
            let age = match self.health.adoption(false, self.clock.now()) {
                Adoption::Adopt => self.health.uptime(),
                Adoption::Renew => Duration::ZERO,
                Adoption::Undecided => return,
            };
            let (connection, clock) = (self.link.connection.clone(), self.clock.clone());
            let asked = self.health.asked(Some(&self.settings.prefix), false, self.link.tracked);
            let mark = async move { facts::mark(&connection, &clock, &asked, age).await.map(Told::Look) };
            self.look = Some(Box::pin(mark));
        } else if let (Some(marker), true) = (self.health.copied_marker(), self.next_mark <= now) {
            self.next_mark = now + MARK_EVERY;
            let (connection, prefix) = (self.link.connection.clone(), self.settings.prefix.clone());
            let delete = self.wire.abilities().delete;
            let unmark =
                async move { facts::unmark(&connection, &prefix, &marker, delete).await.map(Told::Unmarked) };
            self.look = Some(Box::pin(unmark));
        }
    }

    fn poll_look(&mut self, cx: &mut Context<'_>) {
        while let Some(look) = &mut self.look {
            let Poll::Ready(answer) = look.as_mut().poll(cx) else { return };
            self.look = None;
            match answer {
                Ok(Told::Look(look)) => {
                    self.health.take(&look);
                    if let Some(name) = self.health.name() {
                        self.inbox.rename(name);
                    }
                    self.follow_look();
                }
                Ok(Told::Beat(beat)) => self.health.take_beat(&beat),
                // The look finds none, or the one that another client set meanwhile.
                Ok(Told::Unmarked(done)) if done => {
                    self.next_mark = TokioInstant::now();
                    self.next_look = self.next_mark;
                    self.look_if_due(self.next_mark);
                }
                Ok(Told::Unmarked(_)) => {}
                // Not ready, or gone: what is known stands, and the calls find out.
                Err(why) => {
                    tracing::debug!(node = %self.inbox.id(), %why, "the node tells nothing of itself")
                }
            }
        }
    }

    /// After a look: the node gets its marker, or its count of looks is raised.
    fn follow_look(&mut self) {
        if self.health.is_unmarked() {
            return self.look_if_due(TokioInstant::now());
        }
        let Some(run) = self.health.run_to_raise() else { return };
        let (connection, clock) = (self.link.connection.clone(), self.clock.clone());
        let prefix = self.settings.prefix.clone();
        let beat = async move { facts::beat(&connection, &clock, &prefix, &run).await.map(Told::Beat) };
        self.look = Some(Box::pin(beat));
    }

    /// The wall clock is not believed: it is set now and then. But if the client's own clock stood still, it may show that
    /// at once, and the nodes tell.
    fn compare_clocks(&mut self) {
        let (now, wall) = (self.clock.now(), self.clock.wall_micros());
        let (before, wall_before) = std::mem::replace(&mut self.clocks, (now, wall));
        let went = Duration::from_micros(wall.saturating_sub(wall_before));
        if now.since(before).abs_diff(went) > CLOCKS_APART || wall < wall_before {
            self.look_soon();
        }
    }

    fn probe(&mut self, now: TokioInstant, cx: &mut Context<'_>) {
        self.probes += 1;
        self.last_probe = now;
        let token = self.probes;
        self.wire.send_probe(token, cx);
    }

    /// An idle connection may be gone. And a server, or something before it, that left out a reply or gave one too many is never
    /// silent, and yet every answer is another call's from then on. So it is asked for something that nothing else answers:
    /// now and then, and sooner where calls take longer than their timeout although answers come.
    fn probe_is_due(&self, now: TokioInstant) -> bool {
        let probed = now.duration_since(self.last_probe);
        let heard = now.duration_since(self.last_heard);
        match self.wire.waiting_since() {
            None => probed >= PROBE_EVERY || heard >= self.probe_every,
            Some(since) => {
                let lags = now.duration_since(since) >= self.settings.reply_timeout;
                probed >= PROBE_EVERY
                    || (lags && heard < self.silence.suspect && probed >= self.silence.suspect)
            }
        }
    }

    /// Looks now and then at how long the first in the queue has been waiting, and asks a connection that is idle.
    fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        while self.tick.as_mut().poll(cx).is_ready() {
            let now = TokioInstant::now();
            if self.linger.is_some_and(|until| until <= now) {
                return Poll::Ready(Ended::ClientGone);
            }
            // A tick that comes very late says that this process stood still, not the server: its answers may be there,
            // unread. They get until the next tick.
            // But not for ever: on a runtime that always lags, ticks always come late.
            let late = now.duration_since(self.tick_due) >= self.silence.suspect / 2;
            let slept = late && !self.excused;
            self.excused = slept;
            let owed = self.wire.waiting_since().map(|since| now.duration_since(since.max(self.last_heard)));
            match owed {
                Some(_) if slept => {}
                Some(owed) if owed >= self.silence.replace => {
                    let trouble = format!("no answer for {owed:.1?}, connection given up");
                    return Poll::Ready(Ended::ConnectionLost(trouble.into()));
                }
                Some(owed) if owed >= self.silence.suspect && !self.suspect => {
                    self.suspect = true;
                    self.inbox.set_suspect(true);
                }
                _ => {}
            }
            if self.probe_is_due(now) {
                self.probe(now, cx);
            }
            self.compare_clocks();
            self.look_if_due(now);
            let next = self.silence.suspect / 4;
            let next = next.clamp(Duration::from_millis(5), Duration::from_millis(250));
            self.tick_due = now + next;
            self.tick.as_mut().reset(self.tick_due);
        }
        Poll::Pending
    }
}

/// Whether this may be the answer to a probe. An error says nothing: PING may be forbidden, or the server busy.
pub(super) fn is_echo(answer: &Result<Value, ServerError>, token: u64) -> bool {
    match answer {
        Ok(Value::BulkString(bytes)) => *bytes == token.to_string().as_bytes(),
        // From what speaks the protocol and never heard of PING with an argument.
        Ok(Value::SimpleString(word)) => word == "PONG",
        Ok(_) => false,
        Err(_) => true,
    }
}

/// An answer of the server's, an error of the server's, or the end of the connection.
pub(super) fn read(answer: RedisResult<Value>) -> Result<Result<Value, ServerError>, RedisError> {
    let error = match answer.and_then(Value::extract_error) {
        Ok(value) => return Ok(Ok(value)),
        Err(error) => error,
    };
    match error.code() {
        Some(code) => Ok(Err(ServerError {
            code: code.to_owned(),
            detail: error.detail().unwrap_or_default().to_owned(),
        })),
        None => Err(error),
    }
}

#[cfg(test)]
mod tests;
