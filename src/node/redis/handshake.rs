//! How a connection comes up: resolved anew each time, authenticated, ready, and with what the server can do.
//!
//! RESP3 is tried first, since only there a closed connection is noticed without asking; where HELLO is refused (renamed
//! away, or a proxy), RESP2. What an ACL forbids beyond that is done without: a lock needs SET and scripts, nothing
//! else here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::{join_all, join3};
use futures::task::AtomicWaker;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult, Value, cmd,
};

use super::Settings;
use super::command::{Abilities, ServerError, sources};
use super::facts::{self, Look, ask, is_forbidden, is_unknown_command};
use super::health::Health;
use super::names;
use super::rights::{Rights, ask_rights, lost};
use crate::clock::Clock;
use crate::protocol::message::{Key, Owner, OwnerHex, ServerMessage};
use crate::protocol::quorum::NodeId;
use crate::protocol::reconnect::Failure;
use crate::protocol::wait_queue::rank::NodeName;
use crate::registry::Adoption;

/// A client that finds one node without a marker among others with one waits for so long: another client may be adopting
/// all of them at this moment.
const ADOPTED_BY_OTHERS: Duration = Duration::from_millis(200);

/// A connection that is ready for work.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) abilities: Abilities,
    /// Set when the connection ends, where the protocol tells (RESP3).
    pub(super) ending: Arc<Ending>,
    /// Whether [`Link::ending`] will tell at all.
    pub(super) tells_ending: bool,
    /// What names the node for all clients alike.
    pub(super) name: NodeName,
    /// Whether the server tells when the marker goes.
    pub(super) tracked: bool,
    /// Why the server cannot wake this client, where it cannot.
    pub(super) deaf: Option<ServerMessage>,
    /// What the server says it is, for the log.
    pub(super) server: Arc<str>,
}

/// The end of a connection, noticed by the connection itself.
#[derive(Debug, Default)]
pub(super) struct Ending {
    pub(super) ended: AtomicBool,
    pub(super) waker: AtomicWaker,
}

/// What earlier attempts to connect to an address showed.
#[derive(Debug, Default)]
pub(super) struct Greeting {
    /// It was connected before: it speaks what it is spoken to in.
    met: bool,
    /// An error that is no answer to HELLO, since the old protocol is answered with it as well.
    not_about_hello: Option<String>,
}

/// Why there is no connection, fit to be shown once redacted.
pub(super) struct Failed {
    pub(super) trouble: ServerMessage,
    pub(super) failure: Failure,
}

/// Connects and shakes hands, within the connect timeout.
pub(super) async fn connect(
    settings: &Settings,
    node: NodeId,
    greeting: &mut Greeting,
    health: &mut Health,
    clock: &Clock,
) -> Result<Link, Failed> {
    let limit = settings.connect_timeout;
    let connecting = connect_unlimited(settings, node, greeting, health, clock);
    match tokio::time::timeout(limit, connecting).await {
        Ok(Ok(link)) => {
            *greeting = Greeting { met: true, not_about_hello: None };
            Ok(link)
        }
        Ok(Err(error)) => {
            let failure = if is_refusal(&error) { Failure::Refused } else { Failure::Away };
            Err(Failed { trouble: describe(&error, settings, greeting.met).into(), failure })
        }
        Err(_) => {
            // A plain server waits for the end of what it takes for a command, and never answers a TLS greeting.
            let hint = match settings.address.is_tls() && !greeting.met {
                true => " (does the port speak plain? then the address begins with redis://)",
                false => "",
            };
            let trouble = format!("no connection within {limit:?}{hint}").into();
            Err(Failed { trouble, failure: Failure::Away })
        }
    }
}

/// Whether the server did work to turn the client away. One that is starting will take it soon.
fn is_refusal(error: &RedisError) -> bool {
    match error.code() {
        Some(code) => !["BUSY", "LOADING", "MASTERDOWN"].contains(&code),
        None => error.is_connection_dropped() && !error.is_connection_refusal(),
    }
}

async fn connect_unlimited(
    settings: &Settings,
    node: NodeId,
    greeting: &mut Greeting,
    health: &mut Health,
    clock: &Clock,
) -> RedisResult<Link> {
    let resp3 = settings.address.with_protocol(ProtocolVersion::RESP3);
    let error = match open(settings, node, resp3, true).await {
        Ok((connection, ending)) => {
            return shake_hands(settings, connection, (ending, true), health, clock).await;
        }
        Err(error) => error,
    };
    let text = error.to_string();
    match hello_understood(&error, settings.address.has_password()) {
        Understood::Yes => return Err(error),
        Understood::Perhaps if greeting.not_about_hello.as_ref() == Some(&text) => return Err(error),
        Understood::Perhaps | Understood::No => {}
    }
    let resp2 = settings.address.with_protocol(ProtocolVersion::RESP2);
    let older = async {
        let (connection, ending) = open(settings, node, resp2, false).await?;
        shake_hands(settings, connection, (ending, false), health, clock).await
    };
    older.await.inspect_err(|error| {
        greeting.not_about_hello = (error.to_string() == text).then_some(text);
    })
}

async fn open(
    settings: &Settings,
    node: NodeId,
    info: ConnectionInfo,
    resp3: bool,
) -> RedisResult<(MultiplexedConnection, Arc<Ending>)> {
    #[cfg(feature = "tls")]
    if settings.address.is_tls() {
        choose_crypto();
    }
    let ending = Arc::<Ending>::default();
    let mut config = AsyncConnectionConfig::new()
        // Both limits are kept by this crate: the connect timeout around all of this, the reply timeout per round.
        .set_connection_timeout(None)
        .set_response_timeout(None)
        // Every admitted call finds room, and so is written in the order of admission; probes and second forms are
        // within the factor of two.
        .set_pipeline_buffer_size(4 * settings.backlog + 16);
    if resp3 {
        let ending = ending.clone();
        let (wakeups, node_table) = (settings.wakeups.clone(), settings.node_table.clone());
        // A closure, not a queue: pushes that nobody asked for must not pile up.
        config = config.set_push_sender(move |push: PushInfo| -> Result<(), std::convert::Infallible> {
            if push.kind == PushKind::Disconnection {
                ending.ended.store(true, Ordering::SeqCst);
                ending.waker.wake();
            } else if push.kind == PushKind::Invalidate {
                // The connection hands over pushes and answers in the order in which it reads them: so this stands before
                // any answer is weighed that the server gave afterwards.
                node_table.doubt(node);
            } else if let Some((owner, key)) = wake_up(&push) {
                wakeups.heard(node, owner, key);
            }
            Ok(())
        });
    }
    let client = Client::open(info)?;
    let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    Ok((connection, ending))
}

async fn shake_hands(
    settings: &Settings,
    mut connection: MultiplexedConnection,
    (ending, resp3): (Arc<Ending>, bool),
    health: &mut Health,
    clock: &Clock,
) -> RedisResult<Link> {
    let (mut look, rights) = greet(&connection, settings, health, resp3, clock).await?;
    let abilities = rights.abilities(look.info.abilities());
    if settings.delay.is_some() && !resp3 {
        look.forbidden.push("CLIENT TRACKING (RESP2 only)");
    }
    health.take_rights(rights, abilities);
    health.take(&look);
    let tracked = look.tracked == Some(true);
    if health.is_unmarked() {
        mark(&connection, settings, health, tracked, clock).await?;
    }
    if let Some(run) = health.run_to_raise() {
        health.take_beat(&facts::beat(&connection, clock, &settings.prefix, &run).await?);
    }
    let deaf = match (settings.in_queue, resp3) {
        (false, _) => None,
        (true, true) => listen(&mut connection, settings).await.err().map(|why| why.to_string().into()),
        (true, false) => Some("the server speaks RESP2 only".into()),
    };
    Ok(Link {
        connection,
        abilities,
        ending,
        tells_ending: resp3,
        tracked,
        name: health.name().unwrap_or_else(|| NodeName::of(settings.address.name().as_bytes())),
        deaf,
        server: look.info.version().unwrap_or_else(|| "unknown version".into()),
    })
}

/// The `redis` crate takes the process's choice of cryptography, and panics where a process that has several compiled in
/// has chosen none. A choice that was made stands; losing a race for it is as good.
#[cfg(feature = "tls")]
fn choose_crypto() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        let _ = ring::default_provider().install_default();
    }
}

/// Listens on the client's channel, and finds out whether scripts of this user may publish there.
async fn listen(connection: &mut MultiplexedConnection, settings: &Settings) -> RedisResult<()> {
    let mut channel = names::channels(&settings.prefix);
    channel.extend_from_slice(&settings.wakeups.client().to_hex());
    connection.subscribe(&channel[..]).await?;
    let mut publish = cmd("PUBLISH");
    publish.arg(&channel[..]).arg("");
    ask(connection.clone(), &publish).await?;
    Ok(())
}

/// The owner and the key that a wake-up names.
pub(super) fn wake_up(push: &PushInfo) -> Option<(Owner, Key)> {
    let (PushKind::Message, [_, Value::BulkString(payload)]) = (&push.kind, push.data.as_slice()) else {
        return None;
    };
    let (owner, key) = payload.split_at_checked(size_of::<OwnerHex>())?;
    (!key.is_empty()).then_some(())?;
    Some((Owner::from_hex(owner)?, Key::new(key)))
}

/// Gives the node a marker where it has none, and where enough is known of the other nodes to date it. Else that is left
/// to the session, and the node does not vote.
async fn mark(
    connection: &MultiplexedConnection,
    settings: &Settings,
    health: &mut Health,
    tracked: bool,
    clock: &Clock,
) -> RedisResult<()> {
    let age = match settings.delay {
        // Nobody will ask how old this memory is: a date that is too late harms nobody.
        None => Duration::ZERO,
        Some(_) => match adoption(settings, health, clock).await {
            Adoption::Undecided => return Ok(()),
            Adoption::Adopt => health.uptime(),
            Adoption::Renew => {
                // Well within the connect timeout, however short that is.
                tokio::time::sleep(ADOPTED_BY_OTHERS.min(settings.connect_timeout / 4)).await;
                Duration::ZERO
            }
        },
    };
    let asked = health.asked(Some(&settings.prefix), false, tracked);
    health.take(&facts::mark(connection, clock, &asked, age).await?);
    Ok(())
}

/// How the node is to be marked, once all nodes were asked, or as many as answer in time. Those that connect at the same
/// time are asked within a few round trips of each other.
async fn adoption(settings: &Settings, health: &Health, clock: &Clock) -> Adoption {
    let mut changes = health.changes();
    let decided = tokio::time::timeout(settings.connect_timeout / 2, async {
        loop {
            match health.adoption(true, clock.now()) {
                // The node_table is in `health`, so waiting cannot fail.
                Adoption::Undecided => drop(changes.changed().await),
                decided => return decided,
            }
        }
    });
    decided.await.unwrap_or_else(|_| health.adoption(false, clock.now()))
}

/// Names the client, asks whether the server is ready and what it is, and loads the scripts: in one round trip.
async fn greet(
    connection: &MultiplexedConnection,
    settings: &Settings,
    health: &Health,
    resp3: bool,
    clock: &Clock,
) -> RedisResult<(Look, Rights)> {
    let asked = health.asked(settings.marker_prefix(), true, resp3);
    let mut commands = vec![cmd("PING"), cmd("CLIENT")];
    commands[1].arg("SETNAME").arg(&settings.client_name);
    if asked.tracked {
        // Only what the client says, which is the marker; and not what it sets itself.
        let mut track = cmd("CLIENT");
        track.arg("TRACKING").arg("ON").arg("OPTIN").arg("NOLOOP");
        commands.push(track);
    }
    commands.extend(sources().map(|code| {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(code);
        load
    }));
    let answers = join_all(commands.iter().map(|command| ask(connection.clone(), command)));
    let look = facts::look(connection, clock, &asked);
    let rights = ask_rights(connection, &settings.prefix, settings.in_queue);
    let (answers, look, rights) = join3(answers, look, rights).await;
    let mut missing = vec![("PING", &answers[0]), ("CLIENT SETNAME", &answers[1])];
    missing.extend(answers.last().map(|answer| ("SCRIPT LOAD", answer)));
    missing.retain(|(_, answer)| answer.as_ref().is_err_and(is_forbidden));
    let missing: Vec<_> = missing.into_iter().map(|(name, _)| (name, lost(name))).collect();
    if let Some(Err(error)) = answers.into_iter().next()
        && !is_forbidden(&error)
    {
        // LOADING, MASTERDOWN, NOAUTH, a lost connection: not ready. All other answers are of no interest then.
        return Err(error);
    }
    let (look, mut rights) = (look?, rights?);
    rights.missing.extend(missing);
    Ok((look, rights))
}

/// Newer servers tell nobody who is not authenticated which commands they know: HELLO itself brought the password, so
/// "not authenticated" as its answer says that it was not understood.
fn hello_understood(error: &RedisError, gave_password: bool) -> Understood {
    let no = error.kind() == ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || (gave_password && error.code() == Some("NOAUTH"))
        || is_unknown_command(error);
    // Proxies refuse it in words of their own, with the general code. So do servers that are full, whatever they are asked.
    let perhaps = error.code() == Some("ERR") && !error.to_string().contains("max number of clients");
    match () {
        () if no => Understood::No,
        () if perhaps => Understood::Perhaps,
        () => Understood::Yes,
    }
}

/// Whether a server that answered HELLO with an error knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Understood {
    Yes,
    No,
    Perhaps,
}

/// An error of connecting, with a hint where the usual cause is known. `met`: whether it was connected before.
fn describe(error: &RedisError, settings: &Settings, met: bool) -> String {
    let text = match error.code() {
        Some(code) => {
            let server = ServerError { code: code.into(), detail: error.detail().unwrap_or_default().into() };
            server.message().to_string()
        }
        None => error.to_string(),
    };
    // A TLS server answers a plain greeting with an alert, or hangs up. So does one that goes away.
    let confused = error.kind() == ErrorKind::Parse || (error.is_connection_dropped() && !met);
    let refused = error.is_connection_refusal();
    if settings.address.is_plain_tcp() && confused && !refused {
        return format!("{text} (does the port speak TLS? then the address begins with rediss://)");
    }
    text
}
