//! What is measured: something that acquires a lock and releases it.

use std::future::Future;

/// A client of some library, as a service would use it. Cloning it is cheap, and clones share connections.
pub trait Locker: Clone + Send + Sync + 'static {
    /// A held lock.
    type Held: Send + 'static;

    /// Whether dropping the future of [`Locker::acquire`] stops the attempt. It does not where a thread makes it.
    const DROPPABLE: bool = true;

    /// Acquires the lock, or finds that it cannot.
    fn acquire(&self, key: &str) -> impl Future<Output = Option<Self::Held>> + Send;

    /// Releases it, as far as the library's own release waits for that.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}
