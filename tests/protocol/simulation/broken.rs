//! Broken on purpose: one assumption or rule at a time, at the boundary between the protocol and its world.
//!
//! A checker that cannot fail proves nothing. Each switch falsifies what the protocol is told, or leaves undone what
//! it asks for; nothing inside the protocol knows of switches. Each names the law whose checker must notice.

use super::laws::Law;

/// One assumption or rule to break.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    QuorumLessOne,
    DriftBeyondBound,
    ServerClockSteps,
    MemoryLossUnguarded,
    RestartDelayTooShort,
    OlderStateUnnoticed,
    ReplicaIsRestart,
    FlushUnheard,
    StandingGoesOn,
    StandstillUnnoticed,
    WallClock,
    ClockSleeps,
    ValidityFromReplies,
    ValidAfterRelease,
    ValidityUnchecked,
    OwnerReused,
    HealsAfterRelease,
    UndoOnlyGrants,
    DebtForgottenAtDoor,
    DenialSettles,
    OrderNotKept,
    BlindDelete,
    UnknownCounts,
    AbsentCounts,
    HealedCounts,
    ExpiredRevived,
    HealsExpired,
    ExtensionShortens,
    LivesAreSet,
    AsksForLess,
    HealsUnconfirmed,
    ExtendsAfterRelease,
    ExtensionFromReplies,
    AsksTwice,
    WaitsForAll,
    DebtsNeverEnd,
    DebtsEndEarly,
    KeysOutliveTtl,
    SuspectForEver,
    FullNodeWaits,
    WakeUpIsGrant,
    VoteIsGrant,
    HeadKeepsItsOwner,
    LeavesWithoutRelease,
    HandsOverToReleased,
    ReleasesWithoutHandOver,
    UndoWithoutHandOver,
    StaleWakeUpIgnored,
    ListensAfterRelease,
    WakeUpsUnheard,
    NeverWokenNorLooking,
    HeadGivesUpItsVote,
    HeadsNeverGiveWay,
    ClientsClockOrders,
    PlaceNotGivenBack,
    EverybodyLooks,
    NeverReturns,
    LinesAreNotLeft,
    WaitsOn,
    LeadersNeverLook,
    NobodyIsMoved,
    UnreachedIsRefused,
    GoesOnAfterTheEnd,
    NoRaise,
    TokenOfAllNodes,
    CandidateUncapped,
    AnyNumberCounts,
    CappedByEachNode,
    CountersLost,
    ClocksApart,
    CounterLeftBehind,
}

/// Every switch, with its name on the command line and what it breaks.
pub const ALL: &[(Switch, &str, &str)] = &[
    (Switch::QuorumLessOne, "quorum-less-one", "an acquire succeeds at Q − 1 grants"),
    (Switch::DriftBeyondBound, "drift-beyond-bound", "node clocks run 2 to 10 % fast"),
    (Switch::ServerClockSteps, "server-clock-steps", "node clocks jump ahead"),
    (Switch::MemoryLossUnguarded, "memory-loss-unguarded", "a node without memory votes at once"),
    (
        Switch::RestartDelayTooShort,
        "guard-too-short",
        "the restart delay is for a shorter TTL than the longest in use",
    ),
    (
        Switch::OlderStateUnnoticed,
        "older-state-unnoticed",
        "a durable node with an older state is taken for the one it was",
    ),
    (
        Switch::ReplicaIsRestart,
        "replica-is-restart",
        "another server in a node's place is taken for a restart",
    ),
    (Switch::FlushUnheard, "flush-unheard", "clients do not hear that the nodes forgot"),
    (Switch::StandingGoesOn, "standing-goes-on", "what a look showed holds for ever"),
    (
        Switch::StandstillUnnoticed,
        "standstill-unnoticed",
        "clients that stood still, and their clock with them, do not notice",
    ),
    (Switch::WallClock, "wall-clock", "clients read the wall clock, which steps back"),
    (Switch::ClockSleeps, "clock-sleeps", "clients read a clock that stands still while they do"),
    (Switch::ValidityFromReplies, "validity-from-replies", "validity counts from after the replies"),
    (Switch::ValidAfterRelease, "valid-after-release", "the holder acts on until the release is answered"),
    (Switch::ValidityUnchecked, "validity-unchecked", "validity is not checked again after the last reply"),
    (Switch::OwnerReused, "owner-reused", "the next attempt uses the owner that was undone"),
    (Switch::HealsAfterRelease, "heals-after-release", "a straggling \"absent\" is healed after the release"),
    (Switch::UndoOnlyGrants, "undo-only-grants", "undo and release go only to nodes that said yes"),
    (Switch::DebtForgottenAtDoor, "debt-forgotten-at-door", "a release that could not be sent is forgotten"),
    (Switch::DenialSettles, "denial-settles", "\"not yours\" on another connection settles a debt"),
    (Switch::OrderNotKept, "order-not-kept", "a connection delivers out of order"),
    (Switch::BlindDelete, "blind-delete", "a release deletes whatever is there"),
    (Switch::UnknownCounts, "unknown-counts", "an unknown outcome counts as a grant"),
    (Switch::AbsentCounts, "absent-counts", "an extension counts nodes that lost the key"),
    (Switch::HealedCounts, "healed-counts", "an extension sets missing keys and counts them"),
    (Switch::ExpiredRevived, "expired-revived", "an extension revives an expired lease"),
    (Switch::HealsExpired, "heals-expired", "a straggling \"absent\" is healed after the end of validity"),
    (Switch::ExtensionShortens, "extension-shortens", "an extension may end earlier than before"),
    (Switch::LivesAreSet, "lives-are-set", "nodes set the life that is asked for, though more may be left"),
    (
        Switch::AsksForLess,
        "asks-for-less",
        "an extension asks for less than what is left, of nodes that set what is asked for",
    ),
    (Switch::HealsUnconfirmed, "heals-unconfirmed", "an extension heals before a quorum has confirmed it"),
    (Switch::ExtendsAfterRelease, "extends-after-release", "a released lease is extended once more"),
    (
        Switch::ExtensionFromReplies,
        "extension-from-replies",
        "an extension's validity counts from after its replies",
    ),
    (Switch::AsksTwice, "asks-twice", "every send is made twice"),
    (Switch::WaitsForAll, "waits-for-all", "an acquire waits for all nodes"),
    (Switch::DebtsNeverEnd, "debts-never-end", "debts are kept for ever"),
    (Switch::DebtsEndEarly, "debts-end-early", "debts end before the key must be gone"),
    (Switch::KeysOutliveTtl, "keys-outlive-ttl", "nodes keep keys beyond their TTL"),
    (Switch::SuspectForEver, "suspect-for-ever", "a node that was suspect once is never used again"),
    (
        Switch::FullNodeWaits,
        "full-node-waits",
        "a full node turns releases away, and their debts wait as if it were down",
    ),
    (Switch::WakeUpIsGrant, "wake-up-is-grant", "a woken waiter holds the lock without a claim of all nodes"),
    (Switch::VoteIsGrant, "vote-is-grant", "the vote of the queue's node counts as its grant"),
    (
        Switch::HeadKeepsItsOwner,
        "head-keeps-its-owner",
        "after a failed claim the undone owner waits in the queue again",
    ),
    (Switch::LeavesWithoutRelease, "leaves-without-release", "a waiter leaves the queue without a word"),
    (Switch::HandsOverToReleased, "hands-over-to-released", "a node hands over to an owner released before"),
    (Switch::ReleasesWithoutHandOver, "releases-without-hand-over", "releases delete, whoever waits"),
    (
        Switch::UndoWithoutHandOver,
        "undo-without-hand-over",
        "the undo of a failed attempt deletes, whoever waits",
    ),
    (Switch::StaleWakeUpIgnored, "stale-wake-up-ignored", "a wake-up for an unknown owner is ignored"),
    (
        Switch::ListensAfterRelease,
        "listens-after-release",
        "a waiter that stands aside still hears wake-ups of the owner it released",
    ),
    (Switch::WakeUpsUnheard, "wake-ups-unheard", "clients do not listen for wake-ups"),
    (Switch::NeverWokenNorLooking, "never-woken-nor-looking", "nobody is woken, and nobody looks"),
    (
        Switch::HeadGivesUpItsVote,
        "head-gives-up-its-vote",
        "a head gives its vote back after each failed claim",
    ),
    (Switch::HeadsNeverGiveWay, "heads-never-give-way", "two heads keep the votes of two nodes for ever"),
    (Switch::ClientsClockOrders, "clients-clock-orders", "the queue is ordered by the clients' clocks"),
    (
        Switch::PlaceNotGivenBack,
        "place-not-given-back",
        "waiters do not give their place back to a node that lost it",
    ),
    (Switch::EverybodyLooks, "everybody-looks", "every waiter of a client looks for itself"),
    (
        Switch::NeverReturns,
        "never-returns",
        "a waiter that left a node for its silence does not try it again",
    ),
    (Switch::LinesAreNotLeft, "lines-are-not-left", "a node keeps those in the queue who leave"),
    (Switch::WaitsOn, "waits-on", "a waiter does not leave at the end of its wait"),
    (
        Switch::LeadersNeverLook,
        "leaders-never-look",
        "of a client's waiters the one that looks for all never looks",
    ),
    (Switch::NobodyIsMoved, "nobody-is-moved", "waiters are not told that a better node takes work again"),
    (
        Switch::UnreachedIsRefused,
        "unreached-is-refused",
        "a queue that could not be reached once is never tried again",
    ),
    (Switch::GoesOnAfterTheEnd, "goes-on-after-the-end", "an acquire asks again although no token is left"),
    (Switch::NoRaise, "no-raise", "tokens are handed out without a quorum that stands at them"),
    (
        Switch::TokenOfAllNodes,
        "token-of-all-nodes",
        "nodes grant a fenced claim and stand at a token wherever the lock is",
    ),
    (
        Switch::CandidateUncapped,
        "candidate-uncapped",
        "a client's clock advances counters as far as it likes",
    ),
    (Switch::AnyNumberCounts, "any-number-counts", "one node's number is taken, whatever it is"),
    (
        Switch::CappedByEachNode,
        "capped-by-each-node",
        "each node holds a client's clock back by its own, which may be an hour behind",
    ),
    (Switch::CountersLost, "counters-lost", "nodes lose counters and vote on"),
    (
        Switch::ClocksApart,
        "clocks-apart",
        "clients' clocks differ by more than the guard when counters are lost",
    ),
    (Switch::CounterLeftBehind, "counter-left-behind", "extending and healing leave the counter behind"),
];

impl Switch {
    /// The switch of this name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, known, _)| *known == name).map(|(switch, _, _)| *switch)
    }

    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// The law whose checker must find it.
    pub fn law(self) -> Law {
        match self {
            Self::QuorumLessOne
            | Self::DriftBeyondBound
            | Self::ServerClockSteps
            | Self::MemoryLossUnguarded
            | Self::RestartDelayTooShort
            | Self::OlderStateUnnoticed
            | Self::ReplicaIsRestart
            | Self::FlushUnheard
            | Self::StandingGoesOn
            | Self::StandstillUnnoticed
            | Self::WallClock
            | Self::ClockSleeps
            | Self::AsksForLess => Law::MutualExclusion,
            Self::ValidityFromReplies => Law::ValidityIsCovered,
            Self::ValidAfterRelease => Law::SilentBeforeRelease,
            Self::ValidityUnchecked => Law::MinimumValidity,
            Self::OwnerReused | Self::HealsAfterRelease => Law::OwnerIsRetired,
            Self::UndoOnlyGrants | Self::DebtForgottenAtDoor => Law::ReleaseReachesEveryWrite,
            Self::DenialSettles | Self::OrderNotKept => Law::SettledStaysClear,
            Self::BlindDelete => Law::OthersAreUntouched,
            Self::UnknownCounts => Law::OnlyGrantsCount,
            Self::AbsentCounts | Self::HealedCounts => Law::StillHeldByQuorum,
            Self::ExpiredRevived => Law::ExpiredIsNotExtended,
            Self::HealsExpired => Law::HealsOnlyWhileValid,
            Self::ExtensionShortens => Law::ExtensionNeverShortens,
            Self::LivesAreSet => Law::LivesOnlyGrow,
            Self::HealsUnconfirmed => Law::HealsAfterQuorum,
            Self::ExtendsAfterRelease => Law::NothingFollowsRelease,
            Self::ExtensionFromReplies => Law::ValidityIsCovered,
            Self::AsksTwice => Law::AskedOnce,
            Self::WaitsForAll => Law::DecidedAtOnce,
            Self::DebtsNeverEnd => Law::DebtsAreBounded,
            Self::DebtsEndEarly => Law::DebtsOutlastTheirKey,
            Self::KeysOutliveTtl => Law::NoLeftovers,
            Self::SuspectForEver
            | Self::FullNodeWaits
            | Self::NeverWokenNorLooking
            | Self::HeadsNeverGiveWay => Law::Progress,
            Self::WakeUpIsGrant => Law::MutualExclusion,
            Self::VoteIsGrant => Law::OnlyGrantsCount,
            Self::HeadKeepsItsOwner => Law::OwnerIsRetired,
            Self::LeavesWithoutRelease => Law::ReleaseReachesEveryWrite,
            Self::HandsOverToReleased => Law::HandedOnlyToTheLine,
            Self::ReleasesWithoutHandOver | Self::UndoWithoutHandOver => Law::ReleaseHandsOver,
            Self::StaleWakeUpIgnored | Self::ListensAfterRelease => Law::StaleWakeUpIsAnswered,
            Self::WakeUpsUnheard => Law::VotesAreUsed,
            Self::HeadGivesUpItsVote | Self::ClientsClockOrders => Law::FirstComeFirstServed,
            Self::PlaceNotGivenBack => Law::PlaceIsKept,
            Self::EverybodyLooks => Law::OneLooksForAll,
            Self::NeverReturns => Law::StandsAtTheBestNode,
            Self::LinesAreNotLeft => Law::NoLeftoversInLine,
            Self::WaitsOn => Law::WaitEndsInTime,
            Self::LeadersNeverLook => Law::Progress,
            Self::NobodyIsMoved => Law::StandsAtTheBestNode,
            Self::UnreachedIsRefused => Law::ContentionQueues,
            Self::GoesOnAfterTheEnd => Law::AsksNoMore,
            Self::NoRaise | Self::CappedByEachNode | Self::CountersLost | Self::ClocksApart => {
                Law::TokensRise
            }
            Self::CandidateUncapped | Self::AnyNumberCounts => Law::TokensAreBounded,
            Self::TokenOfAllNodes | Self::CounterLeftBehind => Law::TokenStandsAtQuorum,
        }
    }

    /// Whether it shows only where waiters stand at worse nodes for some time.
    pub fn is_about_moving(self) -> bool {
        self.law() == Law::StandsAtTheBestNode
    }

    /// Whether it shows only under the faults that looks notice.
    pub fn is_about_looks(self) -> bool {
        matches!(
            self,
            Self::OlderStateUnnoticed
                | Self::ReplicaIsRestart
                | Self::FlushUnheard
                | Self::StandingGoesOn
                | Self::StandstillUnnoticed
        )
    }

    /// Whether it shows only where locks are fenced.
    pub fn is_about_tokens(self) -> bool {
        let of_tokens = [Law::TokensRise, Law::TokensAreBounded, Law::TokenStandsAtQuorum, Law::AsksNoMore];
        of_tokens.contains(&self.law())
    }
}

/// The table and the enumeration are in the same order.
#[test]
fn every_switch_has_its_line() {
    for (place, (switch, name, _)) in ALL.iter().enumerate() {
        assert_eq!(*switch as usize, place, "{name}");
        assert_eq!(Switch::named(name), Some(*switch));
    }
}
