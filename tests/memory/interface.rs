//! The public interface as a whole: what may go to another thread, how large errors are, and what the documentation of each
//! call has to say.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::time::Duration;

use redquorum::*;

/// Law: everything public may be kept anywhere and sent anywhere.
#[test]
fn all_types_go_from_thread_to_thread() {
    fn check<T: Send + Sync + Unpin + Debug + 'static>() {}
    check::<Redlock>();
    check::<RedlockBuilder>();
    check::<NodeAddress>();
    check::<LockRequest>();
    check::<ResumeRequest>();
    check::<LockGuard>();
    check::<LockParts>();
    check::<FencingToken>();
    check::<Report>();
    check::<NodeReport>();
    check::<Outcome>();
    check::<Inspection>();
    check::<NodeInspection>();
    check::<NodeState>();
    check::<NodeStatus>();
    check::<Health>();
    check::<NodeVote>();
    check::<Role>();
    check::<Persistence>();
    check::<Lost>();
    check::<testing::MemoryCluster>();
    check::<testing::MemoryNode>();
    check::<testing::ManualClock>();
    check::<blocking::Redlock>();
    check::<blocking::LockRequest>();
    check::<blocking::ResumeRequest>();
    check::<blocking::LockGuard>();
}

/// Law: every future may be spawned, and what it needs for that is promised, not just so by chance.
#[test]
fn all_futures_may_be_spawned() {
    fn send<F: Future + Send>(_: impl FnOnce(Redlock) -> F) {}
    fn owned<F: IntoFuture<IntoFuture: Send + 'static>>(_: impl FnOnce(Redlock) -> F) {}
    fn of_guard<F: Future + Send>(_: impl FnOnce(LockGuard) -> F) {}
    fn watch<F: Future<Output = Lost> + Send + Sync + 'static>(_: impl FnOnce(&LockGuard) -> F) {}

    owned(|redlock| redlock.lock("k"));
    owned(|redlock| {
        let parts: LockParts = unreachable();
        redlock.resume(parts)
    });
    send(|redlock| async move { redlock.acquire("k").await });
    send(|redlock| async move { redlock.try_acquire("k").await });
    send(|redlock| async move { redlock.inspect("k").await });
    send(|redlock| async move { redlock.close(Duration::ZERO).await });
    send(|redlock| async move { redlock.with_lock("k", async |_| ()).await });
    send(|redlock| redlock.lock("k").with_boxed(|_| Box::pin(async {})));
    send(|_| Redlock::builder().build());
    of_guard(|guard| guard.release());
    of_guard(|guard| guard.into_parts());
    of_guard(|mut guard| async move { guard.extend(Duration::ZERO).await });
    watch(|guard| guard.lost());

    fn unreachable<T>() -> T {
        unreachable!("nothing here is run")
    }
}

/// Law: every error goes through channels, boxes and threads, can be kept, and is small enough to be returned by value.
#[test]
fn errors_travel_and_are_small() {
    fn check<T: Error + Send + Sync + Unpin + Clone + Display + 'static>() -> usize {
        size_of::<T>()
    }
    let sizes = [
        ("BuildError", check::<BuildError>()),
        ("InvalidRequest", check::<InvalidRequest>()),
        ("AcquireError", check::<AcquireError>()),
        ("ExtendError", check::<ExtendError>()),
        ("ReleaseError", check::<ReleaseError>()),
        ("Lost", check::<Lost>()),
        ("ResumeError", check::<ResumeError>()),
        ("WithLockError", check::<WithLockError>()),
    ];
    for (name, size) in sizes {
        assert!(size <= 128, "{name}: {size} bytes");
    }
}

/// The files of the face: each Rust file of its folders.
fn face() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in ["client", "client/error", "blocking"] {
        let path = format!("{}/../src/{folder}", env!("CARGO_MANIFEST_DIR"));
        for entry in std::fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    files
}

/// Each public function of the face: its file, its signature up to the body, and its documentation.
fn functions() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (file, text) in face() {
        let (mut docs, mut signature) = (String::new(), None::<String>);
        for line in text.lines().map(str::trim) {
            if let Some(open) = &mut signature {
                open.push(' ');
                open.push_str(line);
            } else if let Some(line) = line.strip_prefix("///") {
                docs.push_str(line.trim_start());
                docs.push('\n');
                continue;
            } else if line.starts_with("pub fn ") || line.starts_with("pub async fn ") {
                signature = Some(line.to_owned());
            } else if !line.starts_with("#[") {
                docs.clear();
            }
            if let Some(complete) = signature.take_if(|open| open.ends_with('{')) {
                found.push((file.clone(), complete, std::mem::take(&mut docs)));
            }
        }
    }
    found
}

/// Law: each async function says what dropping its future does, each that can fail how, and each that may wait for a lock
/// in what order it is served.
#[test]
fn each_call_documents_what_it_may_do() {
    let functions = functions();
    let mut missing = Vec::new();
    for (file, signature, docs) in &functions {
        let is_async = signature.starts_with("pub async fn");
        let waits = signature.contains("AcquireError>") || signature.contains("WithLockError<");
        let sections = [
            ("# Errors", signature.contains("-> Result<")),
            ("# Cancellation safety", is_async),
            ("# Fairness", waits),
        ];
        for (section, needed) in sections {
            if needed && !docs.contains(section) {
                missing.push(format!("{file}: {signature} has no section {section}"));
            }
        }
        if docs.is_empty() {
            missing.push(format!("{file}: {signature} has no documentation"));
        }
    }
    assert!(functions.len() > 100, "only {} functions found", functions.len());
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
