//! The names that go to a node: keys, owners, clients, connections.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The name of the thing locked, exactly as it stands on the servers: any bytes, prefix included.
///
/// It is shown with all bytes escaped that cannot be printed, and it derefs to its bytes.
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

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<[u8]> for Key {
    fn eq(&self, bytes: &[u8]) -> bool {
        *self.0 == *bytes
    }
}

impl PartialEq<str> for Key {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text.as_bytes()
    }
}

impl PartialEq<&str> for Key {
    fn eq(&self, text: &&str) -> bool {
        *self.0 == *text.as_bytes()
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Key {
    fn eq(&self, bytes: &[u8; N]) -> bool {
        *self.0 == *bytes
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
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

/// A client as the queues on the nodes know it: the 16 bytes of a uuid, the same on all nodes and for all its
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

/// Names a call to whoever made it, and comes back with its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CallId(pub u64);
