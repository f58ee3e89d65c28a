//! A Redis-compatible server as a node: one connection, kept up for ever.
//!
//! | file | what it knows |
//! | --- | --- |
//! | [`address`] | where the server is, and how to name it without secrets |
//! | [`handshake`] | how a connection comes up, and what the server can do |
//! | [`command`] | how an operation is put into commands, and what their answers mean |
//! | [`facts`] | what a server tells of itself |
//! | [`health`] | what follows from that, over all connections to one address |
//! | [`late`] | what may still be executed of earlier connections |
//! | [`rights`] | what this user may do |
//! | [`names`] | what the client's own keys and channels are called |
//! | [`session`] | the calls on one connection, in order, until it ends |
//! | [`wire`] | the commands on it, until they are answered |
//!
//! This file is the life around them: connect, serve, pause, again. Reconnecting never makes callers wait: while there
//! is no connection the door refuses at once.

pub(crate) mod address;
mod command;
mod facts;
#[cfg(test)]
mod fuzz;
mod handshake;
mod health;
mod late;
mod names;
mod rights;
mod session;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant as TokioInstant;
use tokio_util::sync::CancellationToken;

use self::address::Address;
#[cfg(feature = "testing")]
use self::command::Form;
use self::handshake::Greeting;
use self::health::Health;
use self::late::Late;
use self::session::{Ended, Session};
use super::{Call, Inbox};
use crate::clock::Clock;
use crate::protocol::message::{NotSent, Reply, ServerMessage};
#[cfg(feature = "testing")]
use crate::protocol::message::{Operation, Unknown};
use crate::protocol::reconnect::{Failure, Reconnect};
use crate::protocol::restart::RestartDelay;
use crate::registry::{NodeTable, Wakeups};

/// How long a client that was dropped goes on writing what it admitted: the releases of its last guards.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// The numbers of one node.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) address: Address,
    /// For resolving, connecting and the handshake together.
    pub(crate) connect_timeout: Duration,
    /// From which the limits of silence follow.
    pub(crate) reply_timeout: Duration,
    /// Most calls inside at once: the connection's buffer must hold more, so that no call is ever parked.
    pub(crate) backlog: usize,
    /// The client's name, as `CLIENT LIST` shows it.
    pub(crate) client_name: String,
    /// What stands before every name on the server.
    pub(crate) prefix: Arc<[u8]>,
    /// Who is woken.
    pub(crate) wakeups: Arc<Wakeups>,
    /// Whether anybody will wait in the queue: else the node needs neither a name nor a channel.
    pub(crate) in_queue: bool,
    /// How old the node's memory must be.
    pub(crate) delay: Option<RestartDelay>,
    /// The client's nodes, this one among them.
    pub(crate) node_table: Arc<NodeTable>,
}

impl Settings {
    /// What stands before the marker's name, for a client that needs it: to rank the nodes, or to date their memory.
    fn marker_prefix(&self) -> Option<&Arc<[u8]>> {
        (self.in_queue || self.delay.is_some()).then_some(&self.prefix)
    }
}

/// Keeps a connection to the server and serves the inbox over it, until the client is gone.
pub(crate) async fn serve(mut inbox: Inbox, settings: Settings, clock: Clock, shutdown: CancellationToken) {
    let (mut reconnect, mut greeting, mut late) = <(Reconnect, Greeting, Late)>::default();
    // What was said last, and what was the last.
    let (mut said, mut last): (Option<ServerMessage>, Option<ServerMessage>) = (None, None);
    let (node, mut told_deaf) = (inbox.id(), false);
    let (address, node_table) = (inbox.address().clone(), settings.node_table.clone());
    let mut health = Health::new(node, address, node_table, settings.delay, clock.clone());
    loop {
        let attempt = TokioInstant::now();
        let connected = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = refuse_calls(&mut inbox, &clock) => return,
            connected = handshake::connect(&settings, node, &mut greeting, &mut health, &clock) => connected,
        };
        let (trouble, failure) = match connected {
            Ok(link) => {
                tracing::info!(node = %inbox.id(), address = %inbox.address(), server = %link.server, "connected");
                reconnect.handle_connected();
                (said, last) = (None, None);
                if let (Some(why), false) =
                    (&link.deaf, std::mem::replace(&mut told_deaf, link.deaf.is_some()))
                {
                    tracing::warn!(
                        node = %inbox.id(), address = %inbox.address(), %why,
                        "waiters cannot be woken by this node, they look again and again"
                    );
                }
                let ended = Session::new(&mut inbox, link, &mut health, &mut late, &settings, &clock)
                    .run(&shutdown)
                    .await;
                match ended {
                    Ended::ClientGone => return,
                    Ended::ConnectionLost(trouble) => (trouble, Failure::Away),
                }
            }
            Err(failed) => (failed.trouble, failed.failure),
        };
        let trouble = settings.address.redact(&trouble);
        // Said once per loss, and again for another trouble that stays; not once per attempt.
        let (is_said, is_new) = (said.as_ref() == Some(&trouble), last.as_ref() != Some(&trouble));
        if reconnect.handle_failure(failure, is_said, is_new, clock.now()) {
            tracing::warn!(node = %inbox.id(), address = %inbox.address(), %trouble, "no connection, trying again");
            said = Some(trouble.clone());
        }
        last = Some(trouble.clone());
        inbox.close(trouble);
        let pause = reconnect.pause(rand::random());
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = refuse_calls(&mut inbox, &clock) => return,
            () = tokio::time::sleep_until(attempt + pause) => {}
        }
    }
}

/// An operation as the words of a script's command, text of the script included: for tests that run another text.
#[cfg(feature = "testing")]
pub(crate) fn script_command(operation: &Operation) -> Vec<Vec<u8>> {
    let mut command = command::of_usual_length();
    command::encode(&mut command, operation, Form::Text, b"");
    let words = command.args_iter().filter_map(|word| match word {
        redis::Arg::Simple(bytes) => Some(bytes.to_vec()),
        _ => None,
    });
    words.collect()
}

/// What an answer to [`script_command`] means.
#[cfg(feature = "testing")]
pub(crate) fn script_reply(operation: &Operation, answer: redis::Value) -> Reply {
    match session::read(Ok(answer)) {
        Ok(Ok(value)) => command::decode(operation, Form::Text, &value),
        Ok(Err(error)) => command::decode_error(Form::Text, &error),
        Err(error) => Reply::Unknown(Unknown::ConnectionLost(error.to_string().into())),
    }
}

/// Answers calls that were admitted to a connection which ended before they were written. Returns when all callers
/// are gone.
async fn refuse_calls(inbox: &mut Inbox, clock: &Clock) {
    while let Some(call) = inbox.call().await {
        refuse(call, clock);
    }
}

/// Nothing of this call was written: its connection is not there any more.
fn refuse(call: Call, clock: &Clock) {
    call.finish(Reply::NotSent(NotSent::Down("connection lost".into())), clock.now());
}
