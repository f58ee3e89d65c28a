//! Admission to one node: who gets in, on which connection, and what the caller is told at once.
//!
//! The admission is shared by all callers and knows three things: whether there is a connection (and which), whether the
//! node is suspect, and how many calls are inside. It decides "not sent" without waiting for anything. The inbox is the
//! other side of the admission, held by the node's task alone.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::meter;
use crate::protocol::answer::Answer;
use crate::protocol::in_doubt::Debt;
use crate::protocol::message::{CallId, ConnectionId, NotSent, Operation, Reply, ServerMessage, Unknown};
use crate::protocol::quorum::NodeId;
use crate::protocol::restart::Standing;
use crate::protocol::time::Instant;
use crate::protocol::wait_queue::rank::NodeName;
use crate::registry::{ContendedKeys, Debts, Mailbox, NodeTable, Notice};

/// Bounds of one node's admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most calls inside, queued and in flight together, that may create a key; twice as many of all kinds. Those about
    /// many keys count as many.
    pub(crate) backlog: usize,
}

/// One operation on its way to a node.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// What to do.
    pub(crate) operation: Operation,
    /// What is owed if the answer does not settle it.
    pub(crate) debt: Option<Debt>,
    /// Who wants the answer.
    pub(crate) mailbox: Arc<Mailbox>,
    /// The caller's own name for the call.
    pub(crate) call: CallId,
}

/// How a node stands, for whoever waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The first attempt to connect is under way.
    Connecting,
    /// Not connected, or not any more, and the last trouble.
    Down(ServerMessage),
    /// Connected and, unless suspect, used.
    Up,
    /// Connected, but silent for some time.
    Suspect,
}

/// A node as callers see it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    admission: Arc<Admission>,
    queue: mpsc::UnboundedSender<Call>,
}

#[derive(Debug)]
struct Admission {
    id: NodeId,
    address: Arc<str>,
    limits: Limits,
    /// The connection that takes calls; 0 while there is none.
    connection: AtomicU64,
    suspect: AtomicBool,
    inside: AtomicUsize,
    state: watch::Sender<State>,
    trouble: Mutex<ServerMessage>,
    node_table: Arc<NodeTable>,
    debts: Arc<Debts>,
    /// [`NodeName`] as bits; 0 while it is not known.
    name: AtomicU64,
    /// Wake-ups of this node do not reach us.
    deaf: AtomicBool,
    contended_keys: Arc<ContendedKeys>,
}

/// The task's side of the admission.
#[derive(Debug)]
pub(crate) struct Inbox {
    admission: Arc<Admission>,
    queue: mpsc::UnboundedReceiver<Call>,
    connections: u64,
}

/// An admitted call. It is answered exactly once: a call that is dropped unanswered, because its node's task ends, is
/// answered "unknown".
#[derive(Debug)]
pub(crate) struct Call {
    request: Option<Outgoing>,
    /// The connection it was admitted to; on any other it must not be sent.
    pub(crate) connection: ConnectionId,
    admission: Arc<Admission>,
}

/// A node and the inbox behind it. `debts` leads to the janitor; what releases tell of waiters goes to `contended_keys`, and
/// what the node's grants are worth is read from `node_table`.
pub(crate) fn node(
    id: NodeId,
    address: Arc<str>,
    limits: Limits,
    debts: Arc<Debts>,
    contended_keys: Arc<ContendedKeys>,
    node_table: Arc<NodeTable>,
) -> (Node, Inbox) {
    let trouble: ServerMessage = "connecting".into();
    let admission = Arc::new(Admission {
        id,
        address,
        limits,
        connection: AtomicU64::new(0),
        suspect: AtomicBool::new(false),
        inside: AtomicUsize::new(0),
        state: watch::Sender::new(State::Connecting),
        trouble: Mutex::new(trouble),
        node_table,
        debts,
        name: AtomicU64::new(0),
        deaf: AtomicBool::new(false),
        contended_keys,
    });
    let (sender, queue) = mpsc::unbounded_channel();
    let node = Node { admission: admission.clone(), queue: sender };
    (node, Inbox { admission, queue, connections: 0 })
}

impl Node {
    /// Hands a request to the node's task, in the order of calling. The answer goes to the request's mailbox.
    ///
    /// Refused at once, with nothing written, where the node cannot take it; a debt that travels with the request then
    /// goes to the janitor. Never waits, and works from any thread, inside a runtime or not.
    pub(crate) fn send(&self, request: Outgoing) -> Result<ConnectionId, NotSent> {
        let keys = request.operation.keys();
        let connection = match self.admit(request.operation.creates(), keys) {
            Ok(connection) => connection,
            Err(reason) => {
                self.admission.owe(request.debt);
                return Err(reason);
            }
        };
        let call = Call { request: Some(request), connection, admission: self.admission.clone() };
        self.queue.send(call).map(|()| connection).map_err(|mut refused| {
            // The task has ended; so will the client. The call must not report to a mailbox that is told here.
            let request = refused.0.request.take();
            self.admission.owe(request.and_then(|request| request.debt));
            self.admission.inside.fetch_sub(keys, Ordering::SeqCst);
            NotSent::Closed
        })
    }

    /// `creates`: whether the call may bring a key into being. Others get in twice as deep, so that under overload the
    /// undo of what was admitted is never turned away for the sake of new work. A call about many `keys` counts as many:
    /// it may have to be sent as that many commands.
    fn admit(&self, creates: bool, keys: usize) -> Result<ConnectionId, NotSent> {
        let admission = &*self.admission;
        let connection = admission.connection.load(Ordering::Acquire);
        if connection == 0 {
            if self.queue.is_closed() {
                return Err(NotSent::Closed);
            }
            return Err(NotSent::Down(admission.trouble()));
        }
        if admission.suspect.load(Ordering::Relaxed) {
            return Err(NotSent::Suspect);
        }
        let most = if creates { admission.limits.backlog } else { 2 * admission.limits.backlog };
        if admission.inside.fetch_add(keys, Ordering::SeqCst) + keys > most {
            admission.inside.fetch_sub(keys, Ordering::SeqCst);
            return Err(NotSent::Backlog);
        }
        Ok(ConnectionId(connection))
    }

    /// Where the node is, without secrets.
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.admission.address
    }

    /// Whether the node's task has ended, for good.
    pub(crate) fn has_ended(&self) -> bool {
        self.queue.is_closed()
    }

    /// Whether every admitted call has been answered, and what the answers left is with [`Debts`].
    pub(crate) fn is_idle(&self) -> bool {
        self.admission.inside.load(Ordering::SeqCst) == 0
    }

    /// What names the node for all clients alike, once it was connected.
    pub(crate) fn name(&self) -> Option<NodeName> {
        let bits = self.admission.name.load(Ordering::Relaxed);
        (bits != 0).then(|| NodeName::from_bits(bits))
    }

    /// Whether wake-ups of this node do not reach this client.
    pub(crate) fn is_deaf(&self) -> bool {
        self.admission.deaf.load(Ordering::Relaxed)
    }

    /// Whether the node takes work now, as far as is known.
    pub(crate) fn is_usable(&self) -> bool {
        self.admission.connection.load(Ordering::Relaxed) != 0
            && !self.admission.suspect.load(Ordering::Relaxed)
    }

    /// How the node stands, now and from now on.
    pub(crate) fn state(&self) -> watch::Receiver<State> {
        self.admission.state.subscribe()
    }
}

impl Admission {
    fn trouble(&self) -> ServerMessage {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn owe(&self, debt: Option<Debt>) {
        if let Some(debt) = debt {
            self.debts.send(Notice::Owed(debt));
        }
    }

    fn set_state(&self, state: State) {
        meter::node_up(&self.address, state == State::Up);
        self.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
    }
}

impl Inbox {
    /// A new connection takes calls from now on, with the node's grants worth what the node_table says. Returns its name.
    /// `name` is the node's for all clients, and `deaf` says that it cannot wake this one.
    pub(crate) fn open(&mut self, name: NodeName, deaf: bool) -> ConnectionId {
        self.connections += 1;
        let admission = &*self.admission;
        admission.name.store(name.to_bits(), Ordering::Relaxed);
        admission.deaf.store(deaf, Ordering::Relaxed);
        admission.suspect.store(false, Ordering::Relaxed);
        admission.connection.store(self.connections, Ordering::Release);
        admission.set_state(State::Up);
        admission.debts.send(Notice::Usable(admission.id));
        ConnectionId(self.connections)
    }

    /// The node has another name than before.
    pub(crate) fn rename(&mut self, name: NodeName) {
        self.admission.name.store(name.to_bits(), Ordering::Relaxed);
    }

    /// What the node's own memory is worth from now on.
    #[cfg(feature = "testing")]
    pub(crate) fn stand(&mut self, standing: Standing) {
        self.admission.node_table.set_standing(self.admission.id, standing);
    }

    /// What the node's grants are worth now.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        self.admission.node_table.standing(self.admission.id, now)
    }

    /// A call was answered after so long.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration) {
        self.admission.node_table.note_round_trip(self.admission.id, round_trip);
        meter::round_trip(&self.admission.address, round_trip);
    }

    /// No connection takes calls any more, because of this trouble.
    pub(crate) fn close(&mut self, trouble: ServerMessage) {
        let admission = &*self.admission;
        *admission.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble.clone();
        admission.connection.store(0, Ordering::Release);
        admission.suspect.store(false, Ordering::Relaxed);
        admission.set_state(State::Down(trouble));
    }

    /// The node is silent for too long, or speaks again.
    pub(crate) fn set_suspect(&mut self, suspect: bool) {
        let admission = &*self.admission;
        if admission.suspect.swap(suspect, Ordering::Relaxed) == suspect {
            return;
        }
        if suspect {
            tracing::warn!(node = %admission.id, address = %admission.address, "node is silent, not used until it answers");
            admission.set_state(State::Suspect);
        } else {
            tracing::info!(node = %admission.id, address = %admission.address, "node answers again");
            admission.set_state(State::Up);
            admission.debts.send(Notice::Usable(admission.id));
        }
    }

    /// The next admitted call; `None` once all callers are gone.
    pub(crate) fn poll_call(&mut self, cx: &mut Context<'_>) -> Poll<Option<Call>> {
        self.queue.poll_recv(cx)
    }

    /// The next admitted call; `None` once all callers are gone.
    pub(crate) async fn call(&mut self) -> Option<Call> {
        self.queue.recv().await
    }

    /// Takes nothing new; what was admitted is still served.
    pub(crate) fn shut(&mut self) {
        self.admission.connection.store(0, Ordering::Release);
        self.queue.close();
    }

    /// The node's number.
    pub(crate) fn id(&self) -> NodeId {
        self.admission.id
    }

    /// Where the node is, without secrets.
    pub(crate) fn address(&self) -> &Arc<str> {
        &self.admission.address
    }
}

impl Call {
    /// What is asked.
    pub(crate) fn request(&self) -> Option<&Outgoing> {
        self.request.as_ref()
    }

    /// Answers the call.
    pub(crate) fn finish(mut self, reply: Reply, at: Instant) {
        self.answer(reply, at);
    }

    /// Answers the call where it stands; afterwards [`Call::request`] is `None`.
    pub(crate) fn answer(&mut self, reply: Reply, at: Instant) {
        let Some(request) = self.request.take() else { return };
        self.admission.owe(request.debt.and_then(|debt| debt.after(self.connection, &reply, at)));
        if let Operation::HandOver { key, .. } = &request.operation {
            self.admission.contended_keys.released(key, self.admission.id, &reply);
        }
        let (node, connection) = (self.admission.id, self.connection);
        let (creates, keys) = (request.operation.creates(), request.operation.keys());
        let standing = self.admission.node_table.standing(node, at);
        meter::answered(&self.admission.address, request.operation.name(), &reply);
        request.mailbox.deliver(Answer {
            node,
            call: request.call,
            creates,
            connection,
            reply,
            standing,
            read: at,
        });
        // Last: the call counts until everything that it left counts elsewhere.
        self.admission.inside.fetch_sub(keys, Ordering::SeqCst);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.answer(Reply::Unknown(Unknown::Closed), Instant::default());
    }
}
