//! Carries one waiter's messages: from waiting in the queue to holding the lock, or out of the queue.
//!
//! It decides nothing. Dropping it at any await leaves the queue wherever the waiter stands, and undoes a claim that is
//! under way.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use rand::random;

use super::acquire::{self, Failed, Request, explain, is_final, new_owner};
use super::driver::Driver;
use crate::client::error::AcquireError;
use crate::meter;
use crate::node::{self, Mailbox, News, Registered, Seat};
use crate::protocol::lease::{Asking, Event as LeaseEvent, Lease};
use crate::protocol::message::{Holder, Reply};
use crate::protocol::quorum::NodeId;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::{self, QueueNodes, Ranks};
use crate::protocol::wait_queue::waiter::{Event, Waiter, WaiterSettings};
use crate::runtime::shared::{Counted, Shared};

/// How waiting in the queue ended.
pub(crate) enum Ended {
    /// The lock is held.
    Acquired(Box<(Driver, Counted)>),
    /// No queue can be used.
    Unable(Reply),
    /// The wait is over; who held the lock where the queue was kept, as far as is known.
    TimedOut(Option<(NodeId, Option<Holder>)>),
}

/// A waiter and its calls in flight.
struct Queued<'a> {
    shared: &'a Arc<Shared>,
    request: &'a Request,
    queues: QueueNodes,
    waiter: Waiter,
    /// One for each owner: what was released must not be sent again in another form.
    mailbox: Arc<Mailbox>,
    registered: Option<Registered>,
    seat: Option<Seat>,
    asked: Instant,
    holder: Option<(NodeId, Option<Holder>)>,
    _waiting: meter::Waiting,
}

/// Waits in the queue until the lock is held or `deadline` has come. `last` is set to the cause of each failed claim.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Request,
    ranks: &Ranks,
    deadline: Instant,
    last: &mut Option<Failed>,
) -> Result<Ended, AcquireError> {
    // Until it has left the queue, a client that closes waits for it.
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(AcquireError::Closed);
    }
    let client = shared.wakeups.client();
    let habits = WaiterSettings {
        client,
        hand_over: rank::hand_over(shared.worst_round_trip.worst(), request.terms.ttl),
        reply_timeout: request.terms.reply_timeout,
        drift: request.terms.drift,
    };
    let mut in_queue = Queued {
        shared,
        request,
        queues: acquire::queues(shared, ranks),
        waiter: Waiter::new(request.key.clone(), *ranks, habits, random()),
        mailbox: Mailbox::new(),
        registered: None,
        seat: None,
        asked: Instant::default(),
        holder: None,
        _waiting: meter::Waiting::new(),
    };
    loop {
        in_queue.settle()?;
        match in_queue.waiter.poll_event() {
            Some(Event::Claim { patient }) => {
                // Boxed: thousands may wait in the queue, and few of them claim at a time.
                if let Some(driver) = Box::pin(in_queue.claim(patient, last)).await {
                    return Ok(Ended::Acquired(Box::new((driver, counted))));
                }
                if let Some((error, _)) = last.take_if(|(error, _)| is_final(error)) {
                    return Err(error);
                }
                // At its end a wait begins nothing more.
                if shared.clock.now() >= deadline {
                    return Ok(Ended::TimedOut(in_queue.holder.take()));
                }
                continue;
            }
            Some(Event::Standing { place, dropped }) => {
                let score = place.score;
                shared.note_life(&request.key, place.holder.as_ref());
                if place.entered {
                    meter::stands(place.before.saturating_add(1));
                }
                in_queue.holder = Some((in_queue.waiter.node(), place.holder));
                in_queue.sit(score, dropped);
                continue;
            }
            Some(Event::Unable(reply)) => {
                tracing::debug!(key = %request.key, ?reply, "no queue to stand in, polling");
                return Ok(Ended::Unable(reply));
            }
            None => {}
        }
        let due = in_queue.waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(AcquireError::Closed),
            news = poll_fn(|cx| in_queue.mailbox.poll_news(cx)) => in_queue.take(news),
            () = shared.clock.doze_until(due.min(deadline)) => {
                let now = shared.clock.now();
                if now >= deadline {
                    return Ok(Ended::TimedOut(in_queue.holder.take()));
                }
                in_queue.waiter.handle_timeout(now);
            }
        }
    }
}

impl Queued<'_> {
    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Hands the nodes what the waiter wants sent, and the waiter the owners it wants.
    fn settle(&mut self) -> Result<(), AcquireError> {
        self.pump();
        while self.waiter.wants_owner() {
            let owner = new_owner()?;
            // The earlier owner is never sent again, in no form.
            self.mailbox.end();
            self.mailbox = Mailbox::new();
            if let Some(seat) = self.seat.take()
                && seat.group().1 != self.waiter.node()
            {
                // This one leaves the node's queue for another's: the others of this client find out why.
                self.shared.wakeups.nudge(seat.group(), owner);
            }
            self.registered = Some(self.shared.wakeups.register(owner, self.mailbox.clone()));
            let deaf = self.shared.nodes.get(self.waiter.node().index()).is_some_and(node::Node::is_deaf);
            self.shared.contended_keys.note(&self.request.key, self.waiter.node());
            self.waiter.supply(owner, deaf, self.now());
            self.pump();
        }
        Ok(())
    }

    fn pump(&mut self) {
        while let Some(send) = self.waiter.poll_send() {
            let Some(node) = self.shared.nodes.get(send.node.index()) else { continue };
            let leaves = send.operation.releases() && send.operation.owner() == Some(self.waiter.owner());
            if send.operation.releases() {
                self.mailbox.end();
            }
            let request = node::Outgoing {
                operation: send.operation,
                debt: send.debt,
                mailbox: self.mailbox.clone(),
                call: u64::from(send.call),
            };
            self.asked = self.now();
            let admitted = node.send(request);
            if leaves {
                // A wake-up that comes now comes too late, and is to be passed on.
                self.registered = None;
            }
            self.waiter.handle_sent(send.call, admitted, self.asked);
        }
    }

    fn take(&mut self, news: News) {
        let now = self.now();
        for delivery in news.deliveries {
            tracing::trace!(node = %delivery.node, reply = ?delivery.reply, "line");
            if matches!(delivery.reply, Reply::Queued(_) | Reply::Voted) {
                self.shared.worst_round_trip.note(now.since(self.asked));
            }
            self.waiter.handle_reply(delivery.call as u32, delivery.connection, delivery.reply, now);
        }
        let Some(signals) = news.signals else { return };
        if signals.woken {
            self.waiter.handle_wake();
        }
        if let Some(leads) = signals.leads {
            match leads {
                Some(look) => self.waiter.take_lead(look, now),
                None => self.waiter.set_leads(false, now),
            }
        }
        if signals.nudged {
            self.waiter.handle_nudge(now);
        }
        for node in signals.usable {
            self.waiter.handle_usable(node, now);
        }
    }

    /// Takes a seat among the client's waiters, or keeps it, and learns whether it has to look for all.
    fn sit(&mut self, score: u64, dropped: bool) {
        let group = (self.request.key.clone(), self.waiter.node());
        let member = (score, self.waiter.owner());
        let look = self.waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        let leads = match self.seat.take_if(|seat| !seat.is(&group, member)) {
            None if self.seat.is_some() => self.seat.as_ref().is_some_and(|seat| seat.renew(look)),
            _ => {
                let better = self.waiter.better();
                let (seat, leads) = self.shared.wakeups.sit(group, member, &self.mailbox, look, better);
                self.seat = Some(seat);
                leads
            }
        };
        self.waiter.set_leads(leads, look);
        if let (true, Some(seat)) = (leads && self.waiter.wants_back(self.now()), &self.seat) {
            let usable =
                |node: &NodeId| self.shared.nodes.get(node.index()).is_some_and(node::Node::is_usable);
            for node in self.waiter.better().filter(usable) {
                self.shared.wakeups.send_to(seat.group(), node);
            }
        }
        if let (true, true, Some(seat)) = (dropped, leads, &self.seat) {
            self.shared.wakeups.nudge(seat.group(), self.waiter.owner());
        }
    }

    /// Claims all nodes under the waiter's owner.
    async fn claim(&mut self, patient: bool, last: &mut Option<Failed>) -> Option<Driver> {
        self.seat = None;
        let (owner, node) = (self.waiter.owner(), self.waiter.node());
        let (key, terms) = (self.request.key.clone(), self.request.terms);
        let lease = Lease::acquire(terms, key, owner, Asking::Claim, self.now());
        let lease = self.request.shaped(lease, Some(self.queues), self.shared).voted_by(
            node,
            self.waiter.doubt(),
            patient,
        );
        let mut driver = Driver::start(lease, self.shared.clone());
        driver.listen(self.registered.take());
        let event = {
            let mut event = pin!(driver.event());
            tokio::select! {
                biased;
                // The wait ends with the client; the driver undoes the claim.
                () = self.shared.closing.cancelled() => None,
                event = &mut event => Some(event),
            }
        };
        match event {
            None => None,
            Some(LeaseEvent::Failed(failure)) => {
                let claim_failure = self.waiter.claim_failure(driver.lease().round());
                tracing::debug!(key = %self.request.key, ?failure, ?claim_failure, "claim failed");
                *last = Some(explain(self.shared, self.request, &driver, failure));
                let doubt = driver.surrender();
                self.waiter.claim_failed(doubt, claim_failure, self.now());
                None
            }
            Some(_) => Some(driver),
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.waiter.give_up();
        self.pump();
    }
}
