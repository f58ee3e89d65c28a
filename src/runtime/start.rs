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
use crate::protocol::restart::RestartGuard;
use crate::registry::{Census, Debts, Hints, Wakeups};
use crate::runtime::alarm::Alarm;
use crate::runtime::janitor;
use crate::runtime::keeper::{self, Keeper};
use crate::runtime::pace::Pace;
use crate::runtime::shared::Shared;

/// Starts the tasks of a client: one per node, the janitor, and the keeper.
pub(crate) fn start(
    nodes: Vec<Address>,
    quorum: Quorum,
    config: Config,
    guard: Option<RestartGuard>,
    clock: Clock,
    client_name: &str,
) -> (Arc<Shared>, Arc<Keeper>) {
    let shutdown = CancellationToken::new();
    let (debts, from_nodes) = Debts::channel();
    let limits = Limits { backlog: BACKLOG };
    let hints = Arc::new(Hints::default());
    let client = ClientId::from_bytes(*Uuid::new_v4().as_bytes());
    let wakeups = Wakeups::new(client, clock.clone(), debts.clone());
    let census = Census::new(quorum);
    let mut doors = Vec::with_capacity(nodes.len());
    for (index, address) in nodes.into_iter().enumerate() {
        let id = NodeId::new(index);
        let (door, desk) =
            node::node(id, address.name(), limits, debts.clone(), hints.clone(), census.clone());
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
                    in_line: config.in_line,
                    guard,
                    census: census.clone(),
                };
                tokio::spawn(redis::serve(desk, settings, clock, shutdown));
            }
            #[cfg(feature = "testing")]
            Address::Memory(server) => {
                let wakeups = wakeups.clone();
                let serving = memory::serve(desk, server, reply_timeout, guard, wakeups, clock, shutdown);
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
    let (keeper, orders) = Keeper::channel();
    tokio::spawn(keeper::run(nodes.clone(), orders, clock.clone(), shutdown.clone()));
    let shared = Shared {
        nodes,
        quorum,
        config,
        guard,
        guard_is_short: AtomicBool::new(false),
        alarm: Arc::new(Alarm::new(clock.clone())),
        clock,
        closing: CancellationToken::new(),
        shutdown,
        leases: AtomicUsize::new(0),
        debts,
        balance: balance_seen,
        wakeups,
        hints,
        census,
        pace: Pace::default(),
    };
    (Arc::new(shared), keeper)
}
