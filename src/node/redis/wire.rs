//! The commands on one connection, from the moment that they are handed to it until their answers are read.
//!
//! Commands that are there at the same time are sent together, as one request to the connection: that saves most of what
//! each costs the client. Nothing waits for company.
//!
//! Facts about the `redis` crate that shape it (measured on 1.8.1):
//!
//! - A request is queued at its *first poll*, provided the connection's buffer has room: hence fewer calls inside than
//!   the buffer holds, and a first poll at once.
//! - A request whose future is dropped before the connection took it is never sent: hence none is dropped.
//! - With tokio's cooperation budget used up, a first poll queues nothing: hence a session that is
//!   [unconstrained](tokio::task::unconstrained).
//! - The future of a request has 1.4 KB, and moving it costs more than all else about it: hence places in which one
//!   future sends one command after the other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::time::Instant as TokioInstant;

use super::command::{self, Abilities, Form, SHORT_KEY};
use crate::node::{Call, Outgoing};
use crate::protocol::message::Operation;

/// Places that are kept for the next commands. More are on their way in a burst only.
const PLACES: usize = 64;

/// Commands that are sent together at most: their answers are read when the last of them is there.
const MOST_TOGETHER: usize = 32;

/// What a command was sent for.
#[expect(clippy::large_enum_variant, reason = "nearly all are calls, and probes are rare")]
pub(super) enum Work {
    Call {
        call: Call,
        form: Form,
    },
    /// One lease of a call about many, which the server does not take together.
    Part {
        call: u64,
        index: usize,
        form: Form,
    },
    /// Only there to be answered, with this.
    Probe {
        token: u64,
    },
}

impl Work {
    /// Whether its command is of a size that most have.
    fn is_small(&self) -> bool {
        match self {
            Self::Call { call, .. } => call.request().is_some_and(|Outgoing { operation, .. }| {
                operation.keys() == 1 && operation.key().as_bytes().len() <= SHORT_KEY
            }),
            Self::Part { .. } => false,
            Self::Probe { .. } => true,
        }
    }
}

/// What has been answered next.
#[expect(clippy::large_enum_variant, reason = "read once and taken apart")]
pub(super) enum Arrived {
    One(Work, RedisResult<Value>),
    Many(Vec<(Call, Form)>, RedisResult<Vec<Value>>),
}

/// What is under way.
#[expect(clippy::large_enum_variant, reason = "without a burst, nearly all are single")]
enum Flight {
    One { place: Position, work: Work, since: TokioInstant },
    Many { answers: Answers, calls: Vec<(Call, Form)>, since: TokioInstant },
}

impl Flight {
    fn since(&self) -> TokioInstant {
        match self {
            Self::One { since, .. } | Self::Many { since, .. } => *since,
        }
    }
}

/// The answers to commands that were sent together.
type Answers = Pin<Box<dyn Future<Output = RedisResult<Vec<Value>>> + Send>>;

/// A future that sends one command after the other for ever, and the way in and out of it.
struct Position {
    slot: Arc<Mutex<Slot>>,
    sending: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The memory of a command that was answered.
    spare: Option<Cmd>,
}

#[derive(Default)]
struct Slot {
    /// To be sent: put in from outside.
    command: Option<Cmd>,
    /// What was sent and its answer, to be taken out.
    answered: Option<(Cmd, RedisResult<Value>)>,
}

impl Position {
    fn new(mut connection: MultiplexedConnection) -> Self {
        let slot = Arc::<Mutex<Slot>>::default();
        let inside = slot.clone();
        let sending = Box::pin(async move {
            loop {
                // Nobody need be woken for it: whoever puts a command in polls.
                let next = poll_fn(|_| match lock(&inside).command.take() {
                    Some(command) => Poll::Ready(command),
                    None => Poll::Pending,
                });
                let command = next.await;
                let answer = connection.send_packed_command(&command).await;
                lock(&inside).answered = Some((command, answer));
            }
        });
        Self { slot, sending, spare: None }
    }

    /// Hands a command to the connection.
    fn send(&mut self, command: Cmd, cx: &mut Context<'_>) {
        lock(&self.slot).command = Some(command);
        let _ = self.sending.as_mut().poll(cx);
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<(Cmd, RedisResult<Value>)> {
        // Only a dead connection answers at once, with the first poll.
        if lock(&self.slot).answered.is_none() {
            let _ = self.sending.as_mut().poll(cx);
        }
        lock(&self.slot).answered.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// A connection and what is under way on it.
pub(super) struct Wire {
    connection: MultiplexedConnection,
    abilities: Abilities,
    /// The client's.
    prefix: Arc<[u8]>,
    flights: VecDeque<Flight>,
    places: Vec<Position>,
    /// To be sent next.
    added: Vec<(Call, Form)>,
}

impl Wire {
    pub(super) fn new(connection: MultiplexedConnection, abilities: Abilities, prefix: Arc<[u8]>) -> Self {
        let (flights, places, added) = Default::default();
        Self { connection, abilities, prefix, flights, places, added }
    }

    /// What the server can do, as far as is known now.
    pub(super) fn abilities(&mut self) -> &mut Abilities {
        &mut self.abilities
    }

    /// When the command was handed over that is to be answered next.
    pub(super) fn waiting_since(&self) -> Option<TokioInstant> {
        self.flights.front().map(Flight::since)
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Hands a call to the connection.
    pub(super) fn send(&mut self, call: Call, cx: &mut Context<'_>) {
        if let Some(form) = self.form(&call) {
            self.send_as(form, call, cx);
        }
    }

    /// Hands a call to the connection in this form.
    pub(super) fn send_as(&mut self, form: Form, call: Call, cx: &mut Context<'_>) {
        let (place, mut command) = self.place();
        if let Some(Outgoing { operation, .. }) = call.request() {
            command::encode(&mut command, operation, form, &self.prefix);
            self.fly(place, command, Work::Call { call, form }, cx);
        }
    }

    /// Hands one lease's part of a call to the connection.
    pub(super) fn send_part(
        &mut self,
        operation: &Operation,
        form: Form,
        (call, index): (u64, usize),
        cx: &mut Context<'_>,
    ) {
        let (place, mut command) = self.place();
        command::encode(&mut command, operation, form, &self.prefix);
        self.fly(place, command, Work::Part { call, index, form }, cx);
    }

    /// Asks for an echo.
    pub(super) fn send_probe(&mut self, token: u64, cx: &mut Context<'_>) {
        let (place, mut command) = self.place();
        command.clear();
        command.arg("PING").arg(token);
        self.fly(place, command, Work::Probe { token }, cx);
    }

    /// Adds a call to those that are sent next, by [`Wire::send_added`].
    pub(super) fn add(&mut self, call: Call) {
        if let Some(form) = self.form(&call) {
            self.added.push((call, form));
        }
    }

    /// Hands the calls that were added to the connection: in their order, and together as far as they are not too many.
    pub(super) fn send_added(&mut self, cx: &mut Context<'_>) {
        while self.added.len() > 1 {
            let later = self.added.split_off(self.added.len().min(MOST_TOGETHER));
            let calls = std::mem::replace(&mut self.added, later);
            let mut pipeline = Pipeline::with_capacity(calls.len());
            for (call, form) in &calls {
                let Some(Outgoing { operation, .. }) = call.request() else { continue };
                let mut command = command::of_usual_length();
                command::encode(&mut command, operation, *form, &self.prefix);
                pipeline.add_command(command);
            }
            let (mut connection, count) = (self.connection.clone(), calls.len());
            let mut answers: Answers =
                Box::pin(async move { connection.send_packed_commands(&pipeline, 0, count).await });
            // Only a dead connection answers at once; the end of the session follows.
            if let Poll::Ready(answered) = answers.as_mut().poll(cx) {
                answers = Box::pin(std::future::ready(answered));
            }
            self.flights.push_back(Flight::Many { answers, calls, since: TokioInstant::now() });
        }
        if let Some((call, form)) = self.added.pop() {
            self.send_as(form, call, cx);
        }
    }

    fn place(&mut self) -> (Position, Cmd) {
        let mut place = self.places.pop().unwrap_or_else(|| Position::new(self.connection.clone()));
        let command = place.spare.take().unwrap_or_else(command::of_usual_length);
        (place, command)
    }

    /// The form in which a call goes; none where it was answered already.
    fn form(&self, call: &Call) -> Option<Form> {
        call.request().map(|Outgoing { operation, .. }| command::form(operation, self.abilities))
    }

    fn fly(&mut self, mut place: Position, command: Cmd, work: Work, cx: &mut Context<'_>) {
        place.send(command, cx);
        self.flights.push_back(Flight::One { place, work, since: TokioInstant::now() });
    }

    /// The next answer, and when its command was handed over. Those of one connection come in order, so only the first in
    /// line is asked.
    pub(super) fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<(TokioInstant, Arrived)> {
        match self.flights.front_mut() {
            None => Poll::Pending,
            Some(Flight::One { place, .. }) => {
                let (command, answer) = ready!(place.poll_answer(cx));
                let Some(Flight::One { mut place, work, since }) = self.flights.pop_front() else {
                    return Poll::Pending;
                };
                if self.places.len() < PLACES {
                    place.spare = Some(command).filter(|_| work.is_small());
                    self.places.push(place);
                }
                Poll::Ready((since, Arrived::One(work, answer)))
            }
            Some(Flight::Many { answers, .. }) => {
                let answers = ready!(answers.as_mut().poll(cx));
                let Some(Flight::Many { calls, since, .. }) = self.flights.pop_front() else {
                    return Poll::Pending;
                };
                Poll::Ready((since, Arrived::Many(calls, answers)))
            }
        }
    }

    /// What was sent by `SET … IFEQ` and has not been answered.
    pub(super) fn without_answer(&self, mut left: impl FnMut(&Operation)) {
        let mut note = |call: &Call, form: Form| {
            if let (Form::SetIfEq, Some(request)) = (form, call.request()) {
                left(&request.operation);
            }
        };
        for flight in &self.flights {
            match flight {
                Flight::One { work: Work::Call { call, form }, .. } => note(call, *form),
                Flight::One { .. } => {}
                Flight::Many { calls, .. } => calls.iter().for_each(|(call, form)| note(call, *form)),
            }
        }
    }

    /// The calls that have not been answered.
    pub(super) fn into_calls(self) -> Vec<Call> {
        let mut unanswered = Vec::new();
        for flight in self.flights {
            match flight {
                Flight::One { work: Work::Call { call, .. }, .. } => unanswered.push(call),
                Flight::One { .. } => {}
                Flight::Many { calls, .. } => unanswered.extend(calls.into_iter().map(|(call, _)| call)),
            }
        }
        unanswered
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
