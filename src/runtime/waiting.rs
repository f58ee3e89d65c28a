//! Carries one waiter's messages: from waiting in the queue to holding the lock, or out of the queue.
//!
//! It decides nothing. Dropping it at any await leaves the queue wherever the waiter stands, and undoes a claim that is
//! under way.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use rand::random;

use super::attempt::{self, NotAcquired, Request, failed, new_owner};
use super::driver::Driver;
use crate::meter;
use crate::node;
use crate::protocol::acquire::{Acquisition, Failed, Step};
use crate::protocol::lease::{Asking, Event as LeaseEvent, Lease};
use crate::protocol::message::Place;
use crate::protocol::quorum::NodeSet;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::group::Stand;
use crate::protocol::wait_queue::rank::{self, QueueNodes, Ranks};
use crate::protocol::wait_queue::waiter::{Event, WaiterSettings, QueueVote, Waiter};
use crate::registry::{Listening, Mailbox, News, Seat};
use crate::runtime::shared::{Counted, Shared};

/// A waiter and its calls in flight.
struct Queued<'a> {
    shared: &'a Arc<Shared>,
    request: &'a Request,
    queues: QueueNodes,
    waiter: Waiter,
    /// One for each owner: what was released must not be sent again in another form.
    mailbox: Arc<Mailbox>,
    listening: Option<Listening>,
    seat: Option<Seat>,
    _waiting: meter::Waiting,
}

/// Waits in the queue for as long as the acquisition says so. Returns the held lock, if a claim brought it.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Request,
    ranks: &Ranks,
    acquisition: &mut Acquisition,
) -> Result<Option<Box<(Driver, Counted)>>, NotAcquired> {
    // Until it has left the queue, a client that closes waits for it.
    let counted = Counted::new(shared.clone());
    if shared.closing.is_cancelled() {
        return Err(NotAcquired::Closed);
    }
    let mut in_queue = Queued::new(shared, request, ranks);
    while let Step::Queue { until } = acquisition.step() {
        in_queue.settle()?;
        match in_queue.waiter.poll_event() {
            // Boxed: thousands may wait in the queue, and few of them claim at a time.
            Some(Event::Claim(vote)) => match Box::pin(in_queue.claim(vote)).await? {
                Ok(driver) => return Ok(Some(Box::new((driver, counted)))),
                Err(failed) => acquisition.handle_claim_failed(failed, shared.clock.now()),
            },
            Some(Event::Standing { place, dropped }) => in_queue.stand(place, dropped, acquisition),
            Some(Event::Unable(reply)) => {
                tracing::debug!(key = %request.key, ?reply, "no queue to stand in, polling");
                acquisition.handle_unable(&reply, random(), shared.clock.now());
            }
            None => in_queue.rest(until, acquisition).await?,
        }
    }
    Ok(None)
}

impl<'a> Queued<'a> {
    fn new(shared: &'a Arc<Shared>, request: &'a Request, ranks: &Ranks) -> Self {
        let habits = WaiterSettings {
            client: shared.wakeups.client(),
            hand_over: rank::hand_over(shared.worst_round_trip.worst(), request.terms.ttl),
            reply_timeout: request.terms.reply_timeout,
            drift: request.terms.drift,
        };
        Self {
            shared,
            request,
            queues: attempt::queues(shared, ranks),
            waiter: Waiter::new(request.key.clone(), *ranks, habits, random()),
            mailbox: Mailbox::new(),
            listening: None,
            seat: None,
            _waiting: meter::Waiting::new(),
        }
    }

    fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Hands the nodes what the waiter wants sent, and the waiter the owners it wants.
    fn settle(&mut self) -> Result<(), NotAcquired> {
        self.pump();
        while self.waiter.wants_owner() {
            let (owner, node) = (new_owner()?, self.waiter.node());
            // The earlier owner is never sent again, in no form.
            self.mailbox.end();
            self.mailbox = Mailbox::new();
            if let Some(seat) = self.seat.take() {
                seat.move_on(node);
            }
            self.listening = Some(self.shared.wakeups.listen(owner, self.mailbox.clone()));
            let deaf = self.shared.nodes.get(node.index()).is_some_and(node::Node::is_deaf);
            self.shared.contended_keys.note(&self.request.key, node);
            self.waiter.supply(owner, deaf, self.now());
            self.pump();
        }
        Ok(())
    }

    fn pump(&mut self) {
        while let Some(send) = self.waiter.poll_send() {
            let Some(node) = self.shared.nodes.get(send.node.index()) else { continue };
            if send.operation.releases() {
                self.mailbox.end();
            }
            let (operation, debt, mailbox) = (send.operation, send.debt, self.mailbox.clone());
            let admitted = node.send(node::Outgoing { operation, debt, mailbox, call: send.call });
            if send.leaves {
                self.listening = None;
            }
            self.waiter.handle_sent(send.call, admitted, self.now());
        }
    }

    /// Waits for news, for the waiter's next moment, or for the end of the wait.
    async fn rest(&mut self, until: Instant, acquisition: &mut Acquisition) -> Result<(), NotAcquired> {
        let shared = self.shared;
        let due = self.waiter.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => return Err(NotAcquired::Closed),
            news = poll_fn(|cx| self.mailbox.poll_news(cx)) => self.take(news),
            () = shared.clock.doze_until(due.min(until)) => {
                let now = shared.clock.now();
                acquisition.handle_timeout(now);
                if acquisition.step() == (Step::Queue { until }) {
                    self.waiter.handle_timeout(now);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, news: News) {
        let now = self.now();
        for answer in news.answers {
            tracing::trace!(node = %answer.node, reply = ?answer.reply, "line");
            let took = self.waiter.handle_reply(answer.call, answer.connection, answer.reply, now);
            if let Some(took) = took {
                self.shared.worst_round_trip.note(took);
            }
        }
        if let Some(signals) = news.signals {
            self.waiter.handle_signals(&signals, now);
        }
    }

    /// The waiter has a place: among those in the queue, and among those of its client.
    fn stand(&mut self, place: Place, dropped: bool, acquisition: &mut Acquisition) {
        let (owner, wakeups) = (self.waiter.owner(), &self.shared.wakeups);
        self.shared.note_life(&self.request.key, place.holder.as_ref());
        if place.entered {
            meter::stands(place.before.saturating_add(1));
        }
        let mut usable = NodeSet::EMPTY;
        let better = self.waiter.better();
        better.filter(|node| self.shared.is_usable(*node)).for_each(|node| usable.insert(node));
        self.seat.get_or_insert_with(|| wakeups.seat(owner));
        wakeups.stand(&mut self.waiter, Stand { score: place.score, dropped, usable });
        acquisition.handle_standing(self.waiter.node(), place.holder);
    }

    /// Claims all nodes under the waiter's owner.
    async fn claim(&mut self, vote: QueueVote) -> Result<Result<Driver, Failed>, NotAcquired> {
        self.seat = None;
        let (key, terms) = (self.request.key.clone(), self.request.terms);
        let options = self.request.options(self.shared, Some(self.queues), Some(vote));
        let lease = Lease::acquire(terms, key, self.waiter.owner(), Asking::Claim, options, self.now());
        let mut driver = Driver::start(lease, self.shared.clone());
        driver.listen(self.listening.take());
        let event = {
            let mut event = pin!(driver.event());
            tokio::select! {
                biased;
                // The wait ends with the client; the driver undoes the claim.
                () = self.shared.closing.cancelled() => return Err(NotAcquired::Closed),
                event = &mut event => event,
            }
        };
        let LeaseEvent::Failed(failure) = event else { return Ok(Ok(driver)) };
        let claim_failure = self.waiter.claim_failure(driver.lease().round());
        tracing::debug!(key = %self.request.key, ?failure, ?claim_failure, "claim failed");
        let failed = failed(self.shared, &driver, failure);
        let doubt = driver.surrender();
        self.waiter.claim_failed(doubt, claim_failure, self.now());
        Ok(Err(failed))
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.waiter.give_up();
        self.pump();
    }
}
