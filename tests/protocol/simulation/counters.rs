//! The interesting things: what a run of many seeds must have seen for its silence to mean anything.

macro_rules! counters {
    ($($(#[doc = $what:literal])+ $name:ident,)+) => {
        /// One kind of interesting thing.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Seen { $($(#[doc = $what])+ $name,)+ }

        /// All of them, with what they are.
        const ALL: &[(Seen, &str)] = &[$((Seen::$name, concat!($($what),+)),)+];
    };
}

counters! {
    /// A lease was acquired.
    Granted,
    /// A lease was extended.
    Extended,
    /// A round was held up by another holder or a split vote.
    Contended,
    /// No contender had a quorum, and none was seen to have one.
    SplitVote,
    /// Too few nodes answered.
    Unavailable,
    /// Q grants came, but less than the minimum validity was left.
    Exhausted,
    /// A lease was held while a node had not answered.
    HeldWithSilentNode,
    /// A grant came after the verdict.
    StragglingGrant,
    /// A set was executed, its reply lost, and its undo sent.
    LostReplyUndone,
    /// An owner was set on one node over two connections.
    SetOnTwoConnections,
    /// A request was executed after its connection had ended for the client.
    LateExecution,
    /// A set of a lease that was over already brought a key into being.
    LateSetOfDeadOwner,
    /// An acquire was abandoned before its verdict.
    AbandonedMidRound,
    /// An acquire or extension was abandoned with some nodes not yet asked.
    AbandonedMidFanOut,
    /// A client stood still with some nodes not yet asked.
    PausedMidFanOut,
    /// A client stood still while its lease ran out.
    PausedBeyondValidity,
    /// A release's answer was still out when its caller went away.
    ReleaseAbandoned,
    /// An extension set the key again on a node that had lost it.
    HealedByExtension,
    /// An extension's quorum came after the old deadline.
    ExtensionTooLate,
    /// An extension was not confirmed and the old validity stood.
    ExtensionUnconfirmed,
    /// An extension found the quorum gone, where keys had been deleted.
    ExtensionLost,
    /// An extension asked for more than its TTL, since more was left.
    AskedForWhatIsLeft,
    /// An extension was replaced before its verdict.
    ExtensionReplaced,
    /// A node's answer to a release settled its debt at once.
    DebtSettledByRelease,
    /// A debt was settled by the answer to a repetition.
    DebtSettledByRepetition,
    /// A debt was settled on another connection than its set.
    DebtSettledElsewhere,
    /// "Not yours" on another connection left a debt open.
    DebtKeptOpen,
    /// A debt was left to the TTL.
    DebtEndedByTtl,
    /// A release was refused at the door and went to the ledger.
    ReleaseNotSent,
    /// Nothing was sent: too much work waiting.
    RefusedByBacklog,
    /// Nothing was sent: the node was suspect.
    RefusedAsSuspect,
    /// Nothing was sent: there was no connection.
    RefusedAsDown,
    /// Q nodes confirmed a release.
    ReleaseConfirmed,
    /// A release found the key gone.
    ReleaseGone,
    /// A release found another holder on a quorum.
    ReleaseTakenOver,
    /// Too few nodes answered a release.
    ReleaseUnconfirmed,
    /// A server refused before executing.
    ServerRefused,
    /// A server's error left open whether it had executed.
    ServerInDoubt,
    /// A foreign client's value stood in the way.
    ForeignHolder,
    /// A node came back without its memory.
    MemoryLost,
    /// A node came back with its memory.
    Restarted,
    /// A node's grants did not count for a while.
    TooYoung,
    /// A grant did not count.
    Uncounted,
    /// An acquire failed by the restart delay alone.
    FailedByRestartDelay,
    /// A frozen node came back and read what had been waiting.
    ThawedWithBacklog,
    /// A connection ended with answers outstanding.
    ConnectionLost,
    /// A silent connection was closed by the client.
    ConnectionClosed,
    /// A client's wall clock stepped.
    WallClockStepped,
    /// A client's process was killed.
    Killed,
    /// A node's memory was emptied while it ran.
    Flushed,
    /// All nodes forgot at the same moment.
    FlushedTogether,
    /// A client heard from a node that it may have forgotten.
    ToldOfLoss,
    /// A look went before a command, since what was known was out of date.
    LookedFirst,
    /// A node came back with an older state of itself.
    Restored,
    /// Another server took a node's place.
    Replaced,
    /// A client found that its clock had stood still.
    ClockStoodStill,
    /// An acquire waited in the queue.
    StoodInLine,
    /// An acquire waited in the queue at once, since the last release had found somebody waiting.
    HintedIntoLine,
    /// No queue could be used, and the waiter polled.
    NoLine,
    /// A key was handed over.
    HandedOver,
    /// A look found the key free, and it went to somebody who stands before.
    HandedOverByLook,
    /// A waiter's claim was granted.
    HandOverClaimed,
    /// A node that had refused granted, asked again within the round.
    GrantedAfterAll,
    /// The undo of a failed attempt handed over.
    UndoHandedOver,
    /// A client that was dead was skipped.
    DeadClientSkipped,
    /// A client that hung was skipped.
    HungClientSkipped,
    /// A vote ran out unclaimed.
    VoteRanOut,
    /// A wake-up was lost.
    WakeUpLost,
    /// A look made up for a lost wake-up.
    LostWakeUpMadeUpFor,
    /// A wake-up came twice.
    WakeUpTwice,
    /// A waiter was told that it was woken, although it was not.
    WokenFalsely,
    /// A wake-up for an owner that nobody listened for was answered by a release.
    StaleWakeUpAnswered,
    /// An owner that was released already came to wait in the queue, by a look executed late.
    DeadOwnerInLine,
    /// A head kept its vote after a failed claim.
    VoteKept,
    /// A new owner took over entry and vote, and nothing of the earlier one was left.
    TakenOver,
    /// A new owner took over on another connection, so that the earlier one was released as well.
    TakenOverElsewhere,
    /// A head gave its vote back, since a better line had answered.
    VoteGivenBack,
    /// A head that had kept its vote in vain for long gave way.
    GaveWay,
    /// Two nodes kept a queue for one key at once.
    TwoLines,
    /// A waiter moved to a better node.
    MovedToBetterNode,
    /// A waiter was given its place back by a node that had dropped it.
    PlaceGivenBack,
    /// A newcomer got the lock while a vote was on its way to somebody in the queue.
    NewcomerWon,
    /// A wait ended.
    TimedOut,
    /// An acquire looked at the memories of the nodes, and slept until they may count.
    GuardSleptOut,
    /// An acquire failed at once, since the restart delay outlasts its wait.
    GuardOutlastsWait,
    /// An acquire that does not wait asked once.
    AskedOnceInVain,
    /// A wait ended while the vote was on its way.
    WaitOverAtHandOver,
    /// A waiter was dropped.
    DroppedInLine,
    /// A waiter was dropped while the vote was on its way.
    DroppedAtHandOver,
    /// A waiter was dropped during its claim.
    DroppedWhileClaiming,
    /// A waiter that polls was handed to.
    PollerHandedTo,
    /// A client of another kind held the key at the queue's node.
    ForeignWaitedFor,
    /// A waiter looked.
    Looked,
    /// The lead among a client's waiters passed on.
    LeadPassedOn,
    /// A fencing token was handed out.
    TokenHandedOut,
    /// Nodes gave different numbers, and had to be raised.
    RaiseNeeded,
    /// A raise failed, and the attempt was undone.
    RaiseFailed,
    /// A client's clock was so far ahead of the nodes' that it was held back.
    CandidateCapped,
    /// A node's counter was at a number that no history explains.
    CounterForged,
    /// An owner that had advanced a counter claimed the node again.
    ClaimRepeated,
    /// A healed node was given the counter.
    CounterHealed,
    /// An acquire was told that no token is left.
    TokensExhausted,
    /// A token rose although a node had lost its counters.
    TokenAfterLoss,
}

/// How often each was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counters([u64; ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; ALL.len()])
    }
}

impl Counters {
    pub fn add(&mut self, seen: Seen) {
        self.0[seen as usize] += 1;
    }

    pub fn get(&self, seen: Seen) -> u64 {
        self.0[seen as usize]
    }

    pub fn merge(&mut self, other: &Counters) {
        for (total, more) in self.0.iter_mut().zip(other.0) {
            *total += more;
        }
    }

    /// What was never seen.
    pub fn missing(&self) -> Vec<&'static str> {
        ALL.iter().filter(|(seen, _)| self.get(*seen) == 0).map(|(_, what)| what.trim()).collect()
    }

    /// One line for each.
    pub fn table(&self) -> String {
        ALL.iter().map(|(seen, what)| format!("{:>12}  {}\n", self.get(*seen), what.trim())).collect()
    }
}
