//! One request to all nodes, and the votes that come back.
//!
//! A round knows its votes and what they decide so far. It does not know what the request was: acquire, extend and
//! release count alike.

use std::time::Duration;

use crate::protocol::message::{Holder, HolderValue, Reply, Uncounted, Unknown};
use crate::protocol::per_node::PerNode;
use crate::protocol::quorum::{NodeId, Quorum};
use crate::protocol::time::Instant;

/// What the votes so far decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Not decided yet.
    Pending,
    /// Q nodes granted.
    Reached,
    /// So many nodes did not grant that Q cannot be reached any more.
    OutOfReach,
}

/// One node's part in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vote<'a> {
    /// What the node answered; `None` while it is asked.
    pub reply: Option<&'a Reply>,
    /// When the answer was there, from the start of the round, to the microsecond.
    pub elapsed: Duration,
}

/// A vote as it is kept. Nearly all are one of a few plain words, and a client may keep those of a hundred thousand leases.
#[derive(Clone, Copy, Default, Debug)]
struct Cast {
    word: Word,
    micros: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Word {
    #[default]
    Pending,
    Granted,
    Absent,
    NotOurs,
    /// It is in [`Round::others`].
    Other,
}

/// One request to all nodes and its votes. Upholds rule 6: decided at the earliest moment, and the verdict never
/// changes afterwards; a straggler's vote replaces "no answer" in the report, and nothing else.
#[derive(Clone, Debug)]
pub struct Round {
    quorum: Quorum,
    started: Instant,
    verdict: Verdict,
    votes: PerNode<Cast>,
    others: Vec<(NodeId, Reply)>,
}

impl Round {
    /// A round over all nodes, with its clock started at `started`: before the first byte of it is sent (rule 1).
    pub fn new(quorum: Quorum, started: Instant) -> Self {
        Self {
            quorum,
            started,
            verdict: Verdict::Pending,
            votes: PerNode::new(quorum.nodes()),
            others: Vec::new(),
        }
    }

    /// Starts a new round in the same place.
    pub fn restart(&mut self, started: Instant) {
        self.started = started;
        self.verdict = Verdict::Pending;
        self.votes.fill(Cast::default());
        self.others = Vec::new();
    }

    /// When the round's clock was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The quorum it is counted against.
    pub fn quorum(&self) -> Quorum {
        self.quorum
    }

    /// What the votes so far decide.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The votes, in the order of the nodes.
    pub fn votes(&self) -> impl Iterator<Item = Vote<'_>> {
        (0..self.votes.len()).filter_map(|index| self.vote(NodeId::new(index)))
    }

    /// One node's vote; `None` where there is no such node.
    pub fn vote(&self, node: NodeId) -> Option<Vote<'_>> {
        let cast = self.votes.get(node.index())?;
        let reply = match cast.word {
            Word::Pending => None,
            Word::Granted => Some(&Reply::Granted),
            Word::Absent => Some(&Reply::Absent),
            Word::NotOurs => Some(&Reply::NotOurs),
            Word::Other => self.others.iter().find(|(other, _)| *other == node).map(|(_, reply)| reply),
        };
        Some(Vote { reply, elapsed: Duration::from_micros(u64::from(cast.micros)) })
    }

    fn cast(&mut self, node: NodeId, reply: Reply, elapsed: Duration) {
        let Some(cast) = self.votes.get_mut(node.index()) else { return };
        let micros = u32::try_from(elapsed.as_micros()).unwrap_or(u32::MAX);
        let word = match &reply {
            Reply::Granted | Reply::Fenced(_) => Word::Granted,
            Reply::Absent => Word::Absent,
            Reply::NotOurs => Word::NotOurs,
            _ => Word::Other,
        };
        if cast.word == Word::Other {
            self.others.retain(|(other, _)| *other != node);
        }
        *cast = Cast { word, micros };
        if word == Word::Other {
            self.others.push((node, reply));
        }
    }

    /// Takes in one node's vote. A node has one vote: of two answers the first counts, except that any answer
    /// replaces [`Reply::Unknown`] in the report. An answer after the verdict never changes it.
    ///
    /// Returns whether this vote brought the verdict.
    pub fn record(&mut self, node: NodeId, reply: Reply, at: Instant) -> bool {
        let Some(vote) = self.vote(node) else { return false };
        if !matches!(vote.reply, None | Some(Reply::Unknown(_))) {
            return false;
        }
        self.cast(node, reply, at.since(self.started));
        self.decide()
    }

    /// The reply timeout is over: every node that has not answered is unknown. Returns whether this brought the
    /// verdict; afterwards the round is decided.
    pub fn expire(&mut self, now: Instant) -> bool {
        let elapsed = now.since(self.started);
        for index in 0..self.votes.len() {
            if self.votes[index].word == Word::Pending {
                self.cast(NodeId::new(index), Reply::Unknown(Unknown::Timeout(elapsed)), elapsed);
            }
        }
        self.decide()
    }

    fn decide(&mut self) -> bool {
        if self.verdict != Verdict::Pending {
            return false;
        }
        let (granted, pending) = (self.granted(), self.pending());
        self.verdict = if granted >= self.quorum.needed() {
            Verdict::Reached
        } else if granted + pending < self.quorum.needed() {
            Verdict::OutOfReach
        } else {
            Verdict::Pending
        };
        self.verdict != Verdict::Pending
    }

    fn count(&self, counts: impl Fn(Option<&Reply>) -> bool) -> usize {
        self.votes().filter(|vote| counts(vote.reply)).count()
    }

    /// How many nodes granted.
    pub fn granted(&self) -> usize {
        self.count(|reply| matches!(reply, Some(Reply::Granted)))
    }

    /// How many nodes have not answered yet.
    pub fn pending(&self) -> usize {
        self.count(|reply| reply.is_none())
    }

    /// How many nodes hold the key for somebody else.
    pub fn held(&self) -> usize {
        self.count(|reply| matches!(reply, Some(Reply::Held(_))))
    }

    /// How many nodes granted, but do not count for a while.
    fn young(&self) -> usize {
        self.count(|reply| matches!(reply, Some(Reply::Uncounted(Uncounted::TooYoung { .. }))))
    }

    /// Whether nothing but the restart delay stands in the way, as far as the votes tell: with the young nodes, the
    /// grants would be enough.
    pub fn is_young_only(&self) -> bool {
        self.young() > 0 && self.granted() + self.young() >= self.quorum.needed()
    }

    /// When so many of the young nodes count that the grants would be enough; where they would not, when the last
    /// of them counts. `None` without a young node.
    pub fn guarded_until(&self) -> Option<Instant> {
        let mut ends: Vec<_> = self
            .votes()
            .filter_map(|vote| match vote.reply {
                Some(Reply::Uncounted(Uncounted::TooYoung { until })) => Some(*until),
                _ => None,
            })
            .collect();
        ends.sort_unstable();
        let missing = self.quorum.needed().saturating_sub(self.granted());
        ends.get(missing.saturating_sub(1)).or(ends.last()).copied()
    }

    /// How many nodes certainly do not carry our owner.
    pub fn denied(&self) -> usize {
        self.count(|reply| reply.is_some_and(Reply::denies_ownership))
    }

    /// Whether the answers would still allow a quorum if the fencing counters of some nodes were not at their end.
    pub fn is_spent(&self) -> bool {
        let spent = self.count(|reply| matches!(reply, Some(Reply::CounterExhausted)));
        spent > 0 && self.granted() + spent + self.pending() >= self.quorum.needed()
    }

    /// Whether the answers would still allow a quorum if those that hold the key for somebody else had granted: then
    /// it is contention that stands in the way, and no outage.
    pub fn is_contention(&self) -> bool {
        let ours = self.granted() + self.young();
        self.held() > 0 && ours + self.held() + self.pending() >= self.quorum.needed()
    }

    /// The one value that a quorum of nodes may all carry, as far as the votes tell: a holder to wait for. `None`
    /// after a split vote, where everybody has to step back.
    pub fn majority_holder(&self) -> Option<&HolderValue> {
        let needed = self.quorum.needed();
        let silent = self.count(|reply| {
            !matches!(
                reply,
                Some(Reply::Granted | Reply::Uncounted(_) | Reply::Held(_) | Reply::Absent | Reply::NotOurs)
            )
        });
        let mut values = self.votes().filter_map(|vote| match vote.reply {
            Some(Reply::Held(holder)) => Some(&holder.value),
            _ => None,
        });
        values.find(|value| {
            let same = self.count(|reply| match reply {
                Some(Reply::Held(holder)) => holder.value == **value || holder.value == HolderValue::Unnamed,
                _ => false,
            });
            same + silent >= needed
        })
    }

    /// Whether the nodes that answered show one holder on what can be a quorum of them. Unlike
    /// [`Round::majority_holder`], a node that cannot be asked speaks for nobody, and `ours` has given us its vote.
    pub fn shows_a_holder(&self, ours: NodeId) -> bool {
        let open = self.votes().enumerate();
        let pending = open.filter(|(node, vote)| *node != ours.index() && vote.reply.is_none()).count();
        self.votes().any(|vote| match vote.reply {
            Some(Reply::Held(Holder { value, .. })) => {
                let same = |reply: &Reply| matches!(reply, Reply::Held(other) if other.value == *value);
                self.count(|reply| reply.is_some_and(same)) + pending >= self.quorum.needed()
            }
            _ => false,
        })
    }

    /// The shortest remaining life of the key among the nodes that told, which is when asking again may help.
    pub fn shortest_remaining(&self) -> Option<Duration> {
        let remaining = self.votes().filter_map(|vote| match vote.reply {
            Some(Reply::Held(holder)) => holder.remaining,
            _ => None,
        });
        remaining.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::{Owner, Unknown};

    fn round(nodes: usize) -> Round {
        Round::new(Quorum::of(nodes).unwrap(), Instant::default())
    }

    fn held_by(byte: u8) -> Reply {
        Reply::Held(Holder { value: HolderValue::Owner(Owner::from_bytes([byte; 16])), remaining: None })
    }

    fn record(round: &mut Round, node: usize, reply: Reply) -> bool {
        round.record(NodeId::new(node), reply, Instant::default())
    }

    /// Casts the votes of the first nodes.
    fn cast(round: &mut Round, votes: impl IntoIterator<Item = Reply>) {
        for (node, reply) in votes.into_iter().enumerate() {
            record(round, node, reply);
        }
    }

    /// A round of five nodes, after these votes.
    fn after(votes: &[Reply]) -> Round {
        let mut round = round(5);
        cast(&mut round, votes.iter().cloned());
        round
    }

    fn down() -> Reply {
        Reply::NotSent(crate::protocol::message::NotSent::Suspect)
    }

    /// Rule 6: success at Q grants, with two nodes still silent.
    #[test]
    fn reached_at_the_qth_grant() {
        let mut round = round(5);
        assert!(!record(&mut round, 0, Reply::Granted));
        assert!(!record(&mut round, 1, Reply::Granted));
        assert!(record(&mut round, 2, Reply::Granted));
        assert_eq!(round.verdict(), Verdict::Reached);
    }

    /// Rule 6: failure as soon as Q is out of reach.
    #[test]
    fn out_of_reach_before_the_last_answer() {
        let mut round = round(5);
        for node in 0..3 {
            record(&mut round, node, held_by(1));
        }
        assert_eq!(round.verdict(), Verdict::OutOfReach);
        assert_eq!(round.pending(), 2);
    }

    /// Rule 5: unknown is never counted as a grant, and a late grant does not change the verdict.
    #[test]
    fn late_grant_is_reported_and_changes_nothing() {
        let mut round = round(3);
        record(&mut round, 0, Reply::Granted);
        assert!(round.expire(Instant::default()));
        assert_eq!(round.verdict(), Verdict::OutOfReach);

        assert!(!record(&mut round, 1, Reply::Granted));
        assert_eq!(round.verdict(), Verdict::OutOfReach);
        assert_eq!(round.granted(), 2);
    }

    #[test]
    fn a_node_votes_once() {
        let mut round = round(3);
        record(&mut round, 0, held_by(1));
        record(&mut round, 0, Reply::Granted);
        assert_eq!(round.granted(), 0);
        assert!(!round.record(NodeId::new(7), Reply::Granted, Instant::default()), "no such node");
    }

    /// The caller can tell contention from an outage.
    #[test]
    fn contention_and_outage_are_told_apart() {
        assert!(after(&[down(), down(), held_by(1), held_by(1), held_by(1)]).is_contention());
        assert!(!after(&[down(), down(), down(), held_by(1), held_by(1)]).is_contention());
    }

    /// A majority holder is waited for; a split vote is not.
    #[test]
    fn split_vote_has_no_majority_holder() {
        let held = after(&[Reply::Granted, held_by(1), held_by(1), held_by(1)]);
        assert_eq!(held.majority_holder(), Some(&HolderValue::Owner(Owner::from_bytes([1; 16]))));

        let split = after(&[Reply::Granted, Reply::Granted, held_by(1), held_by(1), held_by(2)]);
        assert_eq!(split.majority_holder(), None);
    }

    /// Every vote comes back as it was cast; the plain ones take no room, nor does what another has replaced.
    #[test]
    fn votes_are_kept_as_they_were_cast() {
        let unknown = || Reply::Unknown(Unknown::Closed);
        let mut round = round(5);
        let votes = [Reply::Granted, Reply::Absent, Reply::NotOurs, unknown(), unknown()];
        for (node, reply) in votes.iter().enumerate() {
            record(&mut round, node, reply.clone());
        }
        let cast: Vec<_> = round.votes().map(|vote| vote.reply.cloned()).collect();
        assert_eq!(cast, votes.map(Some));
        assert_eq!(round.others.len(), 2);

        record(&mut round, 3, Reply::Absent);
        assert_eq!(round.vote(NodeId::new(4)).unwrap().reply, Some(&unknown()));
        record(&mut round, 4, held_by(1));
        let cast: Vec<_> = round.votes().skip(3).map(|vote| vote.reply.cloned()).collect();
        assert_eq!(cast, [Some(Reply::Absent), Some(held_by(1))]);
        assert_eq!(round.others.len(), 1);
    }

    /// Nothing but the delay stands in the way where there are young nodes, and with them the grants would be enough.
    #[test]
    fn the_guard_alone_stands_in_the_way() {
        let young = || Reply::Uncounted(Uncounted::TooYoung { until: Instant::FAR_FUTURE });
        for (grants, guards, alone) in
            [(2, 1, true), (1, 2, true), (0, 3, true), (1, 1, false), (0, 2, false), (3, 0, false)]
        {
            let mut round = round(5);
            let votes =
                std::iter::repeat_n(Reply::Granted, grants).chain(std::iter::repeat_with(young).take(guards));
            cast(&mut round, votes);
            assert_eq!(round.is_young_only(), alone, "{grants} grants, {guards} young");
        }
    }

    /// Contention takes somebody who holds the key; grants, uncounted grants, refusals and open votes together must make a quorum.
    #[test]
    fn contention_takes_a_holder() {
        let young = || Reply::Uncounted(Uncounted::TooYoung { until: Instant::FAR_FUTURE });
        let cases: [(&[Reply], bool); 4] = [
            (&[Reply::Granted, young(), held_by(1), down(), down()], true),
            (&[Reply::Granted, Reply::Granted, down(), down()], false),
            (&[held_by(1), down(), down()], true),
            (&[held_by(1), down(), down(), down()], false),
        ];
        for (votes, contention) in cases {
            assert_eq!(after(votes).is_contention(), contention, "{votes:?}");
        }
    }

    /// Counters at their end stand in the way where there are some, and a quorum could be had without that.
    #[test]
    fn spent_counters_stand_in_the_way() {
        let spent = || Reply::CounterExhausted;
        let cases: [(&[Reply], bool); 5] = [
            (&[spent(), spent(), spent()], true),
            (&[Reply::Granted, spent(), spent(), down(), down()], true),
            (&[spent(), down(), down()], true),
            (&[spent(), down(), down(), down()], false),
            (&[Reply::Granted, Reply::Granted, down(), down()], false),
        ];
        for (votes, is_spent) in cases {
            assert_eq!(after(votes).is_spent(), is_spent, "{votes:?}");
        }
    }

    /// A holder shows where those who named it, and those who have not answered but the node that voted for us, may be a quorum.
    #[test]
    fn a_holder_shows_on_what_can_be_a_quorum() {
        let (ours, granted) = (4, Reply::Granted);
        let cases: [(&[Reply], bool); 6] = [
            (&[held_by(1), held_by(1), held_by(1), granted.clone(), granted.clone()], true),
            (&[held_by(1), held_by(1), granted.clone()], true),
            (&[held_by(1), held_by(1), granted.clone(), granted.clone()], false),
            (&[held_by(1), held_by(1), held_by(2), down(), down()], false),
            (&[held_by(1), granted.clone(), granted.clone()], false),
            (&[granted.clone(), granted.clone(), granted], false),
        ];
        for (votes, shows) in cases {
            assert_eq!(after(votes).shows_a_holder(NodeId::new(ours)), shows, "{votes:?}");
        }
        let whole = after(&[held_by(1), held_by(1), held_by(1), Reply::Granted, Reply::Granted]);
        assert!(whole.majority_holder().is_some(), "all have answered, and three name one");
    }

    /// Of the lives that nodes told, the shortest.
    #[test]
    fn the_shortest_life_is_told() {
        let held = |millis: Option<u64>| {
            Reply::Held(Holder { value: HolderValue::Unnamed, remaining: millis.map(Duration::from_millis) })
        };
        let mut round = round(5);
        assert_eq!(round.shortest_remaining(), None);
        cast(&mut round, [held(Some(50)), held(None), held(Some(30)), down()]);
        assert_eq!(round.shortest_remaining(), Some(Duration::from_millis(30)));
    }
}
