//! Where a node is, of whichever kind.

use std::sync::Arc;

#[cfg(feature = "testing")]
use super::memory::Server;
use super::redis::address::{self, AddressError};

/// A checked address of a node. Shows no credentials.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    /// A Redis-compatible server.
    Redis(Box<address::Address>),
    /// A server in memory.
    #[cfg(feature = "testing")]
    Memory(Arc<Server>),
}

impl Address {
    /// The server at this URL.
    pub(crate) fn parse(url: &str) -> Result<Self, AddressError> {
        Ok(Self::Redis(Box::new(address::Address::parse(url)?)))
    }

    /// The server that the `redis` crate would connect to.
    pub(crate) fn new(info: ::redis::ConnectionInfo) -> Result<Self, AddressError> {
        Ok(Self::Redis(Box::new(address::Address::new(info)?)))
    }

    /// Where it is, without secrets.
    pub(crate) fn name(&self) -> Arc<str> {
        match self {
            Self::Redis(address) => address.name().clone(),
            #[cfg(feature = "testing")]
            Self::Memory(server) => server.name().clone(),
        }
    }

    /// Whether both lead to one server, as far as their addresses tell.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Redis(mine), Self::Redis(theirs)) => mine.is_same_server(theirs),
            #[cfg(feature = "testing")]
            (Self::Memory(mine), Self::Memory(theirs)) => Arc::ptr_eq(mine, theirs),
            #[cfg(feature = "testing")]
            _ => false,
        }
    }
}
