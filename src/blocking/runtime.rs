//! The hidden runtime of a blocking client: one thread, for all that goes on in the background.
//!
//! Knows threads and futures, and nothing of locks. A caller's future is polled on the caller's own thread, which sleeps
//! between two polls; nodes, timers and renewal run on the hidden one. So a blocking call works on any thread. Tokio's own
//! `block_on` would panic on one that is inside a runtime already.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

/// The name of the thread, as debuggers and `top` show it.
const NAME: &str = "redquorum";

/// For how long the tasks of a client that is gone may go on: longer than connections linger for the answers to the last
/// releases.
const LONGEST_END: Duration = Duration::from_secs(1);

/// How often an ending runtime looks whether its tasks are done.
const LOOK_WHETHER_DONE: Duration = Duration::from_millis(1);

/// The runtime of one client, and its thread. Shared by clones and guards: dropping the last of them ends it.
#[derive(Debug)]
pub(super) struct Runtime {
    handle: Handle,
    /// Dropping it ends the runtime.
    running: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
    /// The process that the thread belongs to: a fork copies everything but threads.
    process: u32,
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// What the operating system refused: a thread, or the descriptors to wait for sockets with.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().thread_name(NAME).build()?;
        let handle = runtime.handle().clone();
        let (running, over) = oneshot::channel();
        let thread = thread::Builder::new().name(NAME.to_owned()).spawn(move || serve(runtime, over))?;
        Ok(Self { handle, running: Some(running), thread: Some(thread), process: process::id() })
    }

    /// Waits for a future, on the caller's thread. `None` in a process that was forked off: there is no such thread in it, and
    /// nothing that the future waits for would ever come.
    pub(super) fn wait<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.is_elsewhere() {
            return None;
        }
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(signal.clone());
        let mut cx = Context::from_waker(&waker);
        // On a thread that runs a task of the caller's own runtime, tokio would count these polls against that task's turn, and
        // at its end no future here would be ready ever again.
        let mut future = pin!(tokio::task::unconstrained(future));
        loop {
            let polled = {
                // Timers and tasks that the future makes are the hidden runtime's, also inside another one, whose own
                // timers may stand still for as long as its thread is blocked here.
                let _inside = self.handle.enter();
                future.as_mut().poll(&mut cx)
            };
            match polled {
                Poll::Ready(output) => return Some(output),
                Poll::Pending => signal.wait(),
            }
        }
    }

    fn is_elsewhere(&self) -> bool {
        self.process != process::id()
    }

    /// A runtime as a forked process has it: a fork itself needs unsafe code.
    #[cfg(test)]
    pub(super) fn forked() -> Self {
        let mut runtime = Self::start().expect("a thread");
        runtime.process = runtime.process.wrapping_add(1);
        runtime
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.running = None;
        let Some(thread) = self.thread.take() else { return };
        // A program may end right after this, and its last releases would not have been written.
        if !self.is_elsewhere() && thread.thread().id() != thread::current().id() {
            // It does not panic; and if it did, its end is all that matters here.
            let _ = thread.join();
        }
    }
}

/// Runs the tasks of a client until it is gone, and they have ended.
fn serve(runtime: runtime::Runtime, over: oneshot::Receiver<Infallible>) {
    runtime.block_on(async {
        // Nothing is ever sent: it ends when the sender is dropped.
        let _ = over.await;
        let (tasks, until) = (Handle::current().metrics(), Instant::now() + LONGEST_END);
        while tasks.num_alive_tasks() > 0 && Instant::now() < until {
            tokio::time::sleep(LOOK_WHETHER_DONE).await;
        }
    });
    // A name that is being resolved may take minutes, and nobody waits for it any more.
    runtime.shutdown_background();
}

/// Wakes the thread that waits for a future. No `thread::park`: its token is one per thread, and a caller who uses it for
/// something else would find it taken.
#[derive(Default)]
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn wait(&self) {
        let mut woken = self.lock();
        while !*woken {
            woken = self.changed.wait(woken).unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.lock() = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a future waits for comes from the hidden thread, and wakes the caller.
    #[test]
    fn waits_for_what_the_hidden_thread_does() {
        let runtime = Runtime::start().expect("a thread");
        let name = runtime.wait(async {
            let task = tokio::spawn(async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                thread::current().name().map(str::to_owned)
            });
            task.await.expect("no panic")
        });
        assert_eq!(name.flatten().as_deref(), Some(NAME));
    }

    /// Whoever parks the calling thread for reasons of its own finds its token untouched.
    #[test]
    fn leaves_the_token_of_the_thread_alone() {
        let runtime = Runtime::start().expect("a thread");
        thread::current().unpark();
        runtime.wait(tokio::task::yield_now());
        runtime.wait(async { tokio::time::sleep(Duration::from_millis(5)).await });
        let before = Instant::now();
        thread::park_timeout(Duration::from_secs(10));
        assert!(before.elapsed() < Duration::from_secs(5));
    }

    /// In a forked process nothing is waited for, neither by a call nor by a drop.
    #[test]
    fn a_forked_process_does_not_wait() {
        let runtime = Runtime::forked();
        let before = Instant::now();
        assert_eq!(runtime.wait(std::future::pending::<()>()), None);
        runtime.handle.spawn(std::future::pending::<()>());
        drop(runtime);
        assert!(before.elapsed() < LONGEST_END);
    }

    /// The end of a runtime is waited for, but not for ever.
    #[test]
    fn the_end_is_waited_for_a_second_at_most() {
        let runtime = Runtime::start().expect("a thread");
        runtime.handle.spawn(std::future::pending::<()>());
        let before = Instant::now();
        drop(runtime);
        assert!(before.elapsed() >= LONGEST_END && before.elapsed() < 5 * LONGEST_END);
    }
}
