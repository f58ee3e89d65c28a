//! A held lock on its way to another process.
//!
//! Knows what of a lock has to travel, and which of it means something at the other end: a deadline only to a process on
//! the same clock, a duration to nobody.

use std::fmt;
use std::time::Duration;

use crate::config::{Config, InvalidRequest};
use crate::protocol::fencing::{END, FencingToken};
use crate::protocol::lease::{Lease, Resumed};
use crate::protocol::message::{Key, Owner};
use crate::protocol::time::Instant;
use crate::protocol::validity::Ttl;
use crate::runtime::shared::Shared;

/// A held lock taken out of its guard ([`LockGuard::into_parts`](crate::LockGuard::into_parts)), for another process to go on
/// with ([`Redlock::resume`](crate::Redlock::resume)).
///
/// Plain data: dropping it releases nothing, the keys' TTL does. Whoever has the parts has the lock, so hand them to one
/// process only, and resume them once; that is the one thing that cannot be checked here.
///
/// Nothing extends the lock while it is on its way: [`LockParts::remaining`] tells how long it was still good for when it
/// was taken apart. That is for people. A duration says nothing to a process that does not know when it began, and the clocks
/// of two machines have no common origin. So it is not trusted:
///
/// - **On the same machine**, since the same start of it, the end of validity is known exactly, suspend included. Parts that
///   come later are refused.
/// - **Elsewhere** the nodes themselves have to tell: Q of them must still carry the owner. That is proof enough where
///   nothing that sets it was on its way to any node when the parts were made, because then a node that carries it has
///   done so ever since. Parts made while a node owed an answer are therefore refused elsewhere.
///
/// With the feature `serde` it can be serialised. It holds no secret, but whoever has it can release the lock.
///
/// ```no_run
/// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration;
/// let parts = redlock.acquire("invoice:4711").await?.into_parts().await?;
/// println!("{} was held for another {:?}", parts.key(), parts.remaining());
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the parts leaves the lock to its TTL"]
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LockParts {
    #[cfg_attr(feature = "serde", serde(with = "bytes"))]
    key: Key,
    /// With which the key begins: it names the queue and the counter as well.
    prefix: Vec<u8>,
    /// 32 upper-case hex digits.
    owner: String,
    remaining: Duration,
    /// The longest life that was ever given to the key.
    longest: Duration,
    /// Every set was answered.
    settled: bool,
    /// The fencing token, where the lock has one.
    #[cfg_attr(feature = "serde", serde(default))]
    token: Option<u64>,
    until: Option<Until>,
}

/// A key as its bytes.
#[cfg(feature = "serde")]
mod bytes {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::protocol::message::Key;

    pub(super) fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(key.as_bytes())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        Vec::deserialize(deserializer).map(|bytes: Vec<u8>| Key::new(bytes))
    }
}

/// The end of validity on one machine's clock.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Until {
    /// Which machine, and which start of it.
    clock: String,
    nanos: u64,
}

impl LockParts {
    /// The parts of a held lease; `None` where it is not valid any more.
    pub(crate) fn of(lease: &Lease, shared: &Shared) -> Option<Self> {
        let now = shared.clock.now();
        let validity = lease.validity().filter(|validity| validity.holds_at(now))?;
        let until = shared.clock.to_machine(validity.until());
        let until = |clock| Until { clock, nanos: until.as_nanos() };
        Some(Self {
            key: lease.key().clone(),
            prefix: shared.config.prefix.clone(),
            owner: String::from_utf8_lossy(&lease.owner().to_hex()).into_owned(),
            remaining: validity.remaining(now),
            longest: lease.longest().duration(),
            settled: lease.is_answered(),
            token: lease.fencing_token().map(FencingToken::as_u64),
            until: shared.clock.identity().map(until),
        })
    }

    /// The key on the servers, prefix included.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// println!("{}", parts.key());
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How long the lock was still valid for when it was taken apart.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// println!("pack them off: {:?} left", parts.remaining());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// The fencing token of a fenced lock, which goes along.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// let guard = redlock.resume(parts.clone()).await?;
    /// assert_eq!(guard.fencing_token(), parts.fencing_token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.token.map(FencingToken::new)
    }

    /// Whether a process on another machine can resume it.
    ///
    /// ```no_run
    /// # async fn example(redlock: redquorum::Redlock) -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # let parts = redlock.acquire("report").await?.into_parts().await?;
    /// if !parts.is_portable() {
    ///     println!("a node still owes an answer: resume them on this machine");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_portable(&self) -> bool {
        self.settled
    }

    /// What they say of the lease, on this clock: it has to be confirmed before its old end, or at any time if the nodes
    /// themselves can tell. `None` if there is no knowing.
    pub(crate) fn resumed(&self, shared: &Shared) -> Option<Resumed> {
        let here = shared.clock.identity();
        let before = match &self.until {
            Some(until) if here.as_ref() == Some(&until.clock) => {
                shared.clock.of_machine(Instant::from_nanos(until.nanos))
            }
            _ if self.settled => Instant::FAR_FUTURE,
            _ => return None,
        };
        Some(Resumed { longest: self.longest(), before, owed: !self.settled })
    }

    /// The longest life that was ever given to the key.
    pub(crate) fn longest(&self) -> Ttl {
        Ttl::unchecked(self.longest)
    }

    /// What `config` makes of them.
    pub(crate) fn read(&self, config: &Config) -> Result<(Key, Owner), InvalidRequest> {
        let name = self.key.strip_prefix(self.prefix.as_slice()).ok_or(InvalidRequest::MalformedParts)?;
        if self.prefix != config.prefix {
            let [theirs, ours] =
                [&self.prefix, &config.prefix].map(|prefix| prefix.escape_ascii().to_string());
            return Err(InvalidRequest::OtherPrefix { theirs, ours });
        }
        let key = config.key(name)?;
        let owner = Owner::from_hex(self.owner.as_bytes()).ok_or(InvalidRequest::MalformedParts)?;
        if self.token.is_some_and(|token| token >= END) {
            return Err(InvalidRequest::MalformedParts);
        }
        Ok((key, owner))
    }
}

impl fmt::Debug for LockParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockParts")
            .field("key", &self.key)
            .field("remaining", &self.remaining)
            .field("portable", &self.settled)
            .finish_non_exhaustive()
    }
}
