//! Carries one lease's messages between the protocol and the nodes.
//!
//! A driver has one owner at a time and moves: acquire future, then guard, or renewal and back. It decides nothing. Dropping it at any await
//! releases what was set: that one `Drop` is all of cancel safety, because the nodes own every call they admitted, and
//! the debts that travel with the releases outlive everybody.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use super::loss::Watched;
use crate::clock::Clock;
use crate::meter;
use crate::node::{Delivery, Mailbox, Outgoing, Registered};
use crate::protocol::in_doubt::Doubt;
use crate::protocol::lease::{CallId, Event, Lease, ToSend};
use crate::protocol::message::{ConnectionId, NotSent, Operation, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Round;
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::runtime::shared::Shared;

/// A lease and its calls in flight.
pub(crate) struct Driver {
    lease: Box<Lease>,
    /// There is none while nothing of this lease is under way in it.
    mailbox: Option<Arc<Mailbox>>,
    watched: Arc<Watched>,
    hold: meter::Hold,
    /// Where the owner waited in the queue: until its releases have been handed to the nodes, it is listened for.
    registered: Option<Box<Registered>>,
    shared: Arc<Shared>,
}

impl Driver {
    /// Starts what the lease wants started.
    pub(crate) fn start(lease: Lease, shared: Arc<Shared>) -> Self {
        let (lease, watched, hold) = (Box::new(lease), Arc::default(), meter::Hold::default());
        let mut driver =
            Self { lease, mailbox: Some(Mailbox::new()), watched, hold, registered: None, shared };
        driver.pump();
        driver
    }

    fn mailbox(&mut self) -> Arc<Mailbox> {
        self.mailbox.get_or_insert_with(Mailbox::new).clone()
    }

    /// Takes in what has been answered, and gives up the mailbox where no call is left that has one. Returns whether that is
    /// so: then none is left either that might be sent in a second form behind a release (rule 2).
    pub(crate) fn rest(&mut self) -> bool {
        // A call lets go of the mailbox after it has delivered its answer, and taking one in may lead to more calls.
        let alone = |mailbox: &Arc<Mailbox>| Arc::strong_count(mailbox) == 1;
        let idle = self.mailbox.as_ref().is_none_or(alone);
        self.take_answers();
        if idle && self.mailbox.as_ref().is_none_or(alone) {
            self.mailbox = None;
        }
        self.mailbox.is_none()
    }

    /// The lease, to look at.
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The current round with everything that has been answered so far, taken in or not.
    pub(crate) fn round(&self) -> Round {
        let mut round = self.lease.round().clone();
        if let Some(mailbox) = &self.mailbox {
            mailbox.look(|delivery| {
                if CallId(delivery.call as u32) == self.lease.call() {
                    let reply = self.lease.weigh(delivery.reply.clone(), delivery.creates, delivery.standing);
                    round.record(delivery.node, reply, delivery.at);
                }
            });
        }
        round
    }

    /// Those who watch the lease.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Keeps the owner listened for as long as the driver lives.
    pub(crate) fn listen(&mut self, registered: Option<Registered>) {
        self.registered = registered.map(Box::new);
    }

    /// After a failed claim: what is open on the node that had voted. It is the waiter's from now on, under another
    /// owner; this one is not sent again in any form.
    pub(crate) fn surrender(&mut self) -> Doubt {
        self.take_answers();
        self.mailbox().end();
        self.lease.surrender().unwrap_or_default()
    }

    /// Changes the lease and starts what follows.
    pub(crate) fn mutate(&mut self, change: impl FnOnce(&mut Lease, &Clock)) {
        change(&mut self.lease, &self.shared.clock);
        self.pump();
    }

    /// Begins an extension whose commands go out together with those of other leases: each is given to `bundle`, and what
    /// becomes of it comes back by [`Driver::sent`] and [`Driver::answered`]. What else follows starts as ever.
    pub(crate) fn extend_in_company(&mut self, ttl: Ttl, now: Instant, bundle: impl FnMut(ToSend)) {
        self.rest();
        self.lease.extend(ttl, now);
        self.pump_but(Some(bundle));
    }

    /// What became of a bundled command at a node's door.
    pub(crate) fn sent(&mut self, node: NodeId, call: CallId, admitted: Result<ConnectionId, NotSent>) {
        self.mutate(|lease, clock| lease.handle_sent(node, call, admitted, clock.now()));
    }

    /// The answer to a bundled command.
    pub(crate) fn answered(&mut self, node: NodeId, call: CallId, connection: ConnectionId, reply: Reply) {
        self.mutate(|lease, clock| lease.handle_reply(node, call, false, connection, reply, clock.now()));
    }

    /// What happened, once.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.lease.poll_event()?;
        self.hold.happened(event, || self.shared.clock.now());
        Some(event)
    }

    /// Waits for what happens to the lease next.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future loses nothing: the calls go on, and a later `event` takes up their answers.
    pub(crate) async fn event(&mut self) -> Event {
        // Answers are exchanged for the list of those before, so that two lists serve all of them.
        let mut deliveries = Vec::new();
        loop {
            self.take_answers();
            if let Some(event) = self.poll_event() {
                return event;
            }
            let Some(deadline) = self.lease.poll_timeout() else {
                // Nothing is under way that could bring an event; only answers that change the report.
                let mailbox = self.mailbox();
                poll_fn(|cx| mailbox.poll_take(cx, &mut deliveries)).await;
                self.handle(&mut deliveries);
                continue;
            };
            let (mailbox, clock) = (self.mailbox(), self.shared.clock.clone());
            let mut timeout = pin!(clock.sleep_until(deadline));
            // The timer is made once per deadline, not once per answer.
            while self.lease.poll_timeout() == Some(deadline) {
                tokio::select! {
                    biased;
                    () = poll_fn(|cx| mailbox.poll_take(cx, &mut deliveries)) => self.handle(&mut deliveries),
                    () = &mut timeout => self.mutate(|lease, clock| lease.handle_timeout(clock.now())),
                }
            }
        }
    }

    /// Waits until every set and claim has been answered, or until the deadline.
    ///
    /// # Cancellation safety
    ///
    /// As with [`Driver::event`].
    pub(crate) async fn answered_by(&mut self, deadline: Instant) {
        let (mailbox, clock) = (self.mailbox(), self.shared.clock.clone());
        let mut over = pin!(clock.sleep_until(deadline));
        self.take_answers();
        let mut deliveries = Vec::new();
        while !self.lease.is_answered() {
            tokio::select! {
                biased;
                () = poll_fn(|cx| mailbox.poll_take(cx, &mut deliveries)) => self.handle(&mut deliveries),
                () = &mut over => return,
            }
        }
    }

    /// Takes in what has been answered, without waiting.
    pub(crate) fn take_answers(&mut self) {
        if let Some(mailbox) = &self.mailbox {
            let mut deliveries = mailbox.take();
            self.handle(&mut deliveries);
        }
    }

    fn handle(&mut self, deliveries: &mut Vec<Delivery>) {
        if deliveries.is_empty() {
            return;
        }
        // The moment of reading, not of arrival: validity is checked after the last needed reply was read (rule 1).
        let now = self.shared.clock.now();
        for delivery in deliveries.drain(..) {
            let Delivery { node, call, creates, connection, reply, standing, at } = delivery;
            self.lease.see_number(CallId(call as u32), &reply);
            let reply = self.lease.weigh(reply, creates, standing);
            tracing::debug!(%node, key = %self.lease.key(), ?reply, at = ?at, "vote");
            self.lease.handle_reply(node, CallId(call as u32), creates, connection, reply, now);
            self.pump();
        }
    }

    /// Tells those who watch, and then hands the nodes everything that the lease wants sent.
    fn pump(&mut self) {
        self.pump_but(None::<fn(ToSend)>);
    }

    /// The same, but extensions of the key's life are given to `bundle`, if there is one.
    fn pump_but(&mut self, mut bundle: Option<impl FnMut(ToSend)>) {
        self.watched.tell(&self.lease);
        self.hold.see(&self.lease, || self.shared.clock.now());
        // One reading for commands that go out together: what it is too early for the last of them is far less than the
        // margin of a debt.
        let mut now = None;
        while let Some(send) = self.lease.poll_send() {
            if let (Some(bundle), Operation::Extend { .. }) = (&mut bundle, &send.operation) {
                bundle(send);
                continue;
            }
            let mailbox = self.mailbox();
            if send.operation.releases() {
                mailbox.end();
            }
            let Some(node) = self.shared.nodes.get(send.node.index()) else { continue };
            let (operation, debt, call) = (send.operation, send.debt, u64::from(send.call.0));
            let admitted = node.send(Outgoing { operation, debt, mailbox, call });
            let now = *now.get_or_insert_with(|| self.shared.clock.now());
            self.lease.handle_sent(send.node, send.call, admitted, now);
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.take_answers();
        self.mutate(|lease, clock| lease.abandon(clock.now()));
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("lease", &self.lease).finish_non_exhaustive()
    }
}
