//! The page that `bench --html` writes: one file that needs nothing else, light or dark as its reader has it, and readable on
//! a phone.

use std::fmt::Write as _;
use std::time::Duration;

use super::measure::{Alone, HOLD};
use super::plot::{both, escaped, ridges, shares, timeline};
use super::series::{PERCENTILES, Series};
use super::{Measured, shortfalls};
use crate::output::time;

const STYLE: &str = "
:root { color-scheme: light dark; --page: #fbfaf8; --card: #fff; --ink: #1d1b19; --faint: #6d6862; --line: #e6e2dc;
  --accent: #c8324a; --accent-soft: #c8324a2e; --node: #5b7a99; --node-soft: #5b7a992b; --good: #2c7a58; }
@media (prefers-color-scheme: dark) { :root { --page: #151413; --card: #1e1d1b; --ink: #eeeae4; --faint: #a09a92;
  --line: #35322e; --accent: #ff7186; --accent-soft: #ff718633; --node: #8fb2d6; --node-soft: #8fb2d62b; --good: #6fcf9f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 40px 20px 64px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -0.02em; margin: 0 0 6px; }
h2 { font-size: 19px; letter-spacing: -0.01em; margin: 0 0 4px; }
p { margin: 0 0 16px; color: var(--faint); max-width: 70ch; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 24px 0; }
.card, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.card { padding: 14px 16px; }
.card b { display: block; font-size: 25px; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; white-space: nowrap; }
.card span { color: var(--faint); font-size: 14px; line-height: 1.35; display: block; }
section { padding: 20px 22px; margin: 16px 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; font: 13px system-ui, sans-serif; }
.narrow { display: none; }
.grid, .base { stroke: var(--line); fill: none; }
.tick { fill: var(--faint); text-anchor: middle; font-size: 12px; }
.tick.side, .tick.end { text-anchor: end; } .tick.start { text-anchor: start; }
.name { fill: var(--ink); } .name.marked { fill: var(--accent); font-weight: 650; }
.ridge { stroke: var(--node); fill: var(--node-soft); stroke-width: 1.3; stroke-linejoin: round; }
.ridge.marked { stroke: var(--accent); fill: var(--accent-soft); stroke-width: 1.7; }
.mark { stroke: var(--node); stroke-width: 2.4; stroke-linecap: round; } .mark.marked { stroke: var(--accent); }
.mark.p99 { stroke-width: 1.4; stroke-dasharray: 2 3; }
.dots { fill: none; stroke-linecap: round; stroke-width: 3; stroke: var(--node); opacity: .5; }
.dots.accent { stroke: var(--accent); } .dots.good { stroke: var(--good); }
.bar { fill: var(--node); } .value { fill: var(--faint); font-variant-numeric: tabular-nums; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin: 0 5px 0 2px; background: var(--node); }
.entry { white-space: nowrap; margin-right: 14px; }
.key.accent { background: var(--accent); } .key.good { background: var(--good); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--faint); font-weight: 500; } th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.marked td { color: var(--accent); font-weight: 600; }
tr:last-child td { border-bottom: 0; }
footer { color: var(--faint); font-size: 14px; margin-top: 24px; }
@media (max-width: 640px) { main { padding: 22px 12px 40px; } h1 { font-size: 24px; } section { padding: 16px 14px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 8px; } .card { padding: 11px 12px; } .card b { font-size: 21px; }
  .card:last-child:nth-child(odd) { grid-column: 1 / -1; } .wide { display: none; } .narrow { display: block; } }
";

/// The whole page.
pub fn page(measured: &Measured) -> String {
    let Measured { nodes, count: asked, alone, slowed, slowed_by, contended, contenders } = measured;
    let count = nodes.len();
    let needed = count / 2 + 1;
    let mut body = format!(
        "<h1>Locks on {count} nodes</h1><p>{needed} of them decide. {asked} locks in each part, measured on {}.</p>",
        today()
    );
    for text in shortfalls(measured) {
        let _ = write!(body, "<p>{}</p>", escaped(&text));
    }
    let mut cards = vec![
        (time(alone.quorum.percentile(50.0)), "until a lock is held, half of the time"),
        (time(alone.quorum.percentile(99.0)), "in 99 of 100 cases at most"),
        (format!("{:.0}/s", contended.rate()), "locks handed on under contention"),
        (time(contended.gaps.percentile(50.0)), "from one holder to the next"),
    ];
    if let Some(slowed) = slowed {
        cards.push((time(slowed.quorum.percentile(50.0)), "until a lock is held, with one node slowed"));
    }
    body += "<div class=\"cards\">";
    for (value, meaning) in cards {
        let _ = write!(body, "<div class=\"card\"><b>{value}</b><span>{meaning}</span></div>");
    }
    body += "</div>";

    section(
        &mut body,
        "How long an answer takes",
        "Each ridge shows how the answers of one node are spread; below it the quorum, which is there with the answer that \
         decides. Solid marks are medians, dotted ones the 99th percentile. The axis is logarithmic, the height a square root, \
         so that rare late answers are to be seen.",
        &spread(alone),
    );
    if let Some(slowed) = slowed {
        let text = format!(
            "The same with n{count} answering {} later, behind a proxy. {}",
            time(*slowed_by),
            match count {
                0..=2 => "Every node is needed here, so that the lock waits for it.",
                _ => "Nobody waits for it: a lock is held as soon as enough of the others have answered.",
            }
        );
        section(&mut body, "With one slow node", &text, &spread(slowed));
    }
    let mut series = vec![(&alone.quorum, "accent")];
    let mut legend =
        "<span class=\"entry\"><span class=\"key accent\"></span>one client alone</span>".to_owned();
    if let Some(slowed) = slowed {
        series.push((&slowed.quorum, ""));
        legend += " <span class=\"entry\"><span class=\"key\"></span>with one slow node</span>";
    }
    series.push((&contended.gaps, "good"));
    legend += " <span class=\"entry\"><span class=\"key good\"></span>hand-over under contention</span>";
    section(
        &mut body,
        "One after the other",
        &format!("Each dot is one lock, at its moment from the start of its part. {legend}"),
        &both(|size| timeline(&series, size)),
    );
    section(
        &mut body,
        &format!("{contenders} contenders for one lock"),
        &format!(
            "Each held the lock for {}. A hand-over is the time from the call that releases it to the next holder; a wait, from the \
             call to the lock. {:.0} locks a second, fairness {:.3}, where 1 is even.",
            time(HOLD),
            contended.rate(),
            contended.fairness()
        ),
        &both(|size| ridges(&[&contended.gaps, &contended.wait], "hand-over", size)),
    );
    if contended.shares.len() <= 16 {
        section(
            &mut body,
            "Who had it how often",
            "Whoever waits is served in turn.",
            &both(|size| shares(&contended.shares, size)),
        );
    }
    section(&mut body, "In numbers", "", &numbers(measured));
    let servers = nodes.iter().enumerate().map(|(index, node)| {
        let (server, persistence) = (node.version.as_deref().unwrap_or("unknown"), node.persistence.as_ref());
        let persistence = persistence.map(|persistence| format!(", {persistence}")).unwrap_or_default();
        format!("n{} {}: {}{}", index + 1, escaped(&node.address), escaped(server), escaped(&persistence))
    });
    let _ = write!(
        body,
        "<footer>{}.<br>Made by redquorum {} bench.</footer>",
        servers.collect::<Vec<_>>().join("; "),
        env!("CARGO_PKG_VERSION")
    );
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\"><title>Locks on {count} nodes</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )
}

fn section(body: &mut String, title: &str, text: &str, content: &str) {
    let text = if text.is_empty() { String::new() } else { format!("<p>{text}</p>") };
    let _ = write!(body, "<section><h2>{title}</h2>{text}{content}</section>");
}

fn spread(alone: &Alone) -> String {
    let series: Vec<_> = alone.nodes.iter().chain([&alone.quorum]).collect();
    both(|size| ridges(&series, "quorum", size))
}

fn numbers(measured: &Measured) -> String {
    let mut table = "<div class=\"scroll\"><table><tr><th></th>".to_owned();
    for (name, _) in PERCENTILES {
        let _ = write!(table, "<th>{name}</th>");
    }
    table += "<th>max</th></tr>";
    let mut row = |name: String, series: &Series| {
        let class = if series.name == "quorum" { " class=\"marked\"" } else { "" };
        let _ = write!(table, "<tr{class}><td>{}</td>", escaped(&name));
        let shown = |took: Duration| if series.len() == 0 { "–".to_owned() } else { time(took) };
        for (_, percentile) in PERCENTILES {
            let _ = write!(table, "<td>{}</td>", shown(series.percentile(percentile)));
        }
        let _ = write!(table, "<td>{}</td></tr>", shown(series.most()));
    };
    let Measured { alone, slowed, contended, .. } = measured;
    for series in alone.nodes.iter().chain([&alone.quorum, &alone.release]) {
        row(series.name.clone(), series);
    }
    if let Some(slowed) = slowed {
        row("quorum, one node slowed".to_owned(), &slowed.quorum);
    }
    row("wait, contended".to_owned(), &contended.wait);
    row("hand-over".to_owned(), &contended.gaps);
    table + "</table></div>"
}

/// The day, in UTC, by the civil calendar.
fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs() / 86_400)
}

/// The date of a day since 1970: years are counted from March, so that the leap day is the last.
fn date(days: u64) -> String {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{day:02}", year + era * 400 + carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Days have the dates that a calendar gives them, leap days too.
    #[test]
    fn days_have_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(19_782), "2024-02-29");
        assert_eq!(date(19_783), "2024-03-01");
        assert_eq!(date(20_818), "2026-12-31");
    }
}
