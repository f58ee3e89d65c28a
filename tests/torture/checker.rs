//! The laws, checked on what clients wrote down. Shares no code with the library.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::history::{End, Fault, Hold, Kind, Request, Target};
use super::time::Nanos;

const MS: Nanos = 1_000_000;

/// How long a node stands aside that may have forgotten something: the longest TTL, the drift allowance, and a look at it.
const GUARD: Nanos = 2_100 * MS;

/// What a client may take to notice that a node is well again, and to connect.
const NOTICE: Nanos = 1_000 * MS;

/// Where nothing went wrong for so long, nothing of it lingers.
const CALM: Nanos = 6_000 * MS;

/// Two who ask at nearly the same time may reach the line in either order: a client may be without a processor for a while
/// between writing down that it asks and asking.
const SAME_TIME: Nanos = 500 * MS;

/// What was found.
#[derive(Default, Debug)]
pub struct Findings {
    pub acquisitions: usize,
    pub failures: BTreeMap<String, usize>,
    /// Two valid holds of one lock at a time.
    pub overlaps: Vec<String>,
    /// A token that is not above that of an earlier holder.
    pub inversions: Vec<String>,
    /// Granted before somebody who had asked clearly earlier, while all was well.
    pub overtakings: Vec<String>,
    /// Pairs in line that this was looked at for.
    pub in_order: usize,
    /// Requests for free locks while a quorum was well all the time, and those of them not granted within a second.
    pub available: (usize, Vec<String>),
    /// After a majority was away: from its return to each client's next grant of a free lock, in order.
    pub healing: Vec<Nanos>,
    /// The longest wait of a request that was granted, by lock.
    pub longest: BTreeMap<String, Nanos>,
}

impl Findings {
    /// What must not be, in words; nothing where all laws held.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut law = |name: &str, cases: &[String]| {
            if let Some(first) = cases.first() {
                broken.push(format!("{name}, {} times, first: {first}", cases.len()));
            }
        };
        law("two holders at a time", &self.overlaps);
        law("a token that does not rise", &self.inversions);
        law("overtaken in line", &self.overtakings);
        broken
    }

    /// The share of requests that were granted in time.
    pub fn availability(&self) -> f64 {
        let (asked, late) = &self.available;
        1.0 - late.len() as f64 / (*asked).max(1) as f64
    }

    /// The time after which so large a share of clients had a grant again.
    pub fn healed(&self, share: f64) -> Nanos {
        let last = self.healing.len().saturating_sub(1);
        self.healing
            .get(((self.healing.len() as f64 * share) as usize).min(last))
            .copied()
            .unwrap_or_default()
    }
}

/// Who was where: the clients' places and processes, and when each process lived.
pub struct Lives(pub Vec<(usize, u32, Nanos, Nanos)>);

impl Lives {
    fn place(&self, process: u32) -> usize {
        self.0.iter().find(|life| life.1 == process).map_or(usize::MAX, |life| life.0)
    }
}

/// Checks everything.
pub fn check(requests: &[Request], faults: &[Fault], lives: &Lives, nodes: usize) -> Findings {
    let mut findings = Findings::default();
    let mut by_key: HashMap<&str, Vec<&Request>> = HashMap::new();
    for request in requests {
        by_key.entry(&request.key).or_default().push(request);
        match &request.end {
            End::Held(hold) => {
                findings.acquisitions += 1;
                let longest = findings.longest.entry(kind_of(&request.key).to_owned()).or_default();
                *longest = (*longest).max(hold.granted - request.asked);
            }
            End::Failed { why, .. } => *findings.failures.entry(why.clone()).or_default() += 1,
            End::Open => {}
        }
    }
    for (key, requests) in &by_key {
        let mut holds: Vec<&Request> =
            requests.iter().copied().filter(|request| request.hold().is_some()).collect();
        holds.sort_by_key(|request| granted(request));
        overlaps(key, &holds, &mut findings.overlaps);
        inversions(key, &holds, &mut findings.inversions);
        if *key == "line" {
            order(&holds, faults, lives, &mut findings);
        }
    }
    availability(requests, faults, lives, nodes, &mut findings);
    healing(requests, faults, lives, nodes, &mut findings);
    findings
}

/// What a lock is for, by the beginning of its name.
pub fn kind_of(key: &str) -> &str {
    key.split('-').next().unwrap_or(key)
}

fn granted(request: &Request) -> Nanos {
    request.hold().map_or(Nanos::MAX, |hold| hold.granted)
}

fn said(request: &Request, hold: &Hold) -> String {
    format!("process {} task {} held from {} to {}", request.process, request.task, hold.granted, hold.ended)
}

fn overlaps(key: &str, holds: &[&Request], found: &mut Vec<String>) {
    let mut last: Option<(&Request, &Hold)> = None;
    for request in holds {
        let Some(hold) = request.hold() else { continue };
        if let Some((earlier, before)) = last
            && hold.granted < before.ended
        {
            found.push(format!("{key}: {}, {}", said(earlier, before), said(request, hold)));
        }
        if last.is_none_or(|(_, before)| hold.ended > before.ended) {
            last = Some((request, hold));
        }
    }
}

fn inversions(key: &str, holds: &[&Request], found: &mut Vec<String>) {
    let mut greatest = 0;
    for request in holds {
        let Some(hold) = request.hold().filter(|hold| hold.token > 0) else { continue };
        if hold.token <= greatest {
            found.push(format!("{key}: token {} after {greatest}, {}", hold.token, said(request, hold)));
        }
        greatest = greatest.max(hold.token);
    }
}

/// While all has been well for a while, grants come in the order in which was asked.
fn order(holds: &[&Request], faults: &[Fault], lives: &Lives, findings: &mut Findings) {
    let calm = |from: Nanos, to: Nanos| {
        faults.iter().all(|fault| fault.to + CALM < from || fault.from > to)
            // A client that has just started may not have reached the node that keeps the line.
            && lives.0.iter().all(|life| life.2 + CALM < from || life.2 > to)
    };
    for pair in holds.windows(2) {
        let [first, second] = pair else { continue };
        if !calm(first.asked.min(second.asked), granted(second)) {
            continue;
        }
        findings.in_order += 1;
        if second.asked + SAME_TIME < first.asked {
            findings.overtakings.push(format!(
                "process {} task {} asked at {} and was granted at {}, before process {} task {}, which had asked at {}",
                first.process,
                first.task,
                first.asked,
                granted(first),
                second.process,
                second.task,
                second.asked,
            ));
        }
    }
}

/// How long after its end a fault may still be felt.
fn lingers(kind: Kind) -> Nanos {
    match kind {
        // Not reached in its second, or asked to prove its memory first.
        Kind::Crashed
        | Kind::Wiped
        | Kind::FlushedAll
        | Kind::Restored
        | Kind::Promoted
        | Kind::SteppedNode => GUARD + NOTICE,
        Kind::Slow | Kind::FlushedScripts | Kind::SteppedClock => 0,
        _ => NOTICE,
    }
}

/// Whether a fault keeps a node from voting at all.
fn keeps_from_voting(kind: Kind) -> bool {
    !matches!(kind, Kind::Slow | Kind::FlushedScripts)
}

/// The nodes that were not well at some moment between two.
fn unwell(faults: &[Fault], from: Nanos, to: Nanos) -> HashSet<usize> {
    let hit = faults.iter().filter(|fault| keeps_from_voting(fault.kind));
    let hit = hit.filter(|fault| fault.from <= to && from <= fault.to + lingers(fault.kind));
    hit.filter_map(|fault| match fault.target {
        Target::Node(node) => Some(node),
        Target::Client(_) => None,
    })
    .collect()
}

fn availability(
    requests: &[Request],
    faults: &[Fault],
    lives: &Lives,
    nodes: usize,
    findings: &mut Findings,
) {
    let second = 1_000 * MS;
    for request in requests.iter().filter(|request| kind_of(&request.key) == "free") {
        let (from, to) = (request.asked, request.asked + second);
        let place = lives.place(request.process);
        let disturbed = faults.iter().any(|fault| {
            fault.target == Target::Client(place)
                && fault.from <= to
                && from <= fault.to + lingers(fault.kind)
        });
        let alive =
            lives.0.iter().any(|life| life.1 == request.process && life.2 + 2 * second < from && to < life.3);
        let given_up = matches!(&request.end, End::Failed { why, .. } if why == "dropped");
        if disturbed || !alive || given_up || nodes - unwell(faults, from, to).len() <= nodes / 2 {
            continue;
        }
        findings.available.0 += 1;
        if granted(request) > to {
            findings.available.1.push(format!("{request:?}"));
        }
    }
}

/// From the moment at which a majority can vote again to each client's first grant of a free lock.
fn healing(requests: &[Request], faults: &[Fault], lives: &Lives, nodes: usize, findings: &mut Findings) {
    // Faults that keep what nodes remember: they vote as soon as they answer.
    let passing =
        |kind| matches!(kind, Kind::Frozen | Kind::BlackHole | Kind::Disconnected | Kind::LostReplies);
    let places: HashSet<usize> = lives.0.iter().map(|life| life.0).collect();
    let mut ends: Vec<Nanos> =
        faults.iter().filter(|fault| passing(fault.kind)).map(|fault| fault.to).collect();
    ends.sort_unstable();
    ends.dedup_by(|later, earlier| *later - *earlier < 50 * MS);
    for healed in ends {
        let before = faults.iter().filter(|fault| keeps_from_voting(fault.kind) && passing(fault.kind));
        let away = before.filter(|fault| fault.from < healed && fault.to + 50 * MS > healed).count();
        let others = faults.iter().any(|fault| {
            !passing(fault.kind)
                && fault.from <= healed + 2_000 * MS
                && healed <= fault.to + lingers(fault.kind) + GUARD
        });
        let again = faults.iter().any(|fault| fault.from > healed && fault.from < healed + 2_000 * MS);
        if away <= nodes / 2 || others || again {
            continue;
        }
        for place in &places {
            let first = requests
                .iter()
                .filter(|request| kind_of(&request.key) == "free" && lives.place(request.process) == *place)
                .map(granted)
                .filter(|granted| *granted > healed && *granted != Nanos::MAX)
                .min();
            findings.healing.extend(first.map(|granted| granted - healed));
        }
    }
    findings.healing.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(asked: Nanos, granted: Nanos, ended: Nanos, token: u64) -> Request {
        let end = End::Held(Hold { granted, ended, token });
        Request { process: 1, task: 0, key: "line".to_owned(), asked, end }
    }

    fn found(requests: &[Request]) -> Findings {
        check(requests, &[], &Lives(vec![(0, 1, 0, Nanos::MAX)]), 5)
    }

    /// One after the other breaks no law.
    #[test]
    fn good_histories_pass() {
        let asked = 10_000 * MS;
        let findings =
            found(&[held(asked, asked + 10, asked + 20, 7), held(asked + 5, asked + 20, asked + 30, 8)]);
        assert_eq!(findings.broken(), [""; 0]);
        assert_eq!((findings.acquisitions, findings.in_order), (2, 1));
    }

    /// A hold that begins within another is found, also where the earlier one lasts beyond one in between.
    #[test]
    fn overlaps_are_found() {
        assert_eq!(found(&[held(0, 10, 20, 0), held(0, 19, 30, 0)]).overlaps.len(), 1);
        assert_eq!(found(&[held(0, 10, 90, 0), held(0, 11, 12, 0), held(0, 80, 95, 0)]).overlaps.len(), 2);
    }

    /// A token that is equal or smaller is found, whatever came in between.
    #[test]
    fn inversions_are_found() {
        assert_eq!(found(&[held(0, 10, 20, 7), held(0, 30, 40, 7)]).inversions.len(), 1);
        assert_eq!(found(&[held(0, 10, 20, 7), held(0, 30, 40, 0), held(0, 50, 60, 6)]).inversions.len(), 1);
    }

    /// Who asked clearly later and was granted first is found; nearly at the same time it is no matter.
    #[test]
    fn overtaking_is_found() {
        let (early, late) = (10_000 * MS, 11_000 * MS);
        let findings = found(&[held(late, late + 1, late + 2, 0), held(early, late + 3, late + 4, 0)]);
        assert_eq!(findings.overtakings.len(), 1);
        let findings =
            found(&[held(late, late + 1, late + 2, 0), held(late - 5 * MS, late + 3, late + 4, 0)]);
        assert_eq!(findings.broken(), [""; 0]);
    }

    /// A free lock that is not granted within a second while a quorum is well is counted; with a majority away it is not.
    #[test]
    fn unavailability_is_found() {
        let asked = 10_000 * MS;
        let slow =
            Request { key: "free-1".to_owned(), ..held(asked, asked + 1_500 * MS, asked + 1_600 * MS, 0) };
        let lives = Lives(vec![(0, 1, 0, Nanos::MAX)]);
        let away = |node| Fault {
            kind: Kind::Frozen,
            target: Target::Node(node),
            from: asked,
            to: asked + 1_400 * MS,
        };
        let faults: Vec<_> = (0..3).map(away).collect();
        let requests = [slow];
        let late = |faults: &[Fault]| check(&requests, faults, &lives, 5).available.1.len();
        assert_eq!((late(&[]), late(&faults[..2]), late(&faults)), (1, 1, 0));
        assert_eq!(check(&requests, &faults, &lives, 5).healing, [100 * MS]);
    }
}
