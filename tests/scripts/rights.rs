//! What must come of an operation if the user lacks a right that it needs: rules on top of
//! [`Store`](redquorum::node::store::Store), which knows of no rights but one.

use std::time::Duration;

use redquorum::node::store::QueueRecord;
use redquorum::protocol::fencing::{Counter, Fence};
use redquorum::protocol::message::{ClientId, Found, Holder, Key, Operation, Reply};
use redquorum::protocol::validity::Ttl;
use redquorum::protocol::wait_queue::rank::SILENT_AFTER;

use crate::history::{Answer, Drawing, helper, text};

/// A right that the user lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    ReadKey,
    SetKey,
    DeleteKey,
    Lengthen,
    LifeLeft,
    ReadCounter,
    SetCounter,
    Publish,
    LookForLine,
    UseLine,
    CountLine,
    EndLooks,
    DeleteLooks,
}

/// What the error says.
const DENIED_ERROR: &str = "NOPERM denied";

pub const DENIED: [Denied; 13] = [
    Denied::ReadKey,
    Denied::SetKey,
    Denied::DeleteKey,
    Denied::Lengthen,
    Denied::LifeLeft,
    Denied::ReadCounter,
    Denied::SetCounter,
    Denied::Publish,
    Denied::LookForLine,
    Denied::UseLine,
    Denied::CountLine,
    Denied::EndLooks,
    Denied::DeleteLooks,
];

impl Denied {
    /// The command that is answered with an error, on this key only, or on all if the key is empty.
    pub fn command(self, key: &Key) -> (&'static [u8], Vec<u8>) {
        match self {
            Self::ReadKey => (b"GET", key.as_bytes().to_vec()),
            Self::SetKey => (b"SET", key.as_bytes().to_vec()),
            Self::DeleteKey => (b"DEL", key.as_bytes().to_vec()),
            Self::Lengthen => (b"PEXPIRE", key.as_bytes().to_vec()),
            Self::LifeLeft => (b"PTTL", key.as_bytes().to_vec()),
            Self::ReadCounter => (b"GET", helper(key, "fence")),
            Self::SetCounter => (b"SET", helper(key, "fence")),
            Self::Publish => (b"PUBLISH", Vec::new()),
            Self::LookForLine => (b"EXISTS", Vec::new()),
            Self::UseLine => (b"ZREM", Vec::new()),
            Self::CountLine => (b"ZCARD", Vec::new()),
            Self::EndLooks => (b"EXPIRE", helper(key, "lives")),
            Self::DeleteLooks => (b"DEL", helper(key, "lives")),
        }
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
        let (ttl, lengthens) = match operation {
            Claim { ttl, .. } | Extend { ttl, .. } => (Some(ttl.duration()), ours),
            Queue { hand_over, .. } => (Some(hand_over.duration()), ours),
            _ => (None, false),
        };
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

            // What is left is not known: an own key gets the full life, and that of others is not told.
            (Denied::LifeLeft, _) => {
                if let (Some(holder), true) = (&holder, lengthens && counter.is_some()) {
                    self.store.put_foreign(key, &text(&holder.value)?, Some(Duration::ZERO), now);
                }
                let reply = self.store.execute(operation, now);
                Some(Answer::This(without_lives(reply)))
            }
            (Denied::Lengthen, Claim { .. } | Extend { .. }) if lengthens && counter.is_some() => {
                let (holder, ttl) = (holder?, ttl?);
                let short = holder.remaining.is_none_or(|left| left + Duration::from_secs(1) < ttl);
                if !short {
                    return None;
                }
                match operation {
                    Extend { key, owner, carry: Some(carry), .. } => {
                        self.store.execute(&Raise { key: key.clone(), owner: *owner, carry: *carry }, now);
                        Some(Answer::Error(DENIED_ERROR))
                    }
                    _ => Some(Answer::Error(DENIED_ERROR)),
                }
            }

            (Denied::ReadCounter, Claim { fence: Some(_), .. }) => Some(Answer::Error(DENIED_ERROR)),
            (Denied::ReadCounter, Extend { carry: Some(_), .. } | Raise { .. }) if ours => {
                Some(Answer::Error(DENIED_ERROR))
            }
            (Denied::SetCounter, Extend { carry: Some(_), .. } | Raise { .. }) => {
                let risen = counter != self.store.counter(key, now).map(|counter| counter.number);
                (ours && risen).then_some(Answer::Error(DENIED_ERROR))
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

    /// The number of the counter after the operation; nothing if it is at its end.
    fn counter_after(&mut self, operation: &Operation) -> Option<u64> {
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

fn without_lives(reply: Reply) -> Reply {
    let unknown = |holder: Holder| Holder { remaining: None, ..holder };
    match reply {
        Reply::Held(holder) => Reply::Held(unknown(holder)),
        Reply::Queued(mut place) => {
            place.holder = place.holder.map(unknown);
            Reply::Queued(place)
        }
        Reply::Found(mut found) => {
            found.holder = found.holder.map(unknown);
            Reply::Found(found)
        }
        other => other,
    }
}
