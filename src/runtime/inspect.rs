//! Looking at a key on all nodes, without touching it.

use std::future::poll_fn;
use std::pin::pin;

use crate::client::report::Inspection;
use crate::node::{Mailbox, Outgoing};
use crate::protocol::message::{Found, Key, Operation, Reply, Unknown};
use crate::runtime::shared::Shared;

/// Asks every node once, and waits for their answers as long as a round would.
///
/// # Cancellation safety
///
/// Dropping the future changes nothing.
pub(crate) async fn inspect(shared: &Shared, key: Key) -> Inspection {
    let mailbox = Mailbox::new();
    let timeout = shared.config.reply_timeout(shared.config.ttl);
    let mut replies: Vec<Option<Reply>> = vec![None; shared.nodes.len()];
    for (index, node) in shared.nodes.iter().enumerate() {
        let operation = Operation::Inspect { key: key.clone() };
        let request = Outgoing { operation, debt: None, mailbox: mailbox.clone(), call: index as u64 };
        if let Err(reason) = node.send(request) {
            replies[index] = Some(Reply::NotSent(reason));
        }
    }
    let deadline = shared.clock.now().after(timeout);
    let (mut over, mut answers) = (pin!(shared.clock.sleep_until(deadline)), Vec::new());
    while replies.iter().any(Option::is_none) {
        tokio::select! {
            biased;
            () = poll_fn(|cx| mailbox.poll_take(cx, &mut answers)) => for answer in answers.drain(..) {
                if let Some(reply) = replies.get_mut(answer.call as usize) {
                    *reply = Some(answer.reply);
                }
            },
            () = &mut over => break,
        }
    }
    let found = replies.into_iter().map(|reply| match reply {
        Some(Reply::Found(Found { holder, waiting })) => {
            shared.note_life(&key, holder.as_ref());
            Ok((holder, waiting))
        }
        Some(other) => Err(other),
        None => Err(Reply::Unknown(Unknown::Timeout(timeout))),
    });
    Inspection::new(&key, found, &shared.nodes)
}
