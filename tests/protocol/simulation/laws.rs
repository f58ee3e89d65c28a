//! The laws, one checker each. Every checker looks at what really happened, never at what the protocol believes, and
//! cites the rule of the design that it watches over (`docs/design.md`, section 2).

use std::time::Duration;

use redquorum::protocol::in_doubt::{Debt, MARGIN};
use redquorum::protocol::message::{HolderValue, Operation, Owner};
use redquorum::protocol::quorum::{NodeId, NodeSet, Quorum};
use redquorum::protocol::time::Instant;
use redquorum::protocol::wait_queue::rank::QUEUE_LIFE;

use super::client::Client;
use super::clock::TrueTime;
use super::line_witness::Change;
use super::node::Node;
use super::task::Task;
use super::witness::{DebtWitness, OwnerWitness, RoundKind, RoundWitness};
use super::world::World;

/// What a checker says: nothing, or what is wrong.
pub type Finding = Result<(), String>;

/// One law. The order is that of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    MutualExclusion,
    ValidityIsCovered,
    MinimumValidity,
    OnlyGrantsCount,
    OwnerIsRetired,
    ReleaseReachesEveryWrite,
    OthersAreUntouched,
    SettledStaysClear,
    DebtsAreBounded,
    DebtsOutlastTheirKey,
    AskedOnce,
    DecidedAtOnce,
    StillHeldByQuorum,
    ExpiredIsNotExtended,
    ExtensionNeverShortens,
    LivesOnlyGrow,
    HealsOnlyWhileValid,
    HealsAfterQuorum,
    NothingFollowsRelease,
    SilentBeforeRelease,
    AsksNoMore,
    ContentionQueues,
    Progress,
    NoLeftovers,
    FirstComeFirstServed,
    HandedOnlyToTheLine,
    StaleWakeUpIsAnswered,
    VotesAreUsed,
    ReleaseHandsOver,
    PlaceIsKept,
    OneLooksForAll,
    WaitEndsInTime,
    StandsAtTheBestNode,
    NoLeftoversInLine,
    TokensRise,
    TokenStandsAtQuorum,
    TokensAreBounded,
}

/// A law that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub law: Law,
    pub at: TrueTime,
    pub detail: String,
}

pub fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Finding {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// What the rules are for: at no true moment do two leases of one key count as valid by their holders' clocks. Asked
/// whenever one becomes valid, is lengthened, or a clock steps.
pub fn mutual_exclusion(world: &World, tenure: usize) -> Finding {
    let holds = |tenure: usize| {
        let holder = &world.tenures[tenure];
        // A client whose clock stood still cannot know before it asked a quorum for the time.
        !world.is_excused(holder.client)
            && holder.valid_until.is_some_and(|until| world.client_now(holder.client) < until)
    };
    if !holds(tenure) {
        return Ok(());
    }
    let key = world.owners[world.tenures[tenure].owner].key;
    let same_key = |other: usize| world.owners[world.tenures[other].owner].key == key;
    let rival =
        world.holders.iter().copied().find(|other| *other != tenure && same_key(*other) && holds(*other));
    let owner = |tenure: usize| world.tenures[tenure].owner;
    rival.map_or(Ok(()), |rival| Err(format!("o{} and o{} are both valid", owner(tenure), owner(rival))))
}

/// Rule 1: validity never exceeds what a quorum of nodes still gives. Q nodes truly keep the key for this owner until
/// the holder's deadline has truly passed; a node that lost its memory since the round began is excused here, since
/// the guard answers for it.
pub fn validity_is_covered(world: &mut World, tenure: usize, until: Instant) -> Finding {
    let holder = &world.tenures[tenure];
    if world.is_excused(holder.client) {
        return Ok(());
    }
    let record = &world.owners[holder.owner];
    let end = world.clients[holder.client].clock.when(until);
    let key = &world.keys[record.key];
    let started = holder.round.started;
    let covers = |node: &mut Node| {
        let excused = node.lost_memory.is_some_and(|lost| lost >= started);
        excused || node.keeps_until(key, record.owner, world.now).is_some_and(|kept| kept >= end)
    };
    let covering: NodeSet =
        world.nodes.iter_mut().enumerate().fold(NodeSet::EMPTY, |mut set, (index, node)| {
            if covers(node) {
                set.insert(NodeId::new(index));
            }
            set
        });
    let (needed, owner) = (world.plan.quorum.needed(), holder.owner);
    require(covering.len() >= needed, || {
        format!("o{owner} is valid until {end} ns, and {covering:?} alone keep it for so long")
    })
}

/// Rule 1: below the minimum validity it is no lock, counted when the last needed reply was read.
pub fn minimum_validity(now: Instant, until: Instant, ttl_millis: u64) -> Finding {
    let left = until.since(now);
    require(left.as_nanos() as u64 >= ttl_millis * 100_000, || {
        format!("held with {left:?} of {ttl_millis} ms left")
    })
}

/// Rules 1 and 5: a lease is held by Q nodes that answered "granted" to a set of this very round. Unknown is none.
pub fn only_grants_count(round: &RoundWitness, quorum: Quorum) -> Finding {
    // A fenced lease may have had a second round, which counts only nodes that still carried the owner.
    let claimed = if round.kind == RoundKind::Raise { round.claimed } else { round.granted };
    let acquires = matches!(round.kind, RoundKind::Acquire | RoundKind::Raise);
    let holds = claimed.len() >= quorum.needed() && round.granted.len() >= quorum.needed();
    require(holds || !acquires, || format!("held by the grants of {claimed:?} and {:?} alone", round.granted))
}

/// Rule 2: once an undo or release for an owner was sent, that owner is never sent in a set or claim again.
pub fn owner_is_retired(record: &OwnerWitness, operation: &Operation) -> Finding {
    require(!(record.retired && operation.creates()), || {
        format!("{} of {} after its release", operation.name(), record.owner)
    })
}

/// Rule 3: undo and release go to every node to which a set or claim may have gone, the silent ones included: sent,
/// or owed; or another owner takes over what waits in the queue there.
pub fn release_reaches_every_write(record: &OwnerWitness) -> Finding {
    let missed = record.nodes.iter().position(|node| node.written && !node.released && !node.taken_over);
    missed.map_or(Ok(()), |node| Err(format!("{} was never told", NodeId::new(node))))
}

/// Rule 3: nobody's key is touched by another owner. One command changes nothing, sets its owner where nothing was,
/// or deletes what carried its owner. A hand-over gives what carried its owner, or nobody's, to somebody else; a look gives nobody's; a take-over
/// takes what carried the earlier owner.
pub fn others_are_untouched(subject: Owner, operation: &Operation, change: &Change) -> Finding {
    let Change { before, after } = change;
    let own = |value: &Option<HolderValue>| *value == Some(HolderValue::Owner(subject));
    let given = match operation {
        Operation::HandOver { .. } => {
            (own(before) || before.is_none()) && matches!(after, Some(HolderValue::Owner(_)))
        }
        Operation::Queue { .. } if before.is_none() => matches!(after, Some(HolderValue::Owner(_))),
        Operation::Queue { rename_from: Some(earlier), .. } => {
            own(after) && *before == Some(HolderValue::Owner(*earlier))
        }
        _ => false,
    };
    let allowed =
        before == after || (before.is_none() && own(after)) || (own(before) && after.is_none()) || given;
    require(allowed, || format!("a command of {subject} made {after:?} of {before:?}"))
}

/// Rule 4: where an answer settled an undo, or none was needed, the owner never appears again. "Not yours" on another
/// connection is no such answer: the old set may still be on its way.
pub fn settled_stays_clear(record: &OwnerWitness, node: usize) -> Finding {
    require(!record.nodes[node].settled, || format!("{} carries it after it was settled", NodeId::new(node)))
}

/// Rule 4: a debt ends at the last send + TTL + allowance + margin, and travels with nothing else. For an owner that stood
/// in the queue, or that a wake-up named, the life of a queue takes the place of the TTL.
pub fn debt_is_bounded(record: &OwnerWitness, debt: &Debt) -> Finding {
    let on_node = &record.nodes[debt.node.index()];
    let mut longest = Duration::from_millis(record.longest_ttl);
    if on_node.queued || on_node.named > Instant::default() {
        longest = longest.max(QUEUE_LIFE);
    }
    let counted = if record.waiter.is_some() { QUEUE_LIFE } else { longest };
    let allowance = counted / 100 + Duration::from_millis(2);
    let bound = on_node.last_sent.max(on_node.named).after(longest).after(allowance).after(MARGIN);
    require(debt.ends() <= bound, || format!("owed until {:?}, bound {bound:?}", debt.ends()))
}

/// Rule 4: no debt outlives its bound. The ledger keeps none whose end has passed.
pub fn debts_are_bounded(client: &Client) -> Finding {
    let (kept, alive) = (client.ledger.open(), client.pending_cleanups.len());
    require(kept <= alive, || format!("{kept} debts are kept, {alive} have not ended"))
}

/// Rule 4: a debt is not given up while its key may be there, unless the key was made so late that only a command on
/// its way for longer than the margin explains it, or a look that was executed after its connection.
pub fn debt_outlasts_its_key(world: &mut World, debt: &DebtWitness) -> Finding {
    let record = &world.owners[debt.owner];
    let late = record.nodes[debt.node].effective_late;
    let carried = world.nodes[debt.node].carries(&world.keys[record.key], record.owner, world.now);
    require(late || !carried, || format!("{} still carries it", NodeId::new(debt.node)))
}

/// Rule 6: a round is one request to each node, and so is its healing; a lease is released once.
pub fn asked_once(asked: NodeSet, node: NodeId, operation: &Operation) -> Finding {
    require(!asked.contains(node), || format!("{} is sent to {node} again", operation.name()))
}

/// Rule 6: a round is decided at the earliest moment: success at Q grants, failure as soon as Q is out of reach.
pub fn decided_at_once(round: &RoundWitness, quorum: Quorum) -> Finding {
    let (mut granted, mut open) = (round.granted.len(), quorum.nodes() - round.answered.len());
    if round.lone_number(quorum).is_some_and(|lone| round.granted.contains(lone)) {
        // No vote, unless one of those that are still to answer confirms it.
        granted -= 1;
        open += usize::from(open > 0);
    }
    let certain = granted >= quorum.needed() || granted + open < quorum.needed();
    require(round.decided || !certain, || {
        format!("undecided with grants of {:?}, answers of {:?}", round.granted, round.answered)
    })
}

/// Rule 7: an extension succeeds only if Q nodes *still* held this owner. A node that lost the key does not count, nor
/// one where it was set again by this extension.
pub fn still_held_by_quorum(round: &RoundWitness, quorum: Quorum) -> Finding {
    let holds = round.kind != RoundKind::Extend || round.granted.len() >= quorum.needed();
    require(holds, || format!("extended where only {:?} still held it", round.granted))
}

/// Rule 7: a lease past its validity is never extended or revived: neither asked for nor told.
pub fn expired_is_not_extended(now: Instant, old: Instant) -> Finding {
    require(now < old, || format!("extended {:?} after its end", now.since(old)))
}

/// Rule 7: the new deadline is the later of the old and the new.
pub fn extension_never_shortens(old: Instant, new: Instant) -> Finding {
    require(new >= old, || format!("shortened from {old:?} to {new:?}"))
}

/// Rule 7: no command of an owner leaves a key that carries it with a shorter life than it had; `None` is a life without end.
pub fn lives_only_grow(operation: &Operation, before: Option<Duration>, after: Option<Duration>) -> Finding {
    let ends_sooner = before.zip(after).is_some_and(|(before, after)| after < before);
    require(!ends_sooner, || format!("{} left {after:?} of {before:?}", operation.name()))
}

/// Rule 7: healing never starts after release, drop or loss, nor after the end of validity.
pub fn heals_only_while_valid(now: Instant, valid_until: Option<Instant>) -> Finding {
    require(valid_until.is_some_and(|until| now < until), || "healed while nobody may act".into())
}

/// Rule 7: a missing key is set again only once Q nodes have said, in this same extension, that they still carry the owner.
pub fn heals_after_quorum(round: &RoundWitness, quorum: Quorum) -> Finding {
    let confirmed = round.kind == RoundKind::Extend && round.granted.len() >= quorum.needed();
    require(confirmed, || format!("healed where only {:?} were known to carry it", round.granted))
}

/// Rule 2: nothing that would lengthen a key's life is sent for an owner whose release has begun.
pub fn nothing_follows_release(record: &OwnerWitness, node: NodeId) -> Finding {
    require(!record.retired, || format!("extended on {node} after its release"))
}

/// Rule 8: a lease stops being valid before the first byte of its release is sent.
pub fn silent_before_release(now: Instant, valid_until: Option<Instant>) -> Finding {
    require(valid_until.is_none_or(|until| until <= now), || "released while its holder may act".into())
}

/// Section 4: an acquire asks no more after a quorum of nodes said that no token is left, nor for a second time if it does
/// not wait.
pub fn asks_no_more(task: &Task) -> Finding {
    require(!task.spent, || "asks again although no token is left".into())?;
    require(task.waits || task.asked == 0, || "asks again, and was not to wait".into())
}

/// Section 4: an acquire that a quorum of nodes refused, since somebody else holds the key there, waits in the queue next, as
/// long as it waits and no queue was refused to it.
pub fn contention_queues(task: &Task) -> Finding {
    require(!task.must_queue, || "asks again beside the queue".into())
}

/// Section 4: a healed world lets all in.
pub fn progress(world: &World) -> Finding {
    let waiting = world.tasks.iter().filter(|task| !task.is_done()).count();
    require(waiting == 0, || format!("{waiting} tasks still wait"))
}

/// Rule 4: when nothing happens any more, no debt is left.
pub fn all_debts_end(world: &World) -> Finding {
    let debts: usize = world.clients.iter().map(|client| client.ledger.open()).sum();
    require(debts == 0, || format!("{debts} debts are open for ever"))
}

/// Rule 4 and section 9: when all leases are over and all debts have ended, a node carries one of our keys only where
/// the debt was left to the TTL; and once the TTL has passed, nowhere.
pub fn no_leftovers(world: &mut World, ttl_has_passed: bool) -> Finding {
    for (index, node) in world.nodes.iter_mut().enumerate() {
        for key in &world.keys {
            let Some(value) = node.value(key, world.now) else { continue };
            let HolderValue::Owner(owner) = value else { continue };
            let record = world.owners.iter().find(|record| record.owner == owner);
            let left = record.is_some_and(|record| record.nodes[index].left_to_ttl);
            require(left && !ttl_has_passed, || format!("{} still carries {owner}", NodeId::new(index)))?;
        }
    }
    Ok(())
}
