//! A server in memory as a node: the same operations, with faults on demand.
//!
//! A [`Server`] is shared by all clients of a test; each client's node task has its own "connection" to it, with calls
//! in order, silence, loss and re-connection as over a socket. Faults end up in the same replies as real ones.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::silence::SilenceLimits;
use super::store::{Store, WakeUp};
use super::{Call, Inbox, Wakeups};
use crate::clock::Clock;
use crate::protocol::message::{NotSent, Operation, Reply, Unknown};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::{RestartDelay, Standing};
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::NodeName;

/// One server in memory.
pub(crate) struct Server {
    name: Arc<str>,
    clock: Clock,
    state: Mutex<ServerState>,
    /// Changes whenever a fault is switched.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct ServerState {
    store: Store,
    faults: Faults,
    /// What a hung server will execute once it goes on, whoever still waits for it.
    late: Vec<Operation>,
    /// How many operations were executed.
    executed: u64,
    /// The connections of clients that listen for wake-ups.
    listeners: Vec<Listener>,
    /// Wake-ups do not reach clients that connect from now on.
    deaf: bool,
    /// How old its memory was at a moment: from then on it has forgotten nothing.
    memory: (Instant, Duration),
}

/// One client's connection, listening.
struct Listener {
    wakeups: Arc<Wakeups>,
    node: NodeId,
}

/// What is wrong with a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Executes nothing, keeps connections open; what was sent is executed later.
    pub(crate) hung: bool,
    /// Executes everything, answers nothing.
    pub(crate) loses_replies: bool,
    /// Not there.
    pub(crate) crashed: bool,
    /// The time between a call and its execution.
    pub(crate) delay: Duration,
}

impl Faults {
    fn is_reachable(self) -> bool {
        !(self.hung || self.loses_replies || self.crashed)
    }
}

impl Server {
    pub(crate) fn new(name: impl Into<Arc<str>>, clock: Clock) -> Arc<Self> {
        let state = ServerState { memory: (clock.now(), Duration::ZERO), ..ServerState::default() };
        let changed = watch::Sender::new(0);
        Arc::new(Self { name: name.into(), clock, state: Mutex::new(state), changed })
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Looks at or changes what the server keeps, at its present time.
    pub(crate) fn with_store<T>(&self, look: impl FnOnce(&mut Store, Instant) -> T) -> T {
        look(&mut self.lock().store, self.clock.now())
    }

    /// The server has forgotten nothing for so long.
    pub(crate) fn set_age(&self, age: Duration) {
        self.lock().memory = (self.clock.now(), age);
    }

    /// Forgets everything.
    pub(crate) fn wipe(&self) {
        let mut state = self.lock();
        state.store.wipe();
        state.memory = (self.clock.now(), Duration::ZERO);
    }

    /// What the server's grants are worth.
    fn standing(&self, delay: Option<RestartDelay>) -> Standing {
        let (at, age) = self.lock().memory;
        delay.map_or(Standing::COUNTS, |delay| {
            Standing::CountsFrom(at.after(delay.least().saturating_sub(age)))
        })
    }

    /// How many operations the server has executed.
    pub(crate) fn executed(&self) -> u64 {
        self.lock().executed
    }

    /// Switches faults. A server that goes on after hanging first executes what was sent to it meanwhile.
    pub(crate) fn switch(&self, change: impl FnOnce(&mut Faults)) {
        {
            let mut state = self.lock();
            change(&mut state.faults);
            if !state.faults.hung {
                let now = self.clock.now();
                for operation in std::mem::take(&mut state.late) {
                    state.store.execute(&operation, now);
                    state.executed += 1;
                }
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    fn faults(&self) -> Faults {
        self.lock().faults
    }

    fn execute(&self, operation: &Operation) -> Reply {
        let mut state = self.lock();
        state.executed += 1;
        let reply = state.store.execute(operation, self.clock.now());
        let woken = state.wake_ups();
        drop(state);
        for (listener, wake_up) in woken {
            listener.wakeups.heard(listener.node, wake_up.owner, wake_up.key);
        }
        reply
    }

    /// Nobody can be woken by this server from now on, as with an ACL that forbids publishing.
    pub(crate) fn forbid_wake_ups(&self) {
        let mut state = self.lock();
        state.deaf = true;
        state.store.set_may_publish(false);
    }

    /// One client's connection listens for wake-ups. Returns whether it cannot be woken.
    fn listen(&self, wakeups: &Arc<Wakeups>, node: NodeId) -> bool {
        let mut state = self.lock();
        state.store.subscribe(wakeups.client());
        state.listeners.push(Listener { wakeups: wakeups.clone(), node });
        state.deaf
    }

    fn listen_no_more(&self, wakeups: &Arc<Wakeups>) {
        let mut state = self.lock();
        state.store.unsubscribe(wakeups.client());
        state.listeners.retain(|listener| !Arc::ptr_eq(&listener.wakeups, wakeups));
    }

    fn execute_later(&self, operation: Operation) {
        self.lock().late.push(operation);
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerState {
    /// The wake-ups that were published, each with the connection that hears of it. A server that loses replies loses
    /// these too.
    fn wake_ups(&mut self) -> Vec<(Listener, WakeUp)> {
        let heard = !self.faults.loses_replies;
        let wake_ups = self.store.take_wake_ups().into_iter().filter(|_| heard);
        let listener = |wake_up: &WakeUp| {
            let listener = self.listeners.iter().find(|listener| listener.wakeups.client() == wake_up.client);
            listener.map(|Listener { wakeups, node }| Listener { wakeups: wakeups.clone(), node: *node })
        };
        wake_ups.filter_map(|wake_up| Some((listener(&wake_up)?, wake_up))).collect()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).field("faults", &self.faults()).finish()
    }
}

/// Serves the inbox of one client from the server, until the client is gone.
pub(crate) async fn serve(
    mut inbox: Inbox,
    server: Arc<Server>,
    reply_timeout: Duration,
    delay: Option<RestartDelay>,
    wakeups: Arc<Wakeups>,
    clock: Clock,
    shutdown: CancellationToken,
) {
    let mut changed = server.changed.subscribe();
    loop {
        let reachable = async {
            // The sender is in `server`, so waiting cannot fail.
            let _ = changed.wait_for(|_| server.faults().is_reachable()).await;
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = reachable => {}
            call = inbox.call() => match call {
                Some(stale) => {
                    stale.finish(Reply::NotSent(NotSent::Down("connection lost".into())), clock.now());
                    continue;
                }
                None => return,
            },
        }
        let session = Session {
            inbox: &mut inbox,
            server: &server,
            delay,
            wakeups: &wakeups,
            clock: &clock,
            silence: SilenceLimits::after(reply_timeout),
            waiting: VecDeque::new(),
        };
        if session.run(&mut changed, &shutdown).await {
            return;
        }
    }
}

/// One client's connection to the server.
struct Session<'a> {
    inbox: &'a mut Inbox,
    server: &'a Server,
    delay: Option<RestartDelay>,
    wakeups: &'a Arc<Wakeups>,
    clock: &'a Clock,
    silence: SilenceLimits,
    /// Calls that are not answered yet, in order.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    call: Call,
    since: Instant,
    executed: bool,
}

impl Session<'_> {
    /// Returns whether the client is gone.
    async fn run(mut self, changed: &mut watch::Receiver<u64>, shutdown: &CancellationToken) -> bool {
        let deaf = self.server.listen(self.wakeups, self.inbox.id());
        let name = NodeName::of(self.server.name().as_bytes());
        let connection = self.inbox.open(name, deaf);
        loop {
            self.work();
            if self.server.faults().crashed {
                self.end("connection reset");
                return false;
            }
            let now = self.clock.now();
            let owed = self.waiting.front().map(|first| now.since(first.since));
            if owed.is_some_and(|owed| owed >= self.silence.replace) {
                self.end("no answer, connection given up");
                return false;
            }
            let silent = !self.server.faults().is_reachable();
            self.inbox.set_suspect(silent && owed.is_some_and(|owed| owed >= self.silence.suspect));

            let wake = self.wake(now);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    self.inbox.shut();
                    while let Some(call) = self.inbox.call().await {
                        self.admit(call);
                    }
                    self.work();
                    self.end("client closed");
                    return true;
                }
                call = self.inbox.call() => match call {
                    Some(call) if call.connection == connection => self.admit(call),
                    Some(stale) => {
                        stale.finish(Reply::NotSent(NotSent::Down("connection lost".into())), now);
                    }
                    None => {
                        self.end("client gone");
                        return true;
                    }
                },
                _ = changed.changed() => {}
                () = self.clock.sleep_until(wake), if wake != Instant::FAR_FUTURE => {}
            }
        }
    }

    fn admit(&mut self, call: Call) {
        self.waiting.push_back(Waiting { call, since: self.clock.now(), executed: false });
    }

    /// Executes and answers, in order, what is due.
    fn work(&mut self) {
        let faults = self.server.faults();
        if faults.hung || faults.crashed {
            return;
        }
        let now = self.clock.now();
        // A server here tells the age of its memory with every answer.
        self.inbox.stand(self.server.standing(self.delay));
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.executed) {
            if now < waiting.since.after(faults.delay) {
                break;
            }
            waiting.executed = true;
            let Some(request) = waiting.call.request() else { continue };
            let reply = self.server.execute(&request.operation);
            if !faults.loses_replies {
                self.inbox.note_round_trip(now.since(waiting.since));
                waiting.call.answer(reply, now);
            }
        }
        self.waiting.retain(|waiting| waiting.call.request().is_some());
    }

    /// When something is due: an execution, or a limit of silence.
    fn wake(&self, now: Instant) -> Instant {
        let Some(first) = self.waiting.front() else { return Instant::FAR_FUTURE };
        let delay = self.server.faults().delay;
        let execution =
            self.waiting.iter().find(|waiting| !waiting.executed).map(|next| next.since.after(delay));
        let limits = [first.since.after(self.silence.suspect), first.since.after(self.silence.replace)];
        let moments = execution.into_iter().chain(limits).filter(|moment| *moment > now);
        moments.min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Ends the connection. What a hung server had received is executed when it goes on.
    fn end(&mut self, trouble: &str) {
        self.server.listen_no_more(self.wakeups);
        self.inbox.close(trouble.into());
        let hung = self.server.faults().hung;
        for waiting in self.waiting.drain(..) {
            if let (true, false, Some(request)) = (hung, waiting.executed, waiting.call.request()) {
                self.server.execute_later(request.operation.clone());
            }
            let reply = Reply::Unknown(Unknown::ConnectionLost(trouble.into()));
            waiting.call.finish(reply, self.clock.now());
        }
    }
}
