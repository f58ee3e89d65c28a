//! Which nodes of a client are one server, and which of them carries another's marker as a copy.
//!
//! The run of a server tells aliases apart from independent servers. A marker is copied with the data: a replica carries that
//! of its primary, and keeps it when it is promoted. So markers are compared between nodes that are no replicas only, and a
//! promoted node, not its former primary, stands aside until it has a marker of its own.

use super::{Id, Role};

/// What a node told of itself that names it; `None` for what it did not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// The run of the server.
    pub run: Option<Id>,
    /// Its role.
    pub role: Option<Role>,
    /// Its marker.
    pub marker: Option<Id>,
    /// Its replication history.
    pub replication: Option<Id>,
    /// The history that its present one follows on, as told by a promoted replica.
    pub former: Option<Id>,
    /// The marker that it had when it was last seen as a replica.
    pub followed_with: Option<Id>,
}

/// Why a node has no vote beside another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Double {
    /// It is the same server as this earlier node, or cannot be told from it.
    SameAs(usize),
    /// It is a server of its own and carries the marker of this node, from the time when it was a replica.
    CopyOf(usize),
}

impl Double {
    /// The other node.
    pub fn other(self) -> usize {
        match self {
            Self::SameAs(other) | Self::CopyOf(other) => other,
        }
    }
}

impl Identity {
    fn is_run(&self, other: &Self) -> bool {
        self.run.is_some() && self.run == other.run
    }

    fn has_marker_of(&self, other: &Self) -> bool {
        let may_own_it = |node: &Self| node.role != Some(Role::Replica);
        self.marker.is_some() && self.marker == other.marker && may_own_it(self) && may_own_it(other)
    }

    /// Whether its marker, which is the other's as well, is a copy made by replication.
    fn replicated(&self, other: &Self) -> bool {
        let promoted = self.former.is_some() && self.former == other.replication;
        promoted || self.followed_with == self.marker
    }
}

/// Why the node of this number has no vote beside the others, if it has none. Of two nodes one always keeps its vote.
pub fn double(nodes: &[Identity], node: usize) -> Option<Double> {
    let this = nodes.get(node)?;
    let others = nodes.iter().enumerate().filter(|(number, _)| *number != node);
    let mut alike = others.filter_map(|(number, other)| {
        if this.is_run(other) {
            return (number < node).then_some(Double::SameAs(number));
        }
        if !this.has_marker_of(other) {
            return None;
        }
        match (this.replicated(other), other.replicated(this)) {
            (true, false) => Some(Double::CopyOf(number)),
            (false, true) => None,
            (true, true) | (false, false) => (number < node).then_some(Double::SameAs(number)),
        }
    });
    alike.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> Option<Id> {
        Some(Id::of(name.as_bytes()))
    }

    fn primary(run: &str, marker: &str) -> Identity {
        let (run, marker, replication) = (id(run), id(marker), id(&format!("history of {run}")));
        Identity { run, marker, replication, role: Some(Role::Primary), ..Identity::default() }
    }

    fn doubles(nodes: &[Identity]) -> Vec<Option<Double>> {
        (0..nodes.len()).map(|node| double(nodes, node)).collect()
    }

    /// Two addresses of one run are one server, also of a replica's; of two servers with one marker the later has no vote.
    #[test]
    fn the_later_of_two_has_no_vote() {
        let nodes = [primary("a", "x"), primary("b", "y"), primary("a", "z"), primary("c", "y")];
        assert_eq!(doubles(&nodes), [None, None, Some(Double::SameAs(0)), Some(Double::SameAs(1))]);
        let replica = |run, marker| Identity { role: Some(Role::Replica), ..primary(run, marker) };
        assert_eq!(doubles(&[replica("a", "x"), replica("a", "x")]), [None, Some(Double::SameAs(0))]);
        // Where the run may not be asked, the marker is all there is.
        let unknown = Identity { marker: id("x"), ..Identity::default() };
        assert_eq!(doubles(&[unknown, unknown]), [None, Some(Double::SameAs(0))]);
        assert_eq!(doubles(&[Identity::default(), Identity::default()]), [None, None]);
    }

    /// A replica's marker is no evidence, whichever of the two is named first.
    #[test]
    fn a_replica_takes_nobodys_vote() {
        let replica = Identity { role: Some(Role::Replica), ..primary("a", "x") };
        assert_eq!(doubles(&[replica, primary("b", "x")]), [None, None]);
        assert_eq!(doubles(&[primary("b", "x"), replica]), [None, None]);
    }

    /// A promoted replica stands aside, and not its former primary: by its history, or because it was seen as a replica.
    #[test]
    fn a_promoted_replica_is_the_copy() {
        let primary_of_it = primary("b", "x");
        let by_history = Identity { former: primary_of_it.replication, ..primary("a", "x") };
        let by_sight = Identity { followed_with: id("x"), ..primary("a", "x") };
        for promoted in [by_history, by_sight] {
            assert_eq!(doubles(&[promoted, primary_of_it]), [Some(Double::CopyOf(1)), None]);
            assert_eq!(doubles(&[primary_of_it, promoted]), [None, Some(Double::CopyOf(0))]);
            // With a marker of its own it is a node like any other.
            let renewed = Identity { marker: id("new"), ..promoted };
            assert_eq!(doubles(&[renewed, primary_of_it]), [None, None]);
        }
        // Each was the other's replica: one of them keeps its vote.
        let both = [by_sight, Identity { followed_with: id("x"), ..primary_of_it }];
        assert_eq!(doubles(&both), [None, Some(Double::SameAs(0))]);
    }

    /// Whatever two nodes tell, one of them keeps its vote.
    #[test]
    fn one_always_votes() {
        let roles = [None, Some(Role::Primary), Some(Role::Replica)];
        let ids = [None, id("p"), id("x")];
        let mut each = Vec::new();
        for (run, role, former) in ids
            .iter()
            .flat_map(|run| roles.iter().map(move |role| (run, role)))
            .flat_map(|(run, role)| ids.map(|former| (*run, *role, former)))
        {
            let (marker, replication, followed_with) = (id("x"), id("p"), former);
            each.push(Identity { run, role, marker, replication, former, followed_with });
        }
        for one in &each {
            for other in &each {
                let found = doubles(&[*one, *other]);
                assert!(found.iter().any(Option::is_none), "{one:?} {other:?}: {found:?}");
            }
        }
    }
}
