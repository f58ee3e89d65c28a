//! The laws of waiting in the queue, one checker each. Like those of `laws.rs` they look at what really happened. All of the
//! line is advice, so none of these is what mutual exclusion rests on; `docs/waiting.md` says what is promised.
//!
//! Some are asked only in *calm* histories: nothing is lost, nobody stands still, nobody polls.

use std::time::Duration;

use redquorum::protocol::quorum::NodeId;
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::rank::QUEUE_LIFE;

use super::laws::{Finding, require};
use super::witness::OwnerWitness;
use super::world::World;

/// First come, first served: a node gives its vote to whoever of its queue came first. Calm histories.
pub fn first_come_first_served(waiting: &[usize], given: usize) -> Finding {
    let first = waiting.first().copied().unwrap_or(given);
    require(first == given, || format!("w{given} has the vote, and w{first} came before"))
}

/// First come, first served: the lock goes in the order of the votes. Calm histories.
pub fn grants_follow_votes(voted: &[usize], granted: usize) -> Finding {
    let first = voted.first().copied().unwrap_or(granted);
    require(first == granted, || format!("w{granted} holds the lock, and w{first} had the vote before"))
}

/// A node gives its vote only to an owner that stands in its queue, so never to one that was released there, or whose
/// place another owner took over.
pub fn handed_only_to_the_line(record: &OwnerWitness, node: usize, owner: usize) -> Finding {
    require(record.nodes[node].in_queue, || {
        format!("{} hands over to o{owner}, not in the queue", NodeId::new(node))
    })
}

/// Rule 2: no lease is held under an owner whose release was sent.
pub fn not_held_when_released(record: &OwnerWitness, owner: usize) -> Finding {
    require(!record.retired, || format!("o{owner} is held, and was released before"))
}

/// A wake-up for an owner that was released is passed on by a release, or the queue stands still for a hand-over.
pub fn stale_wake_up_is_answered(owner: usize, retired: bool, answered: bool) -> Finding {
    require(!retired || answered, || format!("the wake-up of o{owner}, released before, is left unanswered"))
}

/// A vote is used: in calm histories none runs out unclaimed.
pub fn votes_are_used(owner: Option<usize>, node: usize) -> Finding {
    owner.map_or(Ok(()), |owner| Err(format!("the vote of {} for o{owner} ran out", NodeId::new(node))))
}

/// A release hands over: it leaves no key free where somebody waits. Calm histories.
pub fn release_hands_over(waiting: &[usize], node: usize) -> Finding {
    require(waiting.is_empty(), || format!("{} leaves the key free, and {waiting:?} wait", NodeId::new(node)))
}

/// A waiter keeps its place at a node for as long as it stays there, through failed claims and lost memory.
pub fn place_is_kept(before: Option<(usize, u64, u32)>, node: usize, score: u64) -> Finding {
    let kept = before.is_none_or(|(at, old, _)| at != node || old == score);
    require(kept, || format!("place {:?} became {score}", before.map(|(_, old, _)| old)))
}

/// Idle waiters look no more than once a second for each client, key and node, however many they are: heads, those who poll, and those
/// who were given a reason to look excepted. Calm histories.
pub fn one_looks_for_all(previous: Option<Instant>, now: Instant) -> Finding {
    let least = Duration::from_secs(1);
    let pause = previous.map_or(least, |previous| now.since(previous));
    require(pause >= least, || format!("the next look after {pause:?}"))
}

/// A wait ends with its deadline: a claim under way then may still bring the lock, within its round, and no other is
/// begun. A client that stood still is excused.
pub fn wait_ends_in_time(now: Instant, deadline: Instant, slack: Duration, excused: bool) -> Finding {
    let late = now.since(deadline);
    require(excused || late <= slack, || format!("{late:?} after the end of the wait"))
}

/// Whoever waits stands at the best node that its client can use, at the latest this long after it became usable.
pub fn stands_at_the_best_node(waiter: usize, usable_for: Duration, node: NodeId) -> Finding {
    let most = Duration::from_secs(4);
    require(usable_for <= most, || format!("w{waiter} does not stand at {node}, usable for {usable_for:?}"))
}

/// Nobody stays in a queue who has left it, except where a debt was left to the queue's life; and when that is over, nobody.
pub fn no_leftovers_in_line(world: &mut World, life_is_over: bool) -> Finding {
    for node in 0..world.nodes.len() {
        let now = world.nodes[node].clock.at(world.now);
        for key in 0..world.keys.len() {
            let left = world.nodes[node].store.in_queue(&world.keys[key], now);
            for owner in left {
                let number = world.owner_number(owner);
                let excused = number.is_some_and(|number| world.owners[number].nodes[node].left_to_ttl);
                require(excused && !life_is_over, || {
                    format!("o{number:?} still waits in the queue at {}", NodeId::new(node))
                })?;
            }
        }
    }
    Ok(())
}

/// The life of a queue, with what the clocks may differ by, in nanoseconds.
pub const LIFE: u64 = QUEUE_LIFE.as_nanos() as u64 / 100 * 102;
