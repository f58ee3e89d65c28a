//! Connections and what travels on them: in order on each, in no order across them, late, lost, or executed after
//! the client has given up on the connection.

use std::collections::VecDeque;

use redquorum::protocol::in_doubt::{Debt, DebtId};
use redquorum::protocol::message::{CallId, ConnectionId, NotSent, Operation, Reply, Unknown};
use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::restart::{Memory, Standing};
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::rank::NodeName;

use super::broken::Switch;
use super::clock::{MILLI, TrueTime};
use super::counters::Seen;
use super::laws::{self, Law};
use super::looks::Looked;
use super::trace::note;
use super::world::{Event, World};

/// One client's access to one node.
#[derive(Debug)]
pub struct Link {
    pub connection: Option<usize>,
    /// Silent for some time: it gets no new work.
    pub suspect: bool,
    /// Since when it takes work, on the client's clock.
    pub usable_since: Instant,
    /// The node's name, once it was connected.
    pub name: Option<NodeName>,
    /// It knows the node under another marker than other clients do.
    pub other_marker: bool,
    /// Per mille of the mean latency.
    pub speed: u64,
    /// What is known of the node's memory.
    pub memory: Memory,
    /// What its looks at it showed.
    pub looked: Looked,
}

/// One connection. Requests arrive in order, and so do replies.
#[derive(Debug)]
pub struct Connection {
    pub client: usize,
    pub node: usize,
    /// The client has given it up.
    pub closed: bool,
    /// It has ended on the way: no reply comes any more, and the client will hear of it.
    pub broken: bool,
    /// Requests are stuck on the way.
    pub stalled: bool,
    /// Replies vanish on the way.
    pub mute: bool,
    /// The node takes the client for somebody who listens here.
    pub listens: bool,
    /// How many requests were sent; the last of them that can still be executed.
    sent: u32,
    last_executable: u32,
    /// Requests that have arrived at the node.
    pub arrived: u32,
    pub last_arrival: TrueTime,
    pub last_reply: TrueTime,
    /// Calls without an answer, in the order of sending.
    pub outstanding: VecDeque<usize>,
    stuck: Vec<usize>,
    watched: bool,
}

/// What a call is for, and whom its answer goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    Lease { tenure: usize, call: CallId },
    Settlement { debt: DebtId },
    Line { waiter: usize, call: CallId, generation: u32 },
}

/// One operation on its way, and back.
#[derive(Debug)]
pub struct Call {
    pub connection: usize,
    /// Its place among the requests of the connection, from 1.
    place: u32,
    pub sent: TrueTime,
    pub owner: usize,
    pub operation: Operation,
    pub purpose: Purpose,
    pub debt: Option<Debt>,
    /// The node's answer, once executed.
    pub reply: Option<Reply>,
    /// The node truly did what counts as a vote: set the key, or lengthened one that was there.
    pub truly_granted: bool,
}

pub fn connection_id(connection: usize) -> ConnectionId {
    ConnectionId(connection as u64 + 1)
}

impl World {
    pub fn link_of(&self, client: usize, node: usize) -> usize {
        client * self.nodes.len() + node
    }

    pub fn is_usable(&self, client: usize, node: usize) -> bool {
        let link = &self.links[self.link_of(client, node)];
        link.connection.is_some() && !link.suspect
    }

    /// Hands one operation to a node's door: the connection it went out on, or why it did not.
    pub fn send(
        &mut self,
        client: usize,
        node: usize,
        owner: usize,
        operation: Operation,
        purpose: Purpose,
        debt: Option<Debt>,
    ) -> Result<ConnectionId, NotSent> {
        let connection = self.admit(client, node, operation.creates())?;
        if operation.creates() {
            self.look_first(client, node);
        }
        self.demand(Law::OwnerIsRetired, laws::owner_is_retired(&self.owners[owner], &operation));
        self.witness_healing(purpose, &operation);
        self.witness_take_over(node, &operation);
        self.witness_send(client, node, owner, connection, &operation);
        self.operations += 1;

        let line = &mut self.connections[connection];
        line.sent += 1;
        let call = self.calls.len();
        line.outstanding.push_back(call);
        note!(self, "c{client} → {} #{connection}: {} o{owner}", NodeId::new(node), operation.name());
        let place = self.connections[connection].sent;
        let (sent, reply) = (self.now, None);
        self.calls.push(Call {
            connection,
            place,
            sent,
            owner,
            operation,
            purpose,
            debt,
            reply,
            truly_granted: false,
        });
        if self.calls[call].operation.creates() {
            self.ambush(connection);
        }
        self.put_on_the_way(call);
        self.watch(connection);
        Ok(connection_id(connection))
    }

    /// The door. What clears has twice the room of what sets, so that work is never undone more slowly than it is done.
    fn admit(&mut self, client: usize, node: usize, creates: bool) -> Result<usize, NotSent> {
        let narrow = creates || self.broken == Some(Switch::FullNodeWaits);
        let most = if narrow { self.plan.backlog } else { 2 * self.plan.backlog };
        let link = &self.links[self.link_of(client, node)];
        let refusal = match link.connection {
            None => (Seen::RefusedAsDown, NotSent::Down(self.words.lost.clone())),
            Some(_) if link.suspect => (Seen::RefusedAsSuspect, NotSent::Suspect),
            Some(connection) if self.connections[connection].outstanding.len() >= most => {
                (Seen::RefusedByBacklog, NotSent::Backlog)
            }
            Some(connection) => return Ok(connection),
        };
        note!(self, "c{client} ↛ {}: {}", NodeId::new(node), refusal.1);
        self.counters.add(refusal.0);
        Err(refusal.1)
    }

    fn put_on_the_way(&mut self, call: usize) {
        let connection = self.calls[call].connection;
        if self.connections[connection].stalled {
            return self.connections[connection].stuck.push(call);
        }
        let way = self.way(connection);
        self.arrive_after(call, way);
    }

    /// Lets a request arrive, never before those sent earlier on its connection.
    fn arrive_after(&mut self, call: usize, way: u64) {
        let line = &mut self.connections[self.calls[call].connection];
        let at = self.now + way;
        line.last_arrival = line.last_arrival.max(at);
        let at = if self.broken == Some(Switch::OrderNotKept) { at } else { line.last_arrival };
        self.schedule(at, Event::Arrive(call));
    }

    /// How long one message takes on this connection.
    pub fn way(&mut self, connection: usize) -> u64 {
        let line = &self.connections[connection];
        let mean = self.plan.latency * self.links[self.link_of(line.client, line.node)].speed / 1_000;
        let usual = mean * self.draw.between(500, 1_500) / 1_000;
        if self.plan.slow > 0 && self.draw.chance(self.plan.slow) {
            return usual * self.draw.between(2, 30);
        }
        usual
    }

    /// A request reaches its node.
    pub fn arrive(&mut self, call: usize) {
        let Call { connection, place, .. } = self.calls[call];
        let line = &mut self.connections[connection];
        if place > line.last_executable {
            note!(
                self,
                "lost on #{connection}: {} o{}",
                self.calls[call].operation.name(),
                self.calls[call].owner
            );
            return;
        }
        line.arrived = line.arrived.max(place);
        self.read_request(call);
    }

    /// A node answers; the answer travels back unless the connection has ended or swallows it.
    pub fn respond(&mut self, call: usize) {
        let connection = self.calls[call].connection;
        let line = &self.connections[connection];
        if line.closed || line.broken || line.mute {
            return;
        }
        let way = self.way(connection);
        let line = &mut self.connections[connection];
        line.last_reply = line.last_reply.max(self.now + way);
        let at = line.last_reply;
        self.schedule(at, Event::Answer(call));
    }

    /// An answer reaches its client.
    pub fn answer(&mut self, call: usize) {
        let connection = self.calls[call].connection;
        let line = &mut self.connections[connection];
        if line.closed {
            return;
        }
        if let Some(place) = line.outstanding.iter().position(|waiting| *waiting == call) {
            line.outstanding.remove(place);
        }
        let (client, node) = (line.client, line.node);
        let reply = self.calls[call].reply.clone().unwrap_or(Reply::Unknown(Unknown::Closed));
        self.becomes_usable(client, node);
        self.deliver(client, node, call, reply);
    }

    /// Any answer clears suspicion.
    fn becomes_usable(&mut self, client: usize, node: usize) {
        let link = self.link_of(client, node);
        if self.links[link].suspect && self.broken != Some(Switch::SuspectForEver) {
            self.links[link].suspect = false;
            note!(self, "c{client}: {} is usable again", NodeId::new(node));
            self.node_is_usable(client, node);
        }
    }

    /// The connection ends on the way. Of the requests that have not arrived, some first ones still will.
    pub fn break_connection(&mut self, connection: usize, executes_more: bool) {
        let line = &mut self.connections[connection];
        if line.broken || line.closed {
            return;
        }
        line.broken = true;
        let (first, last) = (line.arrived, line.sent);
        line.last_executable = first;
        if executes_more {
            let more = u64::from(last - first);
            let more = if self.draw.chance(500) { more } else { self.draw.between(0, more) };
            self.connections[connection].last_executable += more as u32;
        }
        // A node may take a client for present long after the connection ended on the way.
        let noticed = if self.draw.chance(700) { 0 } else { self.draw.spread(MILLI, 2 * self.plan.guard()) };
        self.schedule(self.now + noticed, Event::Deafen(connection));
        let heard = self.draw.between(0, 2 * self.plan.latency);
        note!(self, "#{connection} breaks");
        self.schedule(self.now + heard, Event::Lost(connection));
    }

    /// The client learns, or decides, that a connection is gone: everything outstanding on it is unknown.
    pub fn lose_connection(&mut self, connection: usize) {
        let line = &mut self.connections[connection];
        if std::mem::replace(&mut line.closed, true) {
            return;
        }
        let (client, node) = (line.client, line.node);
        let open = std::mem::take(&mut line.outstanding);
        let link = self.link_of(client, node);
        self.links[link].connection = None;
        note!(self, "c{client}: #{connection} to {} is gone, {} open", NodeId::new(node), open.len());
        if !open.is_empty() {
            self.counters.add(Seen::ConnectionLost);
        }
        let again = self.draw.between(self.plan.latency, 100 * MILLI);
        self.schedule(self.now + again, Event::Connect(link));
        self.release_stuck(connection, true);
        for call in open {
            let lost = Reply::Unknown(Unknown::ConnectionLost(self.words.lost.clone()));
            self.deliver(client, node, call, lost);
        }
    }

    /// Lets requests go that were stuck: at once where the way is free again, late where the connection has ended.
    pub fn release_stuck(&mut self, connection: usize, late: bool) {
        self.connections[connection].stalled = false;
        let stuck = std::mem::take(&mut self.connections[connection].stuck);
        let longest = 2 * self.plan.guard();
        let lateness = if late && !stuck.is_empty() { self.draw.spread(MILLI, longest) } else { 0 };
        for call in stuck {
            let way = self.way(connection);
            self.arrive_after(call, way + lateness);
        }
    }

    /// Tries to connect; a node that is down or frozen is tried again.
    pub fn connect(&mut self, link: usize) {
        let (client, node) = (link / self.nodes.len(), link % self.nodes.len());
        if self.links[link].connection.is_some() {
            return;
        }
        if !self.nodes[node].answers() {
            let again = self.draw.between(10 * MILLI, 100 * MILLI);
            return self.schedule(self.now + again, Event::Connect(link));
        }
        let connection = self.connections.len();
        self.connections.push(Connection {
            client,
            node,
            closed: false,
            broken: false,
            stalled: false,
            mute: false,
            listens: false,
            sent: 0,
            last_executable: u32::MAX,
            arrived: 0,
            last_arrival: self.now,
            last_reply: self.now,
            outstanding: VecDeque::new(),
            stuck: Vec::new(),
            watched: false,
        });
        self.links[link].connection = Some(connection);
        self.links[link].name = Some(self.nodes[node].name(self.links[link].other_marker));
        self.subscribe(connection);
        if self.broken != Some(Switch::SuspectForEver) {
            self.links[link].suspect = false;
        }
        note!(self, "c{client}: connected to {} by #{connection}", NodeId::new(node));
        self.read_node(link);
        self.node_is_usable(client, node);
    }

    /// A new connection begins with what the node tells of itself. Now and then the client does not know what it told
    /// before, as one that was just started.
    fn read_node(&mut self, link: usize) {
        let (client, node) = (link / self.nodes.len(), link % self.nodes.len());
        // Nothing shows a newcomer that another server is in a node's place: that is an assumption.
        if self.draw.chance(100) && self.nodes[node].is_replaced_until <= self.now {
            self.links[link].memory = self.plan.new_memory(self.broken);
            self.links[link].looked.beat = None;
            self.links[link].looked.known_since = self.now;
        }
        let read = self.client_now(client);
        let known = self.links[link].looked.beat.map(|(run, _)| run);
        let readings = self.nodes[node].reading(self.now, read, known);
        self.take_readings(link, readings, self.now);
        let raised = self.nodes[node].raise_beat();
        self.take_beat(link, raised, read);
        self.links[link].looked.settle(read);
    }

    /// What a node's grants are worth to a client.
    pub fn standing(&self, client: usize, node: usize) -> Standing {
        match self.broken {
            Some(Switch::MemoryLossUnguarded) => Standing::COUNTS,
            _ => self.seen(client, node, self.links[self.link_of(client, node)].memory.standing()),
        }
    }

    /// A connection listens for wake-ups, where they can come.
    fn subscribe(&mut self, connection: usize) {
        let Connection { client, node, .. } = self.connections[connection];
        if self.clients[client].in_queue && !self.clients[client].deaf {
            self.connections[connection].listens = true;
            self.nodes[node].store.subscribe(self.clients[client].id);
        }
    }

    /// A node notices that a connection has ended.
    pub fn unsubscribe(&mut self, connection: usize) {
        let Connection { client, node, ref mut listens, .. } = self.connections[connection];
        if std::mem::take(listens) {
            self.nodes[node].store.unsubscribe(self.clients[client].id);
        }
    }

    fn watch(&mut self, connection: usize) {
        if !std::mem::replace(&mut self.connections[connection].watched, true) {
            self.schedule(self.now + self.plan.suspect_after(), Event::Watch(connection));
        }
    }

    /// Looks at a connection that owes an answer: a node silent for some time is suspect, and after a while its
    /// connection is given up.
    pub fn look_at(&mut self, connection: usize) {
        let line = &mut self.connections[connection];
        line.watched = false;
        let oldest = line.outstanding.front().map(|call| self.calls[*call].sent);
        let (Some(oldest), false) = (oldest, line.closed) else { return };
        let (client, node) = (line.client, line.node);
        let link = self.link_of(client, node);
        let silent = self.now - oldest;
        let next = if silent >= self.plan.close_after() {
            self.counters.add(Seen::ConnectionClosed);
            self.break_connection(connection, true);
            return self.lose_connection(connection);
        } else if silent >= self.plan.suspect_after() {
            if !std::mem::replace(&mut self.links[link].suspect, true) {
                note!(self, "c{client}: {} is suspect", NodeId::new(node));
            }
            oldest + self.plan.close_after()
        } else {
            oldest + self.plan.suspect_after()
        };
        self.connections[connection].watched = true;
        self.schedule(next.max(self.now + 1), Event::Watch(connection));
    }
}
