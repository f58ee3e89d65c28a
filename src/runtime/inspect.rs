//! Looking at a key on all nodes, without touching it.

use std::future::poll_fn;
use std::pin::pin;

use crate::node::Outgoing;
use crate::protocol::message::{CallId, Found, Key, Operation, Reply, Unknown};
use crate::registry::Mailbox;
use crate::runtime::shared::Shared;

/// Asks every node once, and waits for their answers as long as a round would. Returns what each of them told, in the order
/// of the nodes.
///
/// # Cancellation safety
///
/// Dropping the future changes nothing.
pub(crate) async fn inspect(shared: &Shared, key: &Key) -> Vec<Reply> {
    let mailbox = Mailbox::new();
    let timeout = shared.config.reply_timeout(shared.config.ttl);
    let mut replies: Vec<Option<Reply>> = vec![None; shared.nodes.len()];
    for (node, reply) in shared.nodes.iter().zip(&mut replies) {
        let operation = Operation::Inspect { key: key.clone() };
        let request = Outgoing { operation, debt: None, mailbox: mailbox.clone(), call: CallId::default() };
        *reply = node.send(request).err().map(Reply::NotSent);
    }
    let deadline = shared.clock.now().after(timeout);
    let (mut over, mut answers) = (pin!(shared.clock.sleep_until(deadline)), Vec::new());
    while replies.iter().any(Option::is_none) {
        tokio::select! {
            biased;
            () = poll_fn(|cx| mailbox.poll_take(cx, &mut answers)) => for answer in answers.drain(..) {
                if let Some(reply) = replies.get_mut(answer.node.index()) {
                    *reply = Some(answer.reply);
                }
            },
            () = &mut over => break,
        }
    }
    let replies = replies.into_iter().map(|reply| reply.unwrap_or(Reply::Unknown(Unknown::Timeout(timeout))));
    replies
        .inspect(|reply| {
            if let Reply::Found(Found { holder, .. }) = reply {
                shared.note_life(key, holder.as_ref());
            }
        })
        .collect()
}
