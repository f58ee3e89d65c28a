//! Starting a client: its tasks, and what they and its callers share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::Clock;
use crate::config::{BACKLOG, Config};
#[cfg(feature = "testing")]
use crate::node::memory;
use crate::node::redis::{self, Settings};
use crate::node::{self, Address, Limits, Node};
use crate::protocol::in_doubt::Balance;
use crate::protocol::message::ClientId;
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::restart::RestartDelay;
use crate::registry::{ContendedKeys, Debts, NodeTable, Wakeups};
use crate::runtime::alarm::Alarm;
use crate::runtime::janitor;
use crate::runtime::overdue;
use crate::runtime::renewal::{self, Renewal};
use crate::runtime::shared::Shared;
use crate::runtime::worst_round_trip::WorstRoundTrip;

/// Starts the tasks of a client: one per node, the janitor, the renewal, and the one that replaces overdue leaders.
pub(crate) fn start(
    nodes: Vec<Address>,
    quorum: Quorum,
    config: Config,
    delay: Option<RestartDelay>,
    clock: Clock,
    client_name: &str,
) -> (Arc<Shared>, Arc<Renewal>) {
    let shutdown = CancellationToken::new();
    let (debts, from_nodes) = Debts::channel();
    let limits = Limits { backlog: BACKLOG };
    let contended_keys = Arc::new(ContendedKeys::default());
    let client = ClientId::from_bytes(*Uuid::new_v4().as_bytes());
    let wakeups = Wakeups::new(client, clock.clone(), debts.clone());
    let node_table = NodeTable::new(quorum);
    let mut doors = Vec::with_capacity(nodes.len());
    for (index, address) in nodes.into_iter().enumerate() {
        let id = NodeId::new(index);
        let (door, inbox) =
            node::node(id, address.name(), limits, debts.clone(), contended_keys.clone(), node_table.clone());
        doors.push(door);
        let (clock, shutdown) = (clock.clone(), shutdown.clone());
        let reply_timeout = config.reply_timeout(config.ttl);
        match address {
            Address::Redis(address) => {
                let settings = Settings {
                    address: *address,
                    connect_timeout: config.connect_timeout,
                    reply_timeout,
                    backlog: BACKLOG,
                    client_name: client_name.to_owned(),
                    prefix: config.prefix.as_slice().into(),
                    wakeups: wakeups.clone(),
                    in_queue: config.in_queue,
                    delay,
                    node_table: node_table.clone(),
                };
                tokio::spawn(redis::serve(inbox, settings, clock, shutdown));
            }
            #[cfg(feature = "testing")]
            Address::Memory(server) => {
                let wakeups = wakeups.clone();
                let serving = memory::serve(inbox, server, reply_timeout, delay, wakeups, clock, shutdown);
                tokio::spawn(serving);
            }
        }
    }
    let nodes: Arc<[Node]> = doors.into();
    let (balance, balance_seen) = watch::channel(Balance::default());
    let tidying = janitor::run(
        nodes.clone(),
        from_nodes,
        debts.clone(),
        clock.clone(),
        shutdown.clone(),
        balance,
        wakeups.clone(),
    );
    tokio::spawn(tidying);
    tokio::spawn(overdue::run(wakeups.clone(), clock.clone(), shutdown.clone()));
    let (renewal, orders) = Renewal::channel();
    tokio::spawn(renewal::run(nodes.clone(), orders, clock.clone(), shutdown.clone()));
    let shared = Shared {
        nodes,
        quorum,
        config,
        delay,
        restart_delay_is_short: AtomicBool::new(false),
        alarm: Arc::new(Alarm::new(clock.clone())),
        clock,
        closing: CancellationToken::new(),
        shutdown,
        leases: AtomicUsize::new(0),
        debts,
        balance: balance_seen,
        wakeups,
        contended_keys,
        node_table,
        worst_round_trip: WorstRoundTrip::default(),
    };
    (Arc::new(shared), renewal)
}
