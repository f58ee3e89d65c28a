//! Carries one lease's messages between the protocol and the nodes.
//!
//! A driver has one owner at a time and moves: acquire future, then guard, or keeper and back. It decides nothing. Dropping it at any await
//! releases what was set: that one `Drop` is all of cancel safety, because the nodes own every call they admitted, and
//! the debts that travel with the releases outlive everybody.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use smallvec::SmallVec;

use super::term::Watched;
use crate::clock::Clock;
use crate::node::{Delivery, Mailbox, Node, Registered, Request};
use crate::protocol::debt::Doubt;
use crate::protocol::lease::{CallId, Event, Lease, Send};
use crate::protocol::message::{ConnectionId, NotSent, Operation, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::round::Round;
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;

/// A lease and its calls in flight.
#[derive(Debug)]
pub(crate) struct Driver {
    lease: Box<Lease>,
    mailbox: Arc<Mailbox>,
    nodes: Arc<[Node]>,
    clock: Clock,
    watched: Arc<Watched>,
    /// Where the owner stood in line: until its releases have been handed to the nodes, it is listened for.
    registered: Option<Registered>,
}

impl Driver {
    /// Starts what the lease wants started.
    pub(crate) fn start(lease: Lease, nodes: Arc<[Node]>, clock: Clock) -> Self {
        let (lease, watched) = (Box::new(lease), Arc::default());
        let mut driver = Self { lease, mailbox: Mailbox::new(), nodes, clock, watched, registered: None };
        driver.pump();
        driver
    }

    /// The lease, to look at.
    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The current round with everything that has been answered so far, taken in or not.
    pub(crate) fn round(&self) -> Round {
        let mut round = self.lease.round().clone();
        self.mailbox.look(|delivery| {
            if CallId(delivery.call as u32) == self.lease.call() {
                round.record(delivery.node, delivery.reply.clone(), delivery.at);
            }
        });
        round
    }

    /// Those who watch the lease.
    pub(crate) fn watched(&self) -> &Arc<Watched> {
        &self.watched
    }

    /// Keeps the owner listened for as long as the driver lives.
    pub(crate) fn listen(&mut self, registered: Option<Registered>) {
        self.registered = registered;
    }

    /// After a failed claim: what is open on the node that had voted. It is the waiter's from now on, under another
    /// owner; this one is not sent again in any form.
    pub(crate) fn surrender(&mut self) -> Doubt {
        self.take_answers();
        self.mailbox.end();
        self.lease.surrender().unwrap_or_default()
    }

    /// Changes the lease and starts what follows.
    pub(crate) fn mutate(&mut self, change: impl FnOnce(&mut Lease, &Clock)) {
        change(&mut self.lease, &self.clock);
        self.pump();
    }

    /// Begins an extension whose commands go out together with those of other leases: each is given to `bundle`, and what
    /// becomes of it comes back by [`Driver::sent`] and [`Driver::answered`]. What else follows starts as ever.
    pub(crate) fn extend_in_company(&mut self, ttl: Ttl, now: Instant, bundle: impl FnMut(Send)) {
        self.take_answers();
        self.lease.extend(ttl, now);
        self.pump_but(Some(bundle));
    }

    /// What became of a bundled command at a node's door.
    pub(crate) fn sent(&mut self, node: NodeId, call: CallId, admitted: Result<ConnectionId, NotSent>) {
        let now = self.clock.now();
        self.mutate(|lease, _| lease.handle_sent(node, call, admitted, now));
    }

    /// The answer to a bundled command.
    pub(crate) fn answered(&mut self, node: NodeId, call: CallId, connection: ConnectionId, reply: Reply) {
        let now = self.clock.now();
        self.mutate(|lease, _| lease.handle_reply(node, call, false, connection, reply, now));
    }

    /// What happened, once.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.lease.poll_event()
    }

    /// Waits for what happens to the lease next.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future loses nothing: the calls go on, and a later `event` takes up their answers.
    pub(crate) async fn event(&mut self) -> Event {
        loop {
            self.take_answers();
            if let Some(event) = self.lease.poll_event() {
                return event;
            }
            let Some(deadline) = self.lease.poll_timeout() else {
                // Nothing is under way that could bring an event; only answers that change the report.
                let deliveries = poll_fn(|cx| self.mailbox.poll_take(cx)).await;
                self.handle(deliveries);
                continue;
            };
            let clock = self.clock.clone();
            let mut timeout = pin!(clock.sleep_until(deadline));
            // The timer is made once per deadline, not once per answer.
            while self.lease.poll_timeout() == Some(deadline) {
                tokio::select! {
                    biased;
                    deliveries = poll_fn(|cx| self.mailbox.poll_take(cx)) => self.handle(deliveries),
                    () = &mut timeout => self.mutate(|lease, clock| lease.handle_timeout(clock.now())),
                }
            }
        }
    }

    /// Takes in what has been answered, without waiting.
    pub(crate) fn take_answers(&mut self) {
        let deliveries = self.mailbox.take();
        self.handle(deliveries);
    }

    fn handle(&mut self, deliveries: SmallVec<[Delivery; 4]>) {
        for delivery in deliveries {
            let Delivery { node, call, creates, connection, reply, at } = delivery;
            tracing::debug!(%node, key = %self.lease.key(), ?reply, at = ?at, "vote");
            // The moment of reading, not of arrival: validity is checked after the last needed reply was read (rule 1).
            self.lease.handle_reply(node, CallId(call as u32), creates, connection, reply, self.clock.now());
            self.pump();
        }
    }

    /// Tells those who watch, and then hands the nodes everything that the lease wants sent.
    fn pump(&mut self) {
        self.pump_but(None::<fn(Send)>);
    }

    /// The same, but extensions of the key's life are given to `bundle`, if there is one.
    fn pump_but(&mut self, mut bundle: Option<impl FnMut(Send)>) {
        self.watched.tell(&self.lease);
        while let Some(send) = self.lease.poll_send() {
            if let (Some(bundle), Operation::Extend { .. }) = (&mut bundle, &send.operation) {
                bundle(send);
                continue;
            }
            if send.operation.releases() {
                self.mailbox.end();
            }
            let Some(node) = self.nodes.get(send.node.index()) else { continue };
            let request = Request {
                operation: send.operation,
                debt: send.debt,
                mailbox: self.mailbox.clone(),
                call: u64::from(send.call.0),
            };
            let admitted = node.send(request);
            self.lease.handle_sent(send.node, send.call, admitted, self.clock.now());
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.take_answers();
        self.mutate(|lease, clock| lease.abandon(clock.now()));
    }
}
