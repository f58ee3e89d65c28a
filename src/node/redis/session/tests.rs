//! What a session keeps to, with the other end of the connection in the test's hand: one law each.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::super::address::Address;
use super::super::command::Abilities;
use super::*;
use crate::node::{Limits, Node, Outgoing, State, node};
use crate::protocol::message::{CallId, ClientId, Key, NotSent, Owner};
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::validity::Ttl;
use crate::protocol::wait_queue::rank::NodeName;
use crate::registry::{Debts, Mailbox, NodeTable, Wakeups};

const REPLY_TIMEOUT: Duration = Duration::from_millis(100);

/// One node of a client, before its first connection.
struct Stage {
    node: Node,
    inbox: Inbox,
    health: Health,
    settings: Settings,
    clock: Clock,
    shutdown: CancellationToken,
    mailbox: Arc<Mailbox>,
}

impl Stage {
    fn new() -> Self {
        let clock = Clock::Tokio(TokioInstant::now());
        let (debts, _) = Debts::channel();
        let node_table = NodeTable::new(Quorum::of(1).unwrap());
        let address = Address::parse("redis://192.0.2.1").unwrap();
        let (id, limits) = (NodeId::new(0), Limits { backlog: 16 });
        let name = address.name().clone();
        let health = Health::new(id, name.clone(), node_table.clone(), None, clock.clone());
        let (node, inbox) = node(id, name, limits, debts.clone(), Arc::default(), node_table.clone());
        let settings = Settings {
            address,
            connect_timeout: Duration::from_secs(1),
            reply_timeout: REPLY_TIMEOUT,
            backlog: limits.backlog,
            client_name: "test".into(),
            prefix: Arc::default(),
            wakeups: Wakeups::new(ClientId::from_bytes([1; 16]), clock.clone(), debts),
            in_queue: false,
            delay: None,
            node_table,
        };
        let (shutdown, mailbox) = (CancellationToken::new(), Mailbox::new());
        Self { node, inbox, health, settings, clock, shutdown, mailbox }
    }
}

fn set(node: &Node, mailbox: &Arc<Mailbox>) -> Result<ConnectionId, NotSent> {
    let ttl = Ttl::unchecked(Duration::from_secs(10));
    let operation = Operation::Set { key: Key::new(*b"k"), owner: Owner::from_bytes([7; 16]), ttl };
    node.send(Outgoing { operation, debt: None, mailbox: mailbox.clone(), call: CallId(0) })
}

/// A connection, and the server's end of it.
async fn link() -> (Link, DuplexStream) {
    let (here, there) = tokio::io::duplex(64 * 1024);
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connected = MultiplexedConnection::new_with_config(&info, here, config).await;
    let (connection, driver) = connected.unwrap();
    tokio::spawn(driver);
    let link = Link {
        connection,
        abilities: Abilities::default(),
        ending: Arc::default(),
        tells_ending: false,
        name: NodeName::of(b"name"),
        tracked: false,
        deaf: None,
        server: "test".into(),
    };
    (link, there)
}

/// Rule 4: a call that was admitted on one connection is never sent on another.
#[tokio::test(start_paused = true)]
async fn calls_of_another_connection_are_not_sent() {
    let mut stage = Stage::new();
    let earlier = stage.inbox.open(NodeName::of(b"name"), false);
    assert_eq!(set(&stage.node, &stage.mailbox), Ok(earlier));
    stage.inbox.close("connection reset".into());

    let (link, mut server) = link().await;
    let Stage { inbox, health, settings, clock, shutdown, mailbox, .. } = &mut stage;
    let mut late = Late::default();
    let session = Session::new(inbox, link, health, &mut late, settings, clock);
    let mut answers = Vec::new();
    tokio::select! {
        _ = session.run(shutdown) => panic!("the connection was given up"),
        () = poll_fn(|cx| mailbox.poll_take(cx, &mut answers)) => {}
    }

    assert!(matches!(answers[0].reply, Reply::NotSent(NotSent::Down(_))), "{answers:?}");
    let mut sent = Vec::new();
    server.read_to_end(&mut sent).await.unwrap();
    assert_eq!(sent.escape_ascii().to_string(), "");
}

/// A node that owes an answer gets no new work after three reply timeouts, is used again once it speaks, and loses its
/// connection otherwise.
#[tokio::test(start_paused = true)]
async fn silent_nodes_are_suspect() {
    for speaks in [false, true] {
        let mut stage = Stage::new();
        let (link, mut server) = link().await;
        let SilenceLimits { suspect, replace } = SilenceLimits::after(REPLY_TIMEOUT);
        let (node, mailbox) = (stage.node.clone(), stage.mailbox.clone());
        let (started, mut state) = (TokioInstant::now(), stage.node.state());
        let Stage { inbox, health, settings, clock, shutdown, .. } = &mut stage;
        let mut late = Late::default();
        let session = Session::new(inbox, link, health, &mut late, settings, clock);
        let mut running = pin!(session.run(shutdown));
        set(&node, &mailbox).unwrap();

        tokio::select! {
            biased;
            _ = &mut running => panic!("given up before it was suspect"),
            _ = state.wait_for(|state| *state == State::Suspect) => {}
        }
        let silent = started.elapsed();
        assert!((suspect..suspect * 3 / 2).contains(&silent), "{silent:?}");
        assert_eq!(set(&node, &mailbox), Err(NotSent::Suspect));

        if speaks {
            server.write_all(b"+OK\r\n").await.unwrap();
            tokio::select! {
                biased;
                _ = &mut running => panic!("given up although it spoke"),
                _ = state.wait_for(|state| *state == State::Up) => {}
            }
            assert!(set(&node, &mailbox).is_ok());
        } else {
            assert!(matches!(running.await, Ended::ConnectionLost(_)));
            let silent = started.elapsed();
            assert!((replace..replace * 3 / 2).contains(&silent), "{silent:?}");
        }
    }
}
