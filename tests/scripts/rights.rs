//! What must come of an operation if the user lacks a right that it needs: rules on top of
//! [`Store`](redquorum::node::store::Store), which knows of no rights but one.

use std::time::Duration;

use redquorum::node::store::QueueRecord;
use redquorum::protocol::fencing::{Counter, Fence};
use redquorum::protocol::message::{ClientId, Found, Key, Operation, Reply};
use redquorum::protocol::validity::Ttl;
use redquorum::protocol::wait_queue::rank::SILENT_AFTER;

use crate::history::{Answer, Drawing, Staging, helper};

/// A right that the user lacks. `lives.rs` is about those to read lives and to lengthen them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    ReadKey,
    SetKey,
    DeleteKey,
    ReadCounter,
    SetCounter,
    LengthenCounter,
    Publish,
    LookForLine,
    UseLine,
    CountLine,
    EndLooks,
    DeleteLooks,
}

/// What the error says.
pub const DENIED_ERROR: &str = "NOPERM denied";

pub const DENIED: [Denied; 12] = [
    Denied::ReadKey,
    Denied::SetKey,
    Denied::DeleteKey,
    Denied::ReadCounter,
    Denied::SetCounter,
    Denied::LengthenCounter,
    Denied::Publish,
    Denied::LookForLine,
    Denied::UseLine,
    Denied::CountLine,
    Denied::EndLooks,
    Denied::DeleteLooks,
];

impl Denied {
    /// The command that is answered with an error, on one key only, or on all if that is empty.
    pub fn staging(self, key: &Key) -> Staging {
        let (command, denied_key) = match self {
            Self::ReadKey => ("GET", key.as_bytes().to_vec()),
            Self::SetKey => ("SET", key.as_bytes().to_vec()),
            Self::DeleteKey => ("DEL", key.as_bytes().to_vec()),
            Self::ReadCounter => ("GET", helper(key, "fence")),
            Self::SetCounter => ("SET", helper(key, "fence")),
            Self::LengthenCounter => ("PEXPIREAT", helper(key, "fence")),
            Self::Publish => ("PUBLISH", Vec::new()),
            Self::LookForLine => ("EXISTS", Vec::new()),
            Self::UseLine => ("ZREM", Vec::new()),
            Self::CountLine => ("ZCARD", Vec::new()),
            Self::EndLooks => ("EXPIRE", helper(key, "lives")),
            Self::DeleteLooks => ("DEL", helper(key, "lives")),
        };
        Staging { denied: vec![command], denied_key, ..Staging::default() }
    }
}

impl Drawing {
    /// What comes of an operation if a command is answered with an error. Nothing if the operation does not need the command, or
    /// if it is left half done, which no rule is about.
    pub fn without(&mut self, denied: Denied, operation: &Operation) -> Option<Answer> {
        use Operation::{Claim, Extend, ExtendAll, HandOver, Inspect, Queue, Raise, Release};

        if let ExtendAll { extensions } = operation {
            let (first, rest) = extensions.as_slice().split_first()?;
            let first = self.without(denied, &first.clone().into())?;
            let rest = rest.iter().cloned().map(|each| self.with_all_rights(&each.into()));
            return Some(Answer::Each(std::iter::once(first).chain(rest).collect()));
        }
        let (now, key) = (self.now(), operation.key());
        let holder = self.store.holder(key, now);
        let (free, ours) = (holder.is_none(), self.is_ours(operation));
        let waiting = self.store.waiting(key, now) > 0;
        let counter = self.counter_after(operation);
        let spoiled = self.spoiled.contains_key(key);
        if spoiled && !matches!(denied, Denied::Publish | Denied::LookForLine | Denied::UseLine) {
            return None;
        }
        let keeps_counter = self.keeps_counter(operation);
        let release = operation.owner().map(|owner| Release { key: key.clone(), owner });
        match (denied, operation) {
            // A claim of a free key need not read it.
            (Denied::ReadKey, Claim { fence: Some(_), .. }) if free || counter.is_none() => None,
            (Denied::ReadKey, _) => Some(Answer::Error(DENIED_ERROR)),
            (Denied::SetKey, Claim { .. }) if free && counter.is_some() => Some(Answer::Error(DENIED_ERROR)),
            (Denied::DeleteKey, Release { .. }) if ours => Some(Answer::Error(DENIED_ERROR)),
            (Denied::DeleteKey, HandOver { .. }) if ours && !waiting => Some(Answer::Error(DENIED_ERROR)),

            // Then the key goes to no one in the queue. The first that lives is out of the line, as are the silent ones before it.
            (Denied::SetKey, HandOver { owner, .. }) if ours && waiting => {
                let QueueRecord { mut entries, looks, last, .. } = self.store.queue_record(key, now);
                let stands_in_it = entries.iter().any(|entry| entry.0 == *owner);
                entries.retain(|entry| entry.0 != *owner);
                let lives = |client: ClientId| {
                    let look = looks.iter().find(|(other, ..)| *other == client);
                    look.is_some_and(|(_, at, _)| self.now / 1_000 - at <= SILENT_AFTER.as_millis() as u64)
                };
                let first = entries.iter().position(|(_, client, _)| lives(*client))?;
                if first + 1 != entries.len() {
                    return None;
                }
                // The store drops all silent ones at a release, as long as there are any.
                let then = match stands_in_it || first > 0 {
                    true => operation.clone(),
                    false if last.is_none() => release?,
                    false => return None,
                };
                let (owner, client, _) = entries[first];
                let leave =
                    HandOver { key: key.clone(), owner, client, hand_over: Ttl::unchecked(Duration::ZERO) };
                self.store.execute(&leave, now);
                Some(Answer::This(self.store.execute(&then, now)))
            }

            (Denied::ReadCounter, Claim { fence: Some(_), .. }) => Some(Answer::Error(DENIED_ERROR)),
            (Denied::ReadCounter, Extend { carry: Some(_), .. } | Raise { .. }) if ours => {
                Some(Answer::Error(DENIED_ERROR))
            }
            (Denied::SetCounter, Extend { carry: Some(_), .. } | Raise { .. }) if ours => {
                (!keeps_counter).then_some(Answer::Error(DENIED_ERROR))
            }
            // A counter that is above the token already is only lengthened.
            (Denied::SetCounter, Claim { fence: Some(Fence::Carry(_)), .. }) if keeps_counter => {
                Some(self.with_all_rights(operation))
            }
            (Denied::LengthenCounter, Extend { carry: Some(_), .. } | Raise { .. })
                if ours && keeps_counter =>
            {
                Some(Answer::Error(DENIED_ERROR))
            }

            (Denied::Publish, HandOver { .. } | Queue { .. }) => {
                self.store.set_may_publish(false);
                let reply = self.store.execute(operation, now);
                self.store.set_may_publish(true);
                Some(Answer::This(reply))
            }
            // Releasing must work all the same, and leaves the line alone.
            (Denied::LookForLine, HandOver { .. }) => Some(Answer::This(self.store.execute(&release?, now))),
            (Denied::UseLine, HandOver { .. }) if waiting => {
                Some(Answer::This(self.store.execute(&release?, now)))
            }
            (Denied::DeleteLooks, HandOver { .. }) if ours && !waiting => {
                Some(Answer::This(self.store.execute(&release?, now)))
            }
            (Denied::CountLine, Inspect { .. }) => {
                let Reply::Found(found) = self.store.execute(operation, now) else { return None };
                Some(Answer::This(Reply::Found(Found { waiting: 0, ..found })))
            }
            (Denied::EndLooks, Queue { .. }) if !free => Some(Answer::Error(DENIED_ERROR)),
            _ => None,
        }
    }

    /// Whether there is a counter, which the operation leaves as it is, but for its life.
    pub fn keeps_counter(&mut self, operation: &Operation) -> bool {
        let stored = self.store.counter(operation.key(), self.now());
        stored.is_some_and(|stored| self.counter_after(operation) == Some(stored.number))
    }

    /// The number of the counter after the operation; nothing if it is at its end.
    pub fn counter_after(&mut self, operation: &Operation) -> Option<u64> {
        let stored = self.store.counter(operation.key(), self.now());
        let fence = match operation {
            Operation::Claim { fence: Some(fence), .. } => *fence,
            Operation::Extend { carry: Some(carry), .. } | Operation::Raise { carry, .. } => {
                Fence::Carry(*carry)
            }
            _ => return Some(stored.map_or(0, |stored| stored.number)),
        };
        Counter::claimed(stored, operation.owner()?, fence, self.now).map(|counter| counter.number)
    }
}
