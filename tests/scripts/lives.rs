//! What must come of an operation if it cannot read or lengthen the life of its key, or if a life ends while its script runs:
//! rules on top of [`Store`](redquorum::node::store::Store).
//!
//! A server that compares lives lengthens a key by `PEXPIRE … GT`, and one without an end by `PEXPIRE … NX`. Before Redis 7.0
//! both are errors. A script confirms a life only if it took.

use std::time::Duration;

use redquorum::protocol::fencing::Fence;
use redquorum::protocol::message::{Holder, HolderValue, Operation, Reply};
use redquorum::protocol::validity::Ttl;

use crate::history::{Answer, Drawing, Staging, helper, text};
use crate::rights::DENIED_ERROR;

/// What is unusual about a server while one script runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nature {
    /// The user may not read the life of the key.
    blind: bool,
    /// The user may not give the key a life.
    mute: bool,
    /// `PEXPIRE` takes no condition, as before Redis 7.0.
    old: bool,
    ends: Option<Ending>,
}

/// The user may not read the life, and nothing else.
const BLIND: Nature = Nature { blind: true, mute: false, old: false, ends: None };

/// A life that ends right before a command asks for it: the first such command in a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    KeyBeforeGet,
    KeyBeforePttl,
    KeyBeforePexpire,
    CounterBeforeGet,
    /// The command is `PEXPIRE` in a claim, and otherwise `PEXPIREAT`.
    CounterBeforeExpire,
    QueueBeforeExpire,
}

const ENDINGS: [Option<Ending>; 7] = [
    None,
    Some(Ending::KeyBeforeGet),
    Some(Ending::KeyBeforePttl),
    Some(Ending::KeyBeforePexpire),
    Some(Ending::CounterBeforeGet),
    Some(Ending::CounterBeforeExpire),
    Some(Ending::QueueBeforeExpire),
];

/// What a script says if the user may not read the life, and the server did not compare it.
const BLIND_ERROR: &str = "ERR script: PTTL is forbidden, and PEXPIRE with a condition failed: ";
const BLIND_AND_MUTE_ERROR: &str =
    "ERR script: PTTL is forbidden, and PEXPIRE with a condition failed: NOPERM denied";

/// What comes of the attempt to lengthen a life.
enum Outcome {
    Lengthened,
    Gone,
    Error(&'static str),
}

/// All natures, but for the usual one.
pub fn natures() -> Vec<Nature> {
    const BOTH: [bool; 2] = [false, true];
    let ways = BOTH.into_iter().flat_map(|blind| BOTH.map(|mute| (blind, mute)));
    let ways = ways.flat_map(|(blind, mute)| BOTH.map(|old| (blind, mute, old)));
    let all =
        ways.flat_map(|(blind, mute, old)| ENDINGS.map(|ends| Nature { blind, mute, old, ends })).skip(1);
    all.collect()
}

impl Nature {
    pub fn staging(self, operation: &Operation) -> Staging {
        let key = operation.key();
        let denied = [(self.blind, "PTTL"), (self.mute, "PEXPIRE")];
        let denied = denied.into_iter().filter_map(|(is_denied, command)| is_denied.then_some(command));
        let is_claim = matches!(operation, Operation::Claim { .. });
        let own = || key.as_bytes().to_vec();
        let (ends_before, ending) = match self.ends {
            None => ("", Vec::new()),
            Some(Ending::KeyBeforeGet) => ("GET", own()),
            Some(Ending::KeyBeforePttl) => ("PTTL", own()),
            Some(Ending::KeyBeforePexpire) => ("PEXPIRE", own()),
            Some(Ending::CounterBeforeGet) => ("GET", helper(key, "fence")),
            Some(Ending::CounterBeforeExpire) if is_claim => ("PEXPIRE", helper(key, "fence")),
            Some(Ending::CounterBeforeExpire) => ("PEXPIREAT", helper(key, "fence")),
            Some(Ending::QueueBeforeExpire) => ("EXPIRE", helper(key, "line")),
        };
        Staging { denied: denied.collect(), denied_key: own(), ends_before, ending, old: self.old }
    }

    /// Whether it makes a difference to few operations only.
    pub fn is_rare(self) -> bool {
        matches!(self.ends, Some(Ending::CounterBeforeExpire | Ending::QueueBeforeExpire))
    }

    /// Whether nothing else is unusual than the end of a life, if that.
    fn only_ends(self) -> bool {
        !(self.blind || self.mute || self.old)
    }
}

impl Drawing {
    /// What comes of an operation on a server of this nature. Nothing if the nature makes no difference to the operation, or if
    /// no rule is about it.
    pub fn under(&mut self, nature: Nature, operation: &Operation) -> Option<Answer> {
        if let Operation::ExtendAll { extensions } = operation {
            let (first, rest) = extensions.as_slice().split_first()?;
            let first = self.under(nature, &first.clone().into())?;
            let rest = rest.iter().cloned().map(|each| self.with_all_rights(&each.into()));
            return Some(Answer::Each(std::iter::once(first).chain(rest).collect()));
        }
        let key = operation.key();
        let counts = match operation {
            Operation::Claim { fence, .. } => fence.is_some(),
            Operation::Extend { carry, .. } => carry.is_some(),
            Operation::Raise { .. } => true,
            _ => false,
        };
        let (is_claim, spoiled) =
            (matches!(operation, Operation::Claim { .. }), self.spoiled.contains_key(key));
        let exhausted = counts && (spoiled || self.counter_after(operation).is_none());

        let lengthens = self.lengthens(operation);
        match nature.ends {
            Some(Ending::KeyBeforeGet) => {
                // Such a claim does not look at the key.
                if !nature.only_ends() || exhausted && is_claim || !self.store.remove(key) {
                    return None;
                }
                Some(self.with_all_rights(operation))
            }
            Some(Ending::CounterBeforeGet) => {
                if !nature.only_ends() || spoiled || !counts || !(is_claim || self.is_ours(operation)) {
                    return None;
                }
                self.store.remove_counter(key);
                Some(self.with_all_rights(operation))
            }
            // The same counter is set again.
            Some(Ending::CounterBeforeExpire) => {
                let lengthens = match operation {
                    Operation::Claim { fence: Some(Fence::Carry(_)), .. } => {
                        self.is_ours(operation) || self.store.holder(key, self.now()).is_none()
                    }
                    Operation::Extend { .. } | Operation::Raise { .. } => counts && self.is_ours(operation),
                    _ => false,
                };
                if !nature.only_ends() || spoiled || !lengthens || !self.keeps_counter(operation) {
                    return None;
                }
                Some(self.with_all_rights(operation))
            }
            Some(Ending::QueueBeforeExpire) => nature.only_ends().then(|| self.enter_again(operation))?,
            Some(Ending::KeyBeforePttl | Ending::KeyBeforePexpire) | None if lengthens && !exhausted => {
                self.lengthen(nature, operation)
            }
            // The life of another's key is not told.
            None if nature == BLIND && self.tells_life(operation) => match self.with_all_rights(operation) {
                Answer::This(reply) => Some(Answer::This(without_lives(reply))),
                other => Some(other),
            },
            _ => None,
        }
    }

    /// Whether the operation tells how long its key lives on, if no counter is in its way.
    fn tells_life(&mut self, operation: &Operation) -> bool {
        match operation {
            Operation::Inspect { .. } => true,
            Operation::Claim { .. } | Operation::Queue { .. } => {
                self.store.holder(operation.key(), self.now()).is_some() && !self.is_ours(operation)
            }
            _ => false,
        }
    }

    /// Whether the operation lengthens the life of its key, if no counter is in its way.
    fn lengthens(&mut self, operation: &Operation) -> bool {
        let takes_over = match operation {
            Operation::Claim { .. } | Operation::Extend { .. } => false,
            // An owner that takes over its own vote has it set anew.
            Operation::Queue { owner, rename_from, .. } => *rename_from == Some(*owner),
            _ => return false,
        };
        !takes_over && self.is_ours(operation)
    }

    /// What comes of an operation that lengthens the life of its key.
    fn lengthen(&mut self, nature: Nature, operation: &Operation) -> Option<Answer> {
        let (now, key) = (self.now(), operation.key());
        let owner = operation.owner()?;
        let Holder { value, remaining } = self.store.holder(key, now)?;
        let is_short = remaining.is_none_or(|left| left < asked(operation));
        // Then real time decides.
        let is_close = remaining.is_some_and(|left| left.abs_diff(asked(operation)) < Duration::from_secs(1));
        let Nature { blind, mute, old, ends } = nature;
        if is_close && !blind && (mute || ends == Some(Ending::KeyBeforePexpire)) {
            return None;
        }
        let ended = match ends {
            Some(Ending::KeyBeforePttl) => true,
            Some(Ending::KeyBeforePexpire) => blind || is_short,
            _ => false,
        };
        let outcome = if !(blind || is_short || ended) {
            Outcome::Lengthened
        } else if mute {
            Outcome::Error(if blind { BLIND_AND_MUTE_ERROR } else { DENIED_ERROR })
        } else if blind && (old || !self.compares) {
            Outcome::Error(BLIND_ERROR)
        } else if ended {
            Outcome::Gone
        } else {
            Outcome::Lengthened
        };

        // An extension lifts the counter first.
        let raise = match operation {
            Operation::Extend { carry: Some(carry), .. } => {
                Some(Operation::Raise { key: key.clone(), owner, carry: *carry })
            }
            _ => None,
        };
        let is_queue = matches!(operation, Operation::Queue { .. });
        match outcome {
            Outcome::Lengthened => Some(Answer::This(self.store.execute(operation, now))),
            Outcome::Gone => {
                // A hand-over that is on the books counts as one to a client that hangs only if the key was free at first.
                if is_queue && self.store.queue_record(key, now).last.is_some() {
                    return None;
                }
                raise.map(|raise| self.store.execute(&raise, now));
                self.store.remove(key);
                let reply = self.store.execute(operation, now);
                Some(Answer::This(if blind { without_lives(reply) } else { reply }))
            }
            Outcome::Error(says) => {
                raise.map(|raise| self.store.execute(&raise, now));
                // It has the vote all the same, for as long as it had it.
                let vote = is_queue.then(|| self.store.execute(operation, now));
                self.store.put_foreign(key, &text(&value)?, remaining, now);
                if ended {
                    self.store.remove(key);
                }
                Some(vote.map_or(Answer::Error(says), Answer::This))
            }
        }
    }

    /// What comes of a look at a queue that ends meanwhile: this owner stands in it alone.
    fn enter_again(&mut self, operation: &Operation) -> Option<Answer> {
        let Operation::Queue { key, owner, client, rename_from, .. } = operation else { return None };
        let now = self.now();
        let holder = self.store.holder(key, now)?.value;
        let entries = self.store.queue_record(key, now).entries;
        // Those get the vote; and a holder that stands in the queue as well would release the key by leaving it.
        let mut others = [*owner].into_iter().chain(*rename_from).chain(entries.iter().map(|entry| entry.0));
        if others.any(|owner| HolderValue::Owner(owner) == holder) {
            return None;
        }
        let mut reply = self.store.execute(operation, now);
        if let Reply::Queued(place) = &mut reply {
            (place.before, place.entered) = (0, true);
            for (other, its_client, _) in self.store.queue_record(key, now).entries {
                if (other, its_client) != (*owner, *client) {
                    let hand_over = Ttl::unchecked(Duration::ZERO);
                    let leave =
                        Operation::HandOver { key: key.clone(), owner: other, client: its_client, hand_over };
                    self.store.execute(&leave, now);
                }
            }
        }
        Some(Answer::This(reply))
    }
}

/// The life that an operation asks for.
fn asked(operation: &Operation) -> Duration {
    match operation {
        Operation::Claim { ttl, .. } | Operation::Extend { ttl, .. } => ttl.duration(),
        Operation::Queue { hand_over, .. } => hand_over.duration(),
        _ => Duration::ZERO,
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
