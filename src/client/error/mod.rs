//! What can go wrong, told so that the caller knows what to do next.
//!
//! Each error of a round carries the [`Report`](crate::Report): what each node answered, and when. No error shows a password.

mod acquire;
mod build;
mod extend;
mod release;
mod resume;
mod with_lock;

pub use acquire::AcquireError;
pub use build::BuildError;
pub use extend::ExtendError;
pub use release::ReleaseError;
pub use resume::ResumeError;
pub use with_lock::WithLockError;

pub use crate::config::InvalidRequest;

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors go through channels, boxes and threads.
    #[test]
    fn errors_are_send_sync_and_small() {
        fn check<T: std::error::Error + Send + Sync + Clone + 'static>() {}
        check::<BuildError>();
        check::<AcquireError>();
        check::<ExtendError>();
        check::<ReleaseError>();
        check::<ResumeError>();
        check::<WithLockError>();
        check::<InvalidRequest>();
        assert!(size_of::<AcquireError>() <= 128, "{}", size_of::<AcquireError>());
    }
}
