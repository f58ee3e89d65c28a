//! What the switches of `broken.rs` do to waiting in the queue. Without a switch, every function here hands on what it was
//! given.

use redquorum::protocol::lease::End;
use redquorum::protocol::message::{Operation, Owner, Reply};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::signal::Signal;
use redquorum::protocol::wait_queue::waiter::ClaimFailure;

use super::broken::Switch;
use super::node::Node;
use super::world::World;

impl World {
    /// What a waiter is made to send.
    pub fn falsify_look(&self, client: usize, operation: &mut Operation) {
        let Operation::Queue { score, .. } = operation else { return };
        match self.broken {
            Some(Switch::ClientsClockOrders) if score.is_none() => {
                *score = Some(self.client_now(client).as_nanos() / 1_000);
            }
            Some(Switch::PlaceNotGivenBack) => *score = None,
            _ => {}
        }
    }

    /// What a waiter is made to think of its part among its client's, in place of what the groups said.
    pub fn falsify_lead(&mut self, number: usize, look: Option<Instant>) {
        let leads = match self.broken {
            Some(Switch::EverybodyLooks) => true,
            Some(Switch::NeverWokenNorLooking | Switch::LeadersNeverLook) => false,
            _ => return,
        };
        self.waiters[number].waiter.set_leads(leads, look.unwrap_or(Instant::FAR_FUTURE));
    }

    /// Whether a signal does not reach its waiter.
    pub fn keeps_signal_back(&self, number: usize, signal: Signal) -> bool {
        let stands: NodeId = self.waiters[number].waiter.node();
        match (self.broken, signal) {
            (Some(Switch::LeadersNeverLook), Signal::Leads(Some(_))) => true,
            (Some(Switch::NobodyIsMoved), Signal::Usable(node)) => node != stands,
            _ => false,
        }
    }

    /// What an acquisition is told of a queue that cannot be used.
    pub fn falsify_unable(&self, reply: Reply) -> Reply {
        if self.broken == Some(Switch::UnreachedIsRefused) { Reply::QueueFull } else { reply }
    }

    /// What a waiter is told of its failed claim.
    pub fn falsify_setback(&self, claim_failure: &mut ClaimFailure) {
        match self.broken {
            Some(Switch::HeadGivesUpItsVote) => claim_failure.best = false,
            Some(Switch::HeadsNeverGiveWay) => claim_failure.holder = true,
            _ => {}
        }
    }

    /// What an undo is made to be.
    pub fn falsify_undo(&self, tenure: usize, operation: &mut Operation) {
        let undo = self.tenures[tenure].lease.end() == Some(End::NotAcquired);
        if let (Some(Switch::UndoWithoutHandOver), true, Operation::HandOver { key, owner, .. }) =
            (self.broken, undo, &*operation)
        {
            *operation = Operation::Release { key: key.clone(), owner: *owner };
        }
    }

    /// The last owner of the same key that was released before this one came.
    pub fn retired_before(&self, owner: usize) -> Option<Owner> {
        let key = self.owners[owner].key;
        let earlier = self.owners[..owner].iter().rev();
        earlier.filter(|record| record.key == key && record.retired).map(|record| record.owner).next()
    }

    /// A claim has been sent: some of it counts already.
    pub fn falsify_claim(&mut self, tenure: usize) {
        let Some(waiter) = self.tenures[tenure].waiter else { return };
        let over = |world: &Self| world.waiters[waiter].claim != Some(tenure);
        match self.broken {
            Some(Switch::WakeUpIsGrant) => {
                for node in self.plan.quorum.all() {
                    if !over(self) {
                        self.grant_falsely(tenure, node);
                    }
                }
                self.drain(tenure);
            }
            Some(Switch::VoteIsGrant) if !over(self) => {
                let node = self.waiters[waiter].waiter.node();
                self.grant_falsely(tenure, node);
                self.drain(tenure);
            }
            _ => {}
        }
    }
}

/// What a node does to its queue instead while a switch is on; `None` where it does the usual.
pub fn keep_line_falsely(
    switch: Option<Switch>,
    node: &mut Node,
    operation: &Operation,
    released: Option<Owner>,
    local: Instant,
) -> Option<Reply> {
    match (switch?, operation) {
        (Switch::HandsOverToReleased, Operation::HandOver { key, hand_over, .. }) => {
            let reply = node.store.execute(operation, local);
            let (Reply::HandedOver, Some(released)) = (&reply, released) else { return Some(reply) };
            node.store.remove(key);
            let claim = Operation::Claim { key: key.clone(), owner: released, ttl: *hand_over, fence: None };
            node.store.execute(&claim, local);
            Some(reply)
        }
        (Switch::ReleasesWithoutHandOver, Operation::HandOver { key, owner, .. }) => {
            Some(node.store.execute(&Operation::Release { key: key.clone(), owner: *owner }, local))
        }
        (Switch::LinesAreNotLeft, Operation::HandOver { key, owner, .. }) => {
            let own = node.carries_at(key, *owner, local);
            let release = Operation::Release { key: key.clone(), owner: *owner };
            (!own).then(|| node.store.execute(&release, local))
        }
        _ => None,
    }
}
