//! The report: one page that stands alone, for somebody who was not there.

use std::fmt::Write;

use super::checker::{Findings, Lives, kind_of};
use super::history::{End, Fault, Kind, Request, Target};
use super::nodes::NODES;
use super::storm::{Aftermath, CLIENTS};
use super::time::Nanos;
use super::worker::TASKS;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000 * MS;

/// The locks that all clients want.
const SHARED: [&str; 5] = ["line", "fenced", "kept", "mixed", "long"];

/// Left of the pictures: the names of rows.
const NAMES: f64 = 90.0;
const WIDTH: f64 = 1_060.0;
const ROW: f64 = 18.0;

/// Told apart by people who see few colours, on light and dark ground.
const CLIENT_COLOURS: [&str; CLIENTS] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7"];

/// What a fault means for a node, and its colour.
fn group(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Frozen | Kind::BlackHole | Kind::Disconnected | Kind::LostReplies => {
            ("does not answer", "#d55e00")
        }
        Kind::Crashed | Kind::Wiped | Kind::FlushedAll | Kind::Restored | Kind::Promoted => {
            ("down, or without memory", "#7b3294")
        }
        Kind::FullMemory | Kind::FailedSave => ("refuses", "#b8860b"),
        Kind::Reset | Kind::Slow | Kind::FlushedScripts => ("disturbed", "#56b4e9"),
        Kind::SteppedNode => ("its clock is wrong", "#a6761d"),
        Kind::Paused | Kind::Killed | Kind::SteppedClock | Kind::StoodStill => {
            ("client paused, killed, clock stepped or still", "#999999")
        }
    }
}

const STYLE: &str = "
:root { --ground: #fff; --ink: #1c2733; --soft: #5b6b7a; --line: #dde3e9; --row: #f4f7f9; --good: #1a7f4b; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ground: #11171d; --ink: #e4eaf0; --soft: #93a3b3; --line: #2b3640; --row: #18212a;
  --good: #5fce94; --bad: #ff8a80 } }
body { background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px;
  padding: 0 1rem }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem } p.note { color: var(--soft); max-width: 50rem }
.verdict { font-size: 1.3rem; font-weight: 600 } .good { color: var(--good) } .bad { color: var(--bad) }
table { border-collapse: collapse; margin: 1rem 0 } td, th { border-bottom: 1px solid var(--line); padding: .3rem 1rem .3rem 0;
  text-align: left; vertical-align: top } td.n { font-variant-numeric: tabular-nums; text-align: right }
.scroll { overflow-x: auto } svg { font: 12px system-ui, sans-serif; min-width: 900px; width: 100% }
svg text { fill: var(--soft) } .row { fill: var(--row) } .tick { stroke: var(--line) }
.key span { display: inline-block; margin-right: 1.2rem } .key i { border-radius: 3px; display: inline-block; height: .8em;
  margin-right: .4rem; width: 1.1em }
";

/// One row of the table of figures: what, how many, what is required, and whether it is met.
pub struct Figure {
    pub what: &'static str,
    pub value: String,
    pub bar: &'static str,
    pub met: bool,
}

/// The whole page.
pub fn page(
    aftermath: &Aftermath,
    requests: &[Request],
    findings: &Findings,
    figures: &[Figure],
    seed: u64,
) -> String {
    let mut html = String::new();
    let failed = figures.iter().filter(|figure| !figure.met).count();
    let (class, verdict) = match failed {
        0 => ("good", "All laws held.".to_owned()),
        _ => ("bad", format!("{failed} of {} requirements were missed.", figures.len())),
    };
    let length = (aftermath.to - aftermath.from) as f64 / 1e9;
    let _ = write!(
        html,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>redquorum under faults</title><style>{STYLE}</style><h1>redquorum under faults</h1>\
         <p class=note>{CLIENTS} client processes with {TASKS} tasks each took locks on {NODES} real servers for {length:.0} \
         seconds, while servers, connections and clients were hit by {} faults (seed {seed}). Each client wrote down when it \
         asked for a lock, got it, and until when it was told that it holds it; all of that was checked afterwards, by a \
         program that has nothing in common with the library.</p><p class='verdict {class}'>{verdict}</p>",
        aftermath.faults.len()
    );
    table(&mut html, figures);
    html.push_str("<h2>The whole time</h2>");
    html.push_str(
        "<p class=note>Above: what happened to each node and each client. Below: how many locks were granted in each second, \
         by client, and the longest wait of a grant.</p>",
    );
    key(&mut html);
    overview(&mut html, aftermath, requests);
    for (title, at) in moments(requests, &aftermath.faults) {
        let _ = write!(html, "<h2>{title}</h2>");
        detail(&mut html, aftermath, requests, at);
    }
    kinds(&mut html, aftermath, requests, findings);
    html.push_str("</html>\n");
    html
}

fn table(html: &mut String, figures: &[Figure]) {
    html.push_str("<table><tr><th>what<th>required<th>measured<th></tr>");
    for Figure { what, value, bar, met } in figures {
        let (class, mark) = if *met { ("good", "held") } else { ("bad", "missed") };
        let _ = write!(html, "<tr><td>{what}<td>{bar}<td class=n>{value}<td class={class}>{mark}</tr>");
    }
    html.push_str("</table>");
}

fn key(html: &mut String) {
    html.push_str("<p class=key>");
    let mut seen = Vec::new();
    for kind in Kind::ALL {
        let (name, colour) = group(kind);
        if !seen.contains(&name) {
            seen.push(name);
            let _ = write!(html, "<span><i style='background:{colour}'></i>{name}</span>");
        }
    }
    html.push_str("</p><p class=key>");
    for (client, colour) in CLIENT_COLOURS.iter().enumerate() {
        let _ = write!(html, "<span><i style='background:{colour}'></i>client {}</span>", client + 1);
    }
    html.push_str("</p>");
}

/// Where a moment is in a picture of the time between two.
struct Scale {
    from: Nanos,
    to: Nanos,
}

impl Scale {
    fn x(&self, at: Nanos) -> f64 {
        let at = at.clamp(self.from, self.to);
        NAMES + (at - self.from) as f64 / (self.to - self.from) as f64 * WIDTH
    }

    fn shows(&self, from: Nanos, to: Nanos) -> bool {
        from < self.to && to > self.from
    }
}

fn open_svg(html: &mut String, height: f64, what: &str) {
    let width = NAMES + WIDTH + 20.0;
    let _ =
        write!(html, "<div class=scroll><svg viewBox='0 0 {width} {height}' role=img aria-label='{what}'>");
}

fn bar(
    html: &mut String,
    scale: &Scale,
    (from, to): (Nanos, Nanos),
    (y, height): (f64, f64),
    colour: &str,
    title: &str,
) {
    let x = scale.x(from);
    // What lasts for no time is seen all the same.
    let width = (scale.x(to) - x).max(1.5);
    let _ = write!(
        html,
        "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}' rx=1><title>{title}</title></rect>"
    );
}

fn ticks(html: &mut String, scale: &Scale, start: Nanos, height: f64) {
    let length = scale.to - scale.from;
    let steps = [SECOND, 5 * SECOND, 10 * SECOND, 60 * SECOND, 300 * SECOND, 600 * SECOND];
    let step = steps.into_iter().find(|step| length / step <= 12).unwrap_or(3_600 * SECOND);
    let mut at = start + (scale.from - start).div_ceil(step) * step;
    while at <= scale.to {
        let (x, seconds) = (scale.x(at), (at - start) / SECOND);
        let text = if step < 60 * SECOND { format!("{seconds} s") } else { format!("{} min", seconds / 60) };
        let _ = write!(
            html,
            "<line class=tick x1='{x:.1}' x2='{x:.1}' y1=0 y2='{:.1}'/><text x='{x:.1}' y='{height:.1}' \
             text-anchor=middle>{text}</text>",
            height - 14.0
        );
        at += step;
    }
}

/// The rows of nodes and clients, with what happened to each; returns where the next row begins.
fn targets(html: &mut String, scale: &Scale, faults: &[Fault]) -> f64 {
    let rows = (0..NODES).map(|node| (Target::Node(node), format!("node {}", node + 1)));
    let rows =
        rows.chain((0..CLIENTS).map(|client| (Target::Client(client), format!("client {}", client + 1))));
    let mut y = 4.0;
    for (target, name) in rows {
        let _ = write!(
            html,
            "<text x=0 y='{:.1}'>{name}</text><rect class=row x='{NAMES}' y='{y:.1}' width='{WIDTH}' height='{:.1}'/>",
            y + 13.0,
            ROW - 3.0
        );
        for fault in faults.iter().filter(|fault| fault.target == target && scale.shows(fault.from, fault.to))
        {
            let (_, colour) = group(fault.kind);
            let title = format!("{}, {} ms", fault.kind.name(), (fault.to - fault.from) / MS);
            bar(html, scale, (fault.from, fault.to), (y, ROW - 3.0), colour, &title);
        }
        y += ROW;
    }
    y
}

fn overview(html: &mut String, aftermath: &Aftermath, requests: &[Request]) {
    const HEIGHT: f64 = 120.0;
    let scale = Scale { from: aftermath.from, to: aftermath.to };
    let rows = (NODES + CLIENTS) as f64 * ROW + 12.0;
    let total = rows + 2.0 * (HEIGHT + 24.0) + 20.0;
    open_svg(html, total, "what happened to nodes and clients, grants and waits");
    ticks(html, &scale, aftermath.from, total);
    let y = targets(html, &scale, &aftermath.faults) + 12.0;

    // In columns of a second, or more where there would be too many.
    let length = scale.to - scale.from;
    let column = (length / 500).max(SECOND);
    let columns = (length / column + 1) as usize;
    let mut grants = vec![[0_u64; CLIENTS]; columns];
    let mut waits = vec![0; columns];
    for (request, granted) in granted(requests) {
        let column = ((granted.max(scale.from) - scale.from) / column) as usize;
        let place = place(&aftermath.lives, request.process);
        if let (Some(grants), Some(wait)) = (grants.get_mut(column), waits.get_mut(column)) {
            grants[place] += 1;
            *wait = (*wait).max(granted - request.asked);
        }
    }
    let most = grants.iter().map(|grants| grants.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    let per_second = most as f64 / (column as f64 / 1e9);
    let _ = write!(
        html,
        "<text x=0 y='{:.1}'>grants</text><text x=0 y='{:.1}'>to {per_second:.0}/s</text>",
        y + 13.0,
        y + 29.0
    );
    let width = WIDTH / (length as f64 / column as f64);
    for (i, grants) in grants.iter().enumerate() {
        let mut top = y + HEIGHT;
        for (count, colour) in grants.iter().zip(CLIENT_COLOURS) {
            let height = *count as f64 / most as f64 * HEIGHT;
            top -= height;
            let x = NAMES + i as f64 * width;
            let shown = width.min(NAMES + WIDTH - x).max(0.0);
            let _ = write!(
                html,
                "<rect x='{x:.1}' y='{top:.1}' width='{shown:.1}' height='{height:.1}' fill='{colour}'/>"
            );
        }
    }
    let y = y + HEIGHT + 24.0;
    let longest = waits.iter().copied().max().unwrap_or(1).max(1);
    let _ = write!(
        html,
        "<text x=0 y='{:.1}'>longest wait</text><text x=0 y='{:.1}'>to {:.2} s</text>",
        y + 13.0,
        y + 29.0,
        longest as f64 / 1e9
    );
    for (i, wait) in waits.iter().enumerate() {
        let height = *wait as f64 / longest as f64 * HEIGHT;
        let x = NAMES + i as f64 * width;
        let shown = (width - 0.4).min(NAMES + WIDTH - x).max(0.2);
        let _ = write!(
            html,
            "<rect x='{x:.1}' y='{:.1}' width='{shown:.1}' height='{height:.1}' fill='#7d8fa0'/>",
            y + HEIGHT - height
        );
    }
    html.push_str("</svg></div>");
}

fn granted(requests: &[Request]) -> impl Iterator<Item = (&Request, Nanos)> {
    requests.iter().filter_map(|request| Some((request, request.hold()?.granted)))
}

fn place(lives: &Lives, process: u32) -> usize {
    lives.0.iter().find(|life| life.1 == process).map_or(0, |life| life.0)
}

/// Moments worth a closer look: the longest wait for each kind of lock, and the largest failures.
fn moments(requests: &[Request], faults: &[Fault]) -> Vec<(String, Nanos)> {
    let mut moments = Vec::new();
    for kind in SHARED {
        let waits = granted(requests).filter(|(request, _)| kind_of(&request.key) == kind);
        if let Some((request, granted)) = waits.max_by_key(|(request, granted)| granted - request.asked) {
            let seconds = (granted - request.asked) as f64 / 1e9;
            moments.push((format!("The longest wait for the lock “{kind}”: {seconds:.2} s"), request.asked));
        }
    }
    let together = |fault: &Fault| {
        let beside = faults
            .iter()
            .filter(|other| other.kind == fault.kind && other.from < fault.to && fault.from < other.to);
        beside.count()
    };
    for kind in [Kind::Wiped, Kind::Frozen, Kind::Crashed, Kind::FlushedAll, Kind::SteppedNode] {
        if let Some(fault) =
            faults.iter().filter(|fault| fault.kind == kind).max_by_key(|fault| together(fault))
        {
            moments
                .push((format!("Most nodes at a time: {}", kind.name()), fault.from.saturating_sub(SECOND)));
        }
    }
    moments
}

/// Some seconds in full: who waited for each shared lock, and who held it.
fn detail(html: &mut String, aftermath: &Aftermath, requests: &[Request], around: Nanos) {
    let from = around.saturating_sub(500 * MS).max(aftermath.from);
    let scale = Scale { from, to: from + 6 * SECOND };
    let locks = SHARED;
    let lane = ROW * 0.5;
    let block = lane * CLIENTS as f64 + 10.0;
    let total = (NODES + CLIENTS) as f64 * ROW + 12.0 + block * locks.len() as f64 + 24.0;
    open_svg(html, total, "six seconds in full");
    ticks(html, &scale, aftermath.from, total);
    let mut y = targets(html, &scale, &aftermath.faults) + 8.0;
    for lock in locks {
        let _ = write!(html, "<text x=0 y='{:.1}'>lock “{lock}”</text>", y + 13.0);
        for request in requests.iter().filter(|request| request.key == lock) {
            let place = place(&aftermath.lives, request.process);
            let y = y + lane * place as f64;
            let (waited, held) = match &request.end {
                End::Open => (scale.to, None),
                End::Failed { at, .. } => (*at, None),
                End::Held(hold) => (hold.granted, Some(hold)),
            };
            if scale.shows(request.asked, waited) {
                let title = format!(
                    "client {} task {} waits {} ms",
                    place + 1,
                    request.task,
                    (waited - request.asked) / MS
                );
                bar(
                    html,
                    &scale,
                    (request.asked, waited),
                    (y + lane * 0.4, 1.2),
                    CLIENT_COLOURS[place],
                    &title,
                );
            }
            if let Some(hold) = held.filter(|hold| scale.shows(hold.granted, hold.ended)) {
                let token = if hold.token > 0 { format!(", token {}", hold.token) } else { String::new() };
                let length = hold.ended.saturating_sub(hold.granted) / MS;
                let title = format!("client {} task {} holds {length} ms{token}", place + 1, request.task);
                bar(html, &scale, (hold.granted, hold.ended), (y, lane - 1.0), CLIENT_COLOURS[place], &title);
            }
        }
        y += block;
    }
    html.push_str("</svg></div>");
}

fn kinds(html: &mut String, aftermath: &Aftermath, requests: &[Request], findings: &Findings) {
    html.push_str("<h2>Faults</h2><table><tr><th>kind<th>times<th>locks held when they came</tr>");
    for kind in Kind::ALL {
        let (times, held) = aftermath.count(kind, requests);
        let _ = write!(html, "<tr><td>{}<td class=n>{times}<td class=n>{held}</tr>", kind.name());
    }
    html.push_str("</table><h2>Requests that were not granted</h2><table><tr><th>why<th>times</tr>");
    for (why, times) in &findings.failures {
        let _ = write!(html, "<tr><td>{why}<td class=n>{times}</tr>");
    }
    html.push_str("</table><h2>Longest waits</h2><table><tr><th>lock<th>seconds</tr>");
    for (lock, wait) in &findings.longest {
        let _ = write!(html, "<tr><td>{lock}<td class=n>{:.3}</tr>", *wait as f64 / 1e9);
    }
    html.push_str("</table>");
}
