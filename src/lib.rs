//! redquorum

#[cfg(feature = "runtime")]
mod builder;
#[cfg(feature = "runtime")]
mod client;
#[cfg(feature = "runtime")]
mod clock;
#[cfg(feature = "runtime")]
mod config;
#[cfg(feature = "runtime")]
mod error;
#[cfg(feature = "runtime")]
mod guard;
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod protocol;
#[cfg(feature = "runtime")]
mod report;
#[cfg(feature = "runtime")]
mod runtime;
#[cfg(feature = "runtime")]
mod shared;
#[cfg(feature = "testing")]
pub mod testing;

#[cfg(feature = "runtime")]
pub use builder::{IntoNode, NodeAddress, RedlockBuilder};
#[cfg(feature = "runtime")]
pub use client::{LockRequest, Redlock};
#[cfg(feature = "runtime")]
pub use error::{AcquireError, BuildError, ExtendError, InvalidRequest, ReleaseError};
#[cfg(feature = "runtime")]
pub use guard::{LockGuard, Lost};
#[cfg(feature = "runtime")]
pub use report::{NodeReport, Outcome, Report};
