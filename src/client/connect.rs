//! Waiting for the first connections of a client, and what to say if there are too few.

use std::time::Duration;

use crate::client::error::BuildError;
use crate::node::{Node, State};
use crate::protocol::quorum::NodeId;
use crate::runtime::shared::Shared;

/// How long `build` waits, once a quorum is connected, for the other nodes: a healthy one needs no longer, and a client
/// should not start with fewer nodes than it could have.
const GRACE_FOR_THE_REST: Duration = Duration::from_millis(100);

/// Waits until a quorum is connected, and a little longer for the rest. Two spellings of one server's address are one server
/// all the same, which its run or its marker shows: it counts once.
pub(super) async fn connected(shared: &Shared) -> Result<(), BuildError> {
    let limit = shared.config.connect_timeout;
    let deadline = shared.clock.now().after(limit);
    let mut states: Vec<_> = shared.nodes.iter().map(Node::state).collect();
    let quorum_is_up = async {
        loop {
            let up: Vec<_> = states.iter_mut().map(|state| *state.borrow_and_update() == State::Up).collect();
            let servers =
                up.iter().enumerate().filter(|(index, up)| **up && !is_double(shared, *index)).count();
            if servers >= shared.quorum.needed() {
                return true;
            }
            if up.iter().all(|up| *up) {
                return false;
            }
            let changes = states.iter_mut().map(|state| Box::pin(state.changed()));
            let _ = futures::future::select_all(changes).await;
        }
    };
    let reached = tokio::select! {
        biased;
        reached = quorum_is_up => reached,
        () = shared.clock.sleep_until(deadline) => false,
    };
    // Attempts that take the whole of the connect timeout end at this same moment: then each can say why.
    // What `wait_for` returns holds a lock, with which this future could not be spawned: it ends inside.
    let first_attempts = states.iter_mut().map(|state| async {
        let _ = state.wait_for(|state| *state != State::Connecting).await;
    });
    let grace = shared.clock.now().after(GRACE_FOR_THE_REST);
    tokio::select! {
        biased;
        _ = futures::future::join_all(first_attempts) => {}
        () = shared.clock.sleep_until(grace) => {}
    }
    // The last one of a quorum may have come in the grace.
    let up = shared.nodes.iter().enumerate();
    let up =
        up.filter(|(index, node)| *node.state().borrow() == State::Up && !is_double(shared, *index)).count();
    if reached || up >= shared.quorum.needed() { Ok(()) } else { Err(not_connected(shared, limit)) }
}

fn is_double(shared: &Shared, index: usize) -> bool {
    shared.node_table.double_of(NodeId::new(index)).is_some()
}

/// With every node connected, what is missing are servers: some are named twice.
fn one_server_twice(shared: &Shared) -> Option<BuildError> {
    let all_up = shared.nodes.iter().all(|node| *node.state().borrow() == State::Up);
    let mut numbers = (0..shared.nodes.len()).filter(|_| all_up);
    let (second, first) =
        numbers.find_map(|index| Some((index, shared.node_table.double_of(NodeId::new(index))?.index())))?;
    let name =
        |index: usize| shared.nodes.get(index).map(|node| node.address().to_string()).unwrap_or_default();
    let address = format!("{} and {}", name(first), name(second));
    Some(BuildError::DuplicateNode { first: first + 1, second: second + 1, address })
}

fn not_connected(shared: &Shared, within: Duration) -> BuildError {
    if let Some(error) = one_server_twice(shared) {
        return error;
    }
    let mut connected = 0;
    let mut troubles = Vec::new();
    for (index, node) in shared.nodes.iter().enumerate() {
        let trouble = match &*node.state().borrow() {
            State::Up => match shared.node_table.double_of(NodeId::new(index)) {
                None => {
                    connected += 1;
                    continue;
                }
                Some(other) => format!("the same server as {other}"),
            },
            State::Connecting => "no answer yet".to_owned(),
            State::Suspect => "silent".to_owned(),
            State::Down(trouble) => trouble.to_string(),
        };
        troubles.push(format!("n{} {}: {trouble}", index + 1, node.address()));
    }
    BuildError::NotConnected {
        connected,
        nodes: shared.nodes.len(),
        needed: shared.quorum.needed(),
        within,
        trouble: troubles.join("; "),
    }
}
