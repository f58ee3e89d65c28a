//! What goes to a node and what comes back: operations, replies, and the names in them.
//!
//! One request and one reply type serve every kind of node. A reply is decoded by the operation that was *sent*,
//! which is the node's business; here it only has a meaning.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::fencing::{Carry, Fence, FencingToken};
use super::quorum::NodeId;
use super::time::Instant;
use super::validity::Ttl;

/// The name of the thing locked, exactly as it stands on the servers: any bytes, prefix included.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// A key of these bytes. Length and content are checked by the face, not here.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes on the server.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Printable bytes as they are, all others escaped.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// The random value of one attempt: 128 bits from a cryptographic generator, made before the first command that
/// carries it, and never sent in a set again once an undo or release for it was sent (rule 2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner([u8; 16]);

/// An owner on the wire: 32 upper-case hex digits. In lower case they would be what several other clients use, and whoever
/// waits for a lock could not tell whether its holder will hand it over.
pub type OwnerHex = [u8; 32];

impl Owner {
    /// An owner of these random bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The value on the server: 32 upper-case hex digits.
    pub fn to_hex(self) -> OwnerHex {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let mut hex = [0; 32];
        for (byte, pair) in self.0.iter().zip(hex.chunks_exact_mut(2)) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        hex
    }

    /// Reads an owner of this client's form. `None` for every other value, which another client may have set.
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'A'..=b'F' => Some(byte - b'A' + 10),
            _ => None,
        };
        let hex: &OwnerHex = hex.try_into().ok()?;
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? * 16 + digit(pair[1])?;
        }
        Some(Self(bytes))
    }
}

/// An owner is no secret, but its first half is enough to tell owners apart in a log.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..8] {
            write!(f, "{byte:02X}")?;
        }
        f.write_str("…")
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A client as the lines on the nodes know it: the 16 bytes of a uuid, the same on all nodes and for all its
/// connections. It names the channel on which the client is woken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ClientId([u8; 16]);

impl ClientId {
    /// A client of these random bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The client on the server: 32 upper-case hex digits.
    pub fn to_hex(self) -> OwnerHex {
        Owner(self.0).to_hex()
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Owner(self.0), f)
    }
}

/// One connection to one node, in the order in which they were made. A node executes the commands of one connection
/// in the order of their sending; across connections nothing is known. Zero is no connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ConnectionId(pub u64);

/// One lease's part in an extension of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extension {
    /// The key.
    pub key: Key,
    /// The value it must carry.
    pub owner: Owner,
    /// Its life from execution on.
    pub ttl: Ttl,
    /// The fencing token that goes with it, where the lease has one.
    pub carry: Option<Carry>,
}

impl From<Extension> for Operation {
    fn from(Extension { key, owner, ttl, carry }: Extension) -> Self {
        Self::Extend { key, owner, ttl, carry }
    }
}

/// Most leases in one extension of many. A server does nothing else while it executes one: some 0.2 ms for a hundred.
pub const MOST_EXTENSIONS: usize = 100;

/// The leases of one extension of many: from two to [`MOST_EXTENSIONS`]. One alone is an [`Operation::Extend`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extensions(Arc<[Extension]>);

impl Extensions {
    /// These leases; `None` where there are too few, or too many.
    pub fn new(extensions: Vec<Extension>) -> Option<Self> {
        (2..=MOST_EXTENSIONS).contains(&extensions.len()).then(|| Self(extensions.into()))
    }

    /// The leases.
    pub fn as_slice(&self) -> &[Extension] {
        &self.0
    }

    fn first(&self) -> &Extension {
        &self.0[0]
    }
}

/// One operation on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Set the key to this owner if it is absent.
    Set {
        /// The key.
        key: Key,
        /// The value.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
    },
    /// Set the key if it is absent; if it already carries this owner, lengthen its life to the full TTL.
    Claim {
        /// The key.
        key: Key,
        /// The value.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
        /// What happens to the key's fencing counter, in the same step. A grant is then a [`Reply::Fenced`].
        fence: Option<Fence>,
    },
    /// If the key still carries this owner, lengthen its life, never shorten it.
    Extend {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// Its life from execution on.
        ttl: Ttl,
        /// A token that the key's fencing counter is lifted to, in the same step.
        carry: Option<Carry>,
    },
    /// If the key still carries this owner, lift its fencing counter to at least a token.
    Raise {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// The token.
        carry: Carry,
    },
    /// As [`Operation::Extend`], for many leases at once: each is answered for itself, in [`Reply::Each`].
    ExtendAll {
        /// The leases.
        extensions: Extensions,
    },
    /// Delete the key if it carries this owner: on a node that keeps no line for the key.
    Release {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
    },
    /// The release on a node that may keep a line for the key: takes the owner's entry out of the line, and if the key
    /// carries this owner or is absent, gives it to the first live waiter; without one, deletes it.
    HandOver {
        /// The key.
        key: Key,
        /// The value it must carry.
        owner: Owner,
        /// Whose owner it is.
        client: ClientId,
        /// The life of the vote that the next waiter gets, in which it has to claim.
        hand_over: Ttl,
    },
    /// Stand in the line for the key, or look again. With the key free and nobody live before it, the owner gets the
    /// node's vote for the length of a hand-over.
    Queue {
        /// The key.
        key: Key,
        /// The owner that stands in line.
        owner: Owner,
        /// Whose owner it is.
        client: ClientId,
        /// Whether this client cannot be woken and looks by itself.
        polls: bool,
        /// Take over the entry and the vote of this owner, which is never sent again.
        rename_from: Option<Owner>,
        /// The place held before on this same node, should the node have dropped it.
        score: Option<u64>,
        /// The life of the vote.
        hand_over: Ttl,
    },
    /// Who holds the key, and how many wait for it.
    Inspect {
        /// The key.
        key: Key,
    },
}

impl Operation {
    /// Whether this operation can bring a key into being, so that a lost reply leaves a doubt.
    pub fn creates(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Claim { .. } | Self::Queue { .. })
    }

    /// The key it is about: the first of several.
    pub fn key(&self) -> &Key {
        match self {
            Self::Set { key, .. }
            | Self::Claim { key, .. }
            | Self::Extend { key, .. }
            | Self::Raise { key, .. }
            | Self::Release { key, .. }
            | Self::HandOver { key, .. }
            | Self::Queue { key, .. }
            | Self::Inspect { key } => key,
            Self::ExtendAll { extensions } => &extensions.first().key,
        }
    }

    /// The one owner it carries: none for a mere look, and for many leases.
    pub fn owner(&self) -> Option<Owner> {
        match self {
            Self::Set { owner, .. }
            | Self::Claim { owner, .. }
            | Self::Extend { owner, .. }
            | Self::Raise { owner, .. }
            | Self::Release { owner, .. }
            | Self::HandOver { owner, .. }
            | Self::Queue { owner, .. } => Some(*owner),
            Self::Inspect { .. } | Self::ExtendAll { .. } => None,
        }
    }

    /// How many keys it is about, by which a node measures its work.
    pub fn keys(&self) -> usize {
        match self {
            Self::ExtendAll { extensions } => extensions.as_slice().len(),
            _ => 1,
        }
    }

    /// Whether it takes its owner off the node: after it, nothing that creates a key may be sent for that owner.
    pub fn releases(&self) -> bool {
        matches!(self, Self::Release { .. } | Self::HandOver { .. })
    }

    /// Its name in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Set { .. } => "set",
            Self::Claim { .. } => "claim",
            Self::Extend { .. } => "extend",
            Self::ExtendAll { .. } => "extend all",
            Self::Raise { .. } => "raise",
            Self::Release { .. } => "release",
            Self::HandOver { .. } => "hand over",
            Self::Queue { .. } => "queue",
            Self::Inspect { .. } => "inspect",
        }
    }
}

/// How one operation ended on one node: its vote, where votes are counted (rule 5).
///
/// In doubt it is [`Reply::Unknown`], which is never counted as a grant and never taken for "did not happen".
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The node did what was asked: set, extended, raised or deleted.
    Granted,
    /// The same for a fenced claim, after which the key's counter stands at this number.
    Fenced(FencingToken),
    /// The node did what was asked, but its grant does not count in this round.
    Uncounted(Uncounted),
    /// The key's fencing counter is at its end, or what stands in its place is none (fenced claim); nothing was changed.
    CounterSpent,
    /// The key carries somebody else's value; nothing was changed.
    Held(Holder),
    /// There is no such key (extend, release).
    Absent,
    /// The key is absent or somebody else's; the server did not say which (native compare-and-delete).
    NotOurs,
    /// The key was given to the first in line in this owner's place (hand over): as good as deleted.
    HandedOver,
    /// The node's vote for the length of a hand-over (queue). Never counted as a grant: it must be claimed (rule 1).
    Voted,
    /// What became of each lease, in the order of the request (extend all).
    Each(Arc<[Reply]>),
    /// In line (queue).
    Queued(Place),
    /// Too many stand in line already (queue).
    LineFull,
    /// What there is (inspect).
    Found(Found),
    /// The server said no *before* executing.
    Refused(ServerMessage),
    /// Nothing was written to the node.
    NotSent(NotSent),
    /// It was sent, and no usable answer came back.
    Unknown(Unknown),
}

impl Reply {
    /// Whether the node itself said so.
    pub fn is_an_answer(&self) -> bool {
        !matches!(self, Self::NotSent(_) | Self::Unknown(_))
    }

    /// Whether, as the answer to a release, it says that the node has executed it.
    pub fn answers_release(&self) -> bool {
        matches!(self, Self::Granted | Self::HandedOver) || self.denies_ownership()
    }

    /// Whether the node did what was asked.
    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Granted | Self::Fenced(_))
    }

    /// Whether the node certainly does not carry our owner now.
    pub fn denies_ownership(&self) -> bool {
        matches!(self, Self::Held(_) | Self::Absent | Self::NotOurs)
    }
}

/// Why a grant does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uncounted {
    /// The node may have forgotten a lock that is still held, until then at the latest.
    Guarded {
        /// From then on it counts; the end of time where that is not known.
        until: Instant,
    },
    /// The node is a replica.
    Replica,
    /// The node is the same server as this earlier one.
    SameServer(NodeId),
}

/// A place in the line for a key, as its node tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// How many stand before, the dead included that nobody has noticed yet.
    pub before: u32,
    /// The place for good: given back to the same node, it restores the place.
    pub score: u64,
    /// Whether the node had dropped the entry and took it back at its old place, or never had it.
    pub entered: bool,
    /// Who holds the key, and how much longer; nobody where the key is free but somebody live stands before.
    pub holder: Option<Holder>,
}

/// What one node knows of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Who holds it, and how much longer.
    pub holder: Option<Holder>,
    /// How many wait in line.
    pub waiting: u32,
}

/// What a server or the network said, fit to be shown: one line of bounded length, without secrets. It may repeat the
/// key and the owner, which servers quote in some errors.
pub type ServerMessage = Arc<str>;

/// Who holds a key on one node, as far as the reply told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The value found.
    pub value: HolderValue,
    /// What is left of the key's life, where the operation told. `None` also for a key that never expires.
    pub remaining: Option<Duration>,
}

impl Holder {
    /// Somebody, with nothing else known.
    pub const UNNAMED: Holder = Holder { value: HolderValue::Unnamed, remaining: None };
}

/// The value found under a held key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HolderValue {
    /// An owner of this client's form.
    Owner(Owner),
    /// Another client's value, cut to 64 bytes.
    Foreign(Arc<[u8]>),
    /// The key is of another type: an application's data, not a lock.
    NotALock,
    /// The server did not say.
    Unnamed,
}

impl HolderValue {
    /// Reads the value found under a key.
    pub fn read(value: &[u8]) -> Self {
        const KEPT: usize = 64;
        match Owner::from_hex(value) {
            Some(owner) => Self::Owner(owner),
            None => Self::Foreign(value[..value.len().min(KEPT)].into()),
        }
    }
}

impl fmt::Display for HolderValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(owner) => fmt::Display::fmt(owner, f),
            Self::Foreign(value) => write!(f, "\"{}\"", value.escape_ascii()),
            Self::NotALock => f.write_str("data that is no lock"),
            Self::Unnamed => f.write_str("another client"),
        }
    }
}

/// Why nothing was written to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NotSent {
    /// There is no connection; the last trouble with it, if any.
    Down(ServerMessage),
    /// The node has been silent for some time; one probe watches it.
    Suspect,
    /// Too much work is waiting for the node already.
    Backlog,
    /// The client is closed.
    Closed,
    /// There was nothing to release: no set of this lease ever went there.
    NeverWritten,
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(why) => write!(f, "not connected ({why})"),
            Self::Suspect => f.write_str("silent for some time, not asked"),
            Self::Backlog => f.write_str("too many requests waiting, not asked"),
            Self::Closed => f.write_str("client closed, not asked"),
            Self::NeverWritten => f.write_str("never asked for this lock, nothing to release"),
        }
    }
}

/// Why the outcome of something sent is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unknown {
    /// No answer within the reply timeout.
    Timeout(Duration),
    /// The connection ended before the answer; the trouble with it.
    ConnectionLost(ServerMessage),
    /// The server answered with an error that does not prove that nothing was executed.
    Error(ServerMessage),
    /// The server answered with something that is no answer to this operation.
    Garbled(ServerMessage),
    /// The client was closed or dropped before the answer.
    Closed,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(after) => write!(f, "no answer within {after:.1?}"),
            Self::ConnectionLost(why) => write!(f, "connection lost before the answer ({why})"),
            Self::Error(message) => write!(f, "error, perhaps after executing: {message}"),
            Self::Garbled(what) => write!(f, "unusable answer: {what}"),
            Self::Closed => f.write_str("client closed before the answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 3: the owner on the wire is 32 upper-case hex digits, and only that form is read back as an owner.
    #[test]
    fn owner_survives_the_wire() {
        let owner = Owner::from_bytes([0x00, 0xff, 0x1a, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xf0]);
        let hex = owner.to_hex();

        assert_eq!(&hex, b"00FF1A030405060708090A0B0C0D0EF0");
        assert_eq!(owner.to_string(), "00FF1A0304050607…");
        assert_eq!(Owner::from_hex(&hex), Some(owner));
        for other in
            [&b"00ff1a030405060708090a0b0c0d0ef0"[..], b"", b"00FF", b"00FF1A030405060708090A0B0C0D0EF00"]
        {
            assert_eq!(Owner::from_hex(other), None);
        }
    }

    #[test]
    fn foreign_values_are_cut_and_escaped() {
        let HolderValue::Foreign(kept) = HolderValue::read(&[b'x'; 500]) else { panic!("foreign") };
        assert_eq!(kept.len(), 64);
        assert_eq!(HolderValue::read(b"a\x00\n").to_string(), r#""a\x00\n""#);
    }

    fn ttl() -> Ttl {
        Ttl::unchecked(Duration::from_secs(10))
    }

    /// Names and bytes come out as they went in.
    #[test]
    fn names_are_kept() {
        assert_eq!(Key::new(*b"a\xffb").as_bytes(), b"a\xffb");
        assert_eq!(&ClientId::from_bytes([0xab; 16]).to_hex(), b"ABABABABABABABABABABABABABABABAB");
        let one =
            Extension { key: Key::new(*b"k"), owner: Owner::from_bytes([1; 16]), ttl: ttl(), carry: None };
        for (count, fits) in [(1, false), (2, true), (MOST_EXTENSIONS, true), (MOST_EXTENSIONS + 1, false)] {
            let extensions = Extensions::new(vec![one.clone(); count]);
            assert_eq!(extensions.map(|extensions| extensions.as_slice().len()), fits.then_some(count));
        }
    }

    /// What each operation is about, and which of them can bring a key into being or take its owner off the node.
    #[test]
    fn operations_say_what_they_do() {
        let (key, owner, client, hand_over) =
            (Key::new(*b"k"), Owner::from_bytes([1; 16]), ClientId::default(), ttl());
        let carry = Carry {
            token: FencingToken::new(7),
            retention: crate::protocol::fencing::Retention::new(Duration::MAX),
        };
        let extension = Extension { key: key.clone(), owner, ttl: ttl(), carry: None };
        let (k, extensions) = (|| key.clone(), Extensions::new(vec![extension; 3]).unwrap());
        let cases = [
            (Operation::Set { key: k(), owner, ttl: ttl() }, "set", true, false),
            (Operation::Claim { key: k(), owner, ttl: ttl(), fence: None }, "claim", true, false),
            (Operation::Extend { key: k(), owner, ttl: ttl(), carry: None }, "extend", false, false),
            (Operation::Raise { key: k(), owner, carry }, "raise", false, false),
            (Operation::Release { key: k(), owner }, "release", false, true),
            (Operation::HandOver { key: k(), owner, client, hand_over }, "hand over", false, true),
            (
                Operation::Queue {
                    key: k(),
                    owner,
                    client,
                    polls: false,
                    rename_from: None,
                    score: None,
                    hand_over,
                },
                "queue",
                true,
                false,
            ),
            (Operation::Inspect { key: k() }, "inspect", false, false),
            (Operation::ExtendAll { extensions }, "extend all", false, false),
        ];
        for (operation, name, creates, releases) in cases {
            assert_eq!(
                (operation.name(), operation.creates(), operation.releases()),
                (name, creates, releases)
            );
            assert_eq!(operation.key(), &key, "{name}");
            let (keys, owned) = if name == "extend all" { (3, false) } else { (1, name != "inspect") };
            assert_eq!((operation.keys(), operation.owner()), (keys, owned.then_some(owner)), "{name}");
        }
    }

    /// What each reply counts for: as an answer, as that of a release, as a grant, and against our owner.
    #[test]
    fn replies_say_what_they_count_for() {
        let place = Place { before: 0, score: 1, entered: true, holder: None };
        for (reply, answer, released, granted, denied) in [
            (Reply::Granted, true, true, true, false),
            (Reply::Fenced(FencingToken::new(1)), true, false, true, false),
            (Reply::Uncounted(Uncounted::Replica), true, false, false, false),
            (Reply::CounterSpent, true, false, false, false),
            (Reply::Held(Holder::UNNAMED), true, true, false, true),
            (Reply::Absent, true, true, false, true),
            (Reply::NotOurs, true, true, false, true),
            (Reply::HandedOver, true, true, false, false),
            (Reply::Voted, true, false, false, false),
            (Reply::Queued(place), true, false, false, false),
            (Reply::LineFull, true, false, false, false),
            (Reply::Refused("no".into()), true, false, false, false),
            (Reply::NotSent(NotSent::Closed), false, false, false, false),
            (Reply::Unknown(Unknown::Closed), false, false, false, false),
        ] {
            let counts =
                (reply.is_an_answer(), reply.answers_release(), reply.is_granted(), reply.denies_ownership());
            assert_eq!(counts, (answer, released, granted, denied), "{reply:?}");
        }
    }
}
