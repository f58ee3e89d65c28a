//! The task that settles debts: it repeats compare-and-deletes whose outcome is open, until an answer or the key's
//! expiry settles them. One per client; asleep while nothing is owed.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::meter;
use crate::node::{Node, Outgoing};
use crate::protocol::in_doubt::{Balance, DebtId, Ledger};
use crate::protocol::message::{CallId, ConnectionId, Reply};
use crate::protocol::time::Instant;
use crate::registry::{Debts, Mailbox, Notice, Wakeups};

/// Settles debts until the client is gone. What is open then is left to the TTL.
pub(crate) async fn run(
    nodes: Arc<[Node]>,
    mut notices: mpsc::UnboundedReceiver<Notice>,
    debts: Arc<Debts>,
    clock: Clock,
    shutdown: CancellationToken,
    balance: watch::Sender<Balance>,
    wakeups: Arc<Wakeups>,
) {
    let mut taken = 0;
    let mut ledger = Ledger::default();
    let mailbox = Mailbox::new();
    loop {
        // All that has happened first, so that one look at the ledger serves for it.
        while let Ok(notice) = notices.try_recv() {
            take(&mut ledger, &wakeups, notice, clock.now());
            taken += 1;
        }
        for answer in mailbox.take() {
            ledger.handle_reply(DebtId(answer.call.0), answer.connection, &answer.reply, clock.now());
        }
        settle(&mut ledger, &nodes, &mailbox, clock.now());
        publish(&balance, &ledger);
        // Only now do they show in the balance.
        debts.arrived(std::mem::take(&mut taken));

        let wake = ledger.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = std::future::poll_fn(|cx| mailbox.poll_any(cx)) => {}
            notice = notices.recv() => match notice {
                Some(notice) => {
                    take(&mut ledger, &wakeups, notice, clock.now());
                    taken += 1;
                }
                None => return,
            },
            () = clock.sleep_until(wake), if wake != Instant::FAR_FUTURE => {}
        }
    }
}

fn take(ledger: &mut Ledger, wakeups: &Wakeups, notice: Notice, now: Instant) {
    match notice {
        Notice::Owed(debt) => {
            tracing::debug!(node = %debt.node, key = %debt.key, owner = %debt.owner, "outcome open, to be settled");
            ledger.owe(debt, now);
        }
        Notice::Usable(node) => {
            ledger.handle_usable(node, now);
            wakeups.usable(node);
        }
    }
}

fn settle(ledger: &mut Ledger, nodes: &[Node], mailbox: &Arc<Mailbox>, now: Instant) {
    while let Some(settlement) = ledger.poll_send(now) {
        let Some(node) = nodes.get(settlement.node.index()) else { continue };
        let request = Outgoing {
            operation: settlement.operation,
            debt: None,
            mailbox: mailbox.clone(),
            call: CallId(settlement.debt.0),
        };
        if let Err(reason) = node.send(request) {
            ledger.handle_reply(settlement.debt, ConnectionId::default(), &Reply::NotSent(reason), now);
        }
    }
}

fn publish(balance: &watch::Sender<Balance>, ledger: &Ledger) {
    let current = ledger.balance();
    let before = balance.send_replace(current);
    if current.settled.dropped > before.settled.dropped {
        tracing::warn!(
            dropped = current.settled.dropped,
            "too many open outcomes, some are left to their TTL"
        );
    }
    meter::debts(before, current);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;
    use crate::protocol::in_doubt::{Debt, Doubt, MAX_DEBTS_PER_NODE};
    use crate::protocol::message::{Key, Owner};
    use crate::protocol::quorum::NodeId;
    use crate::protocol::validity::{Drift, Ttl};

    /// Counts warnings.
    #[derive(Clone, Default)]
    struct Warnings(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for Warnings {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            if *event.metadata().level() == tracing::Level::WARN {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Outcomes that are given up for want of room are told once, and show in the balance.
    #[test]
    fn what_is_given_up_is_told_once() {
        let warned = Warnings::default();
        let subscriber = tracing_subscriber::registry().with(warned.clone());
        let _listening = tracing::subscriber::set_default(subscriber);
        let warnings = || warned.0.load(Ordering::Relaxed);
        let (balance, seen) = watch::channel(Balance::default());
        let (mut ledger, now) = (Ledger::default(), Instant::default());
        let ttl = Ttl::unchecked(Duration::from_secs(10));
        let debt = || {
            let mut doubt = Doubt::default();
            doubt.wrote(ConnectionId(1), now, ttl);
            let owner = Owner::from_bytes([1; 16]);
            Debt::new(NodeId::new(0), Key::new(*b"k"), owner, doubt, ttl, Drift::default())
        };
        for _ in 0..MAX_DEBTS_PER_NODE {
            ledger.owe(debt(), now);
        }
        publish(&balance, &ledger);
        assert_eq!((seen.borrow().open, warnings()), (MAX_DEBTS_PER_NODE, 0));

        ledger.owe(debt(), now);
        publish(&balance, &ledger);
        publish(&balance, &ledger);
        assert_eq!((seen.borrow().open, seen.borrow().settled.dropped), (MAX_DEBTS_PER_NODE, 1));
        assert_eq!(warnings(), 1);
    }
}
