//! `redquorum bench`: how fast locks are on these nodes.

mod html;
mod measure;
mod plot;
mod series;
mod slow;

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use redis::{ConnectionAddr, IntoConnectionInfo};
use redquorum::{NodeStatus, RedlockBuilder};
use serde_json::{Value, json};

use crate::args::{Bench, Common};
use crate::exit::{self, Failure};
use crate::nodes::CONNECT_TIMEOUT;
use crate::output::{Output, Tone, fill, time, width};
use crate::places::Places;
use crate::table::{Table, cell};
use measure::{Alone, Contended, Pace};
use series::{PERCENTILES, Series};

/// The part with one slow node takes no longer than this, or than twice what the same took without it: where every lock needs
/// that node, they would take minutes.
const SLOW_PART: Duration = Duration::from_secs(5);

/// The most that a slow node may take longer to connect.
const CONNECTING: Duration = Duration::from_secs(5);

/// All that was measured.
pub struct Measured {
    pub nodes: Vec<NodeStatus>,
    /// How many locks were asked for in each part.
    pub count: u32,
    pub alone: Alone,
    /// With the last node slowed down; not where it cannot be reached by plain TCP, or there is no other.
    pub slowed: Option<Alone>,
    pub slowed_by: Duration,
    pub contended: Contended,
    pub contenders: u32,
}

pub async fn bench(common: &Common, args: &Bench, output: &Output) -> Result<u8, Failure> {
    let places = Places::find(common)?;
    let key = format!("redquorum-bench:{:016x}", rand::random::<u64>());
    let redlock = places.builder().build().await?;
    // One lock before the first that is measured: scripts are loaded, and what cannot work is told.
    redlock.lock(&key).await?.release().await.map_err(Failure::from)?;

    let bar = bar(output, u64::from(args.count) * 3);
    bar.set_message("one client");
    let pace = Pace { count: args.count, limit: None, slowed_by: Duration::ZERO };
    let alone = measure::alone(&redlock, &key, pace, &bar).await;
    let limit = SLOW_PART.max(alone.took * 2);
    bar.set_message(format!("{} contenders", args.contenders));
    let contended = measure::contended(&places.builder(), &key, args.count, args.contenders, &bar).await?;
    bar.set_message("one node slowed");
    let slowed = match slowed(&places, args).await? {
        Some(builder) => {
            let slow = builder.build().await?;
            let pace = Pace { limit: Some(limit), slowed_by: args.slow, ..pace };
            let mut measured = measure::alone(&slow, &key, pace, &bar).await;
            slow.close(Duration::from_secs(1)).await;
            // The proxy's address would tell nobody which node it is.
            for (series, named) in measured.nodes.iter_mut().zip(&alone.nodes) {
                series.name.clone_from(&named.name);
            }
            Some(measured)
        }
        None => None,
    };
    bar.finish_and_clear();
    let nodes = redlock.nodes();
    redlock.close(Duration::from_secs(1)).await;
    let measured = Measured {
        nodes,
        count: args.count,
        alone,
        slowed,
        slowed_by: args.slow,
        contended,
        contenders: args.contenders,
    };

    if let Some(file) = &args.html {
        std::fs::write(file, html::page(&measured))
            .map_err(|error| Failure::system(format!("{} cannot be written: {error}", file.display())))?;
    }
    match output.json {
        true => output.value(&value(&measured))?,
        false => show(output, &measured, args)?,
    }
    Ok(exit::OK)
}

fn bar(output: &Output, length: u64) -> ProgressBar {
    if output.json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:18} {bar:32} {percent:>3} %  {eta} left");
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A builder of a client whose last node answers later; `None` where that cannot be.
async fn slowed(places: &Places, args: &Bench) -> Result<Option<RedlockBuilder>, Failure> {
    let Some((last, others)) = places.urls.split_last().filter(|(_, others)| !others.is_empty()) else {
        return Ok(None);
    };
    let info =
        last.as_str().into_connection_info().map_err(|_| Failure::usage("the last address is none"))?;
    let ConnectionAddr::Tcp(host, port) = info.addr() else { return Ok(None) };
    let port = slow::start(format!("{host}:{port}"), args.slow).await?;
    let slow = info.clone().set_addr(ConnectionAddr::Tcp("127.0.0.1".to_owned(), port));
    // Only answers to locks are to be late: to connect takes some round trips, and a node that is away is not a slow one.
    let connecting = places.connect_timeout.unwrap_or(CONNECT_TIMEOUT) + (args.slow * 10).min(CONNECTING);
    let settings = places.settings().connect_timeout(connecting);
    Ok(Some(settings.nodes(others.iter().map(String::as_str)).node(slow)))
}

/// What of a part is not as it was asked for: fewer locks, locks that failed, votes that did not come.
fn shortfalls(measured: &Measured) -> Vec<String> {
    let mut told = Vec::new();
    let slowed_by = time(measured.slowed_by);
    let slow = format!("n{} slowed by {slowed_by}", measured.nodes.len());
    let parts = [("one client", Some(&measured.alone)), (&slow, measured.slowed.as_ref())];
    for (part, alone) in parts.into_iter().filter_map(|(part, alone)| Some((part, alone?))) {
        let locks = alone.locks();
        if locks < u64::from(measured.count) {
            told.push(format!("{part}: {locks} locks in {}, not {}", time(alone.took), measured.count));
        }
        for (index, node) in alone.nodes.iter().enumerate().filter(|(_, node)| node.missing > 0) {
            let (voted, held) = (node.len(), alone.quorum.len());
            told.push(format!("{part}: n{} voted in time for {voted} of {held} locks", index + 1));
        }
        if alone.failed > 0 {
            let why = alone.last_error.as_deref().unwrap_or_default();
            told.push(format!("{part}: {} acquires failed, the last: {why}", alone.failed));
        }
    }
    told
}

fn show(output: &Output, measured: &Measured, args: &Bench) -> Result<(), Failure> {
    let needed = measured.nodes.len() / 2 + 1;
    output.line(format!(
        "{} nodes, {needed} decide; {} locks in each part\n",
        measured.nodes.len(),
        measured.count
    ))?;
    let part = |title: &str, series: &[&Series], highlight: &str| -> Result<(), Failure> {
        let mut head = vec![title];
        head.extend(PERCENTILES.iter().map(|(name, _)| *name));
        head.push("max");
        let mut table = Table::new(&head);
        for series in series {
            let tone = if series.name == highlight { Tone::Good } else { Tone::Plain };
            let mut row = vec![cell(tone, &series.name)];
            let shown = |took: Duration| if series.len() == 0 { "-".to_owned() } else { time(took) };
            row.extend(
                PERCENTILES.iter().map(|(_, percentile)| cell(tone, shown(series.percentile(*percentile)))),
            );
            row.push(cell(tone, shown(series.most())));
            table.row(row);
        }
        output.show(&table)?;
        output.line("")
    };
    let rows = |alone: &'_ Alone| -> Vec<Series> {
        alone.nodes.iter().chain([&alone.quorum, &alone.release]).cloned().collect()
    };
    let first = rows(&measured.alone);
    part("one client", &first.iter().collect::<Vec<_>>(), "quorum")?;
    if let Some(slowed) = &measured.slowed {
        let title = format!("n{} slowed by {}", measured.nodes.len(), time(measured.slowed_by));
        part(&title, &rows(slowed).iter().collect::<Vec<_>>(), "quorum")?;
    }
    let contended = &measured.contended;
    part(&format!("{} contenders", measured.contenders), &[&contended.wait, &contended.gaps], "hand-over")?;
    output.line(format!("{:.0} locks a second, each held {}", contended.rate(), time(measure::HOLD)))?;
    output.line(format!("fairness {:.3}, where 1 is even", contended.fairness()))?;
    for text in shortfalls(measured) {
        let lines = fill(&text, usize::from(width()));
        lines.iter().try_for_each(|line| output.line(output.paint(Tone::Bad, line)))?;
    }
    if measured.slowed.is_none() {
        output.line("No node was slowed down: that takes two nodes, the last of them at redis://")?;
    }
    match &args.html {
        Some(file) => output.line(format!("Drawn in {}", file.display())),
        None => Ok(()),
    }
}

/// All of it for machines.
pub fn value(measured: &Measured) -> Value {
    let alone = |alone: &Alone| {
        json!({
            "quorum": alone.quorum.value(),
            "release": alone.release.value(),
            "nodes": alone.nodes.iter().map(Series::value).collect::<Vec<_>>(),
            "failed": alone.failed,
            "last_error": alone.last_error,
        })
    };
    let contended = &measured.contended;
    json!({
        "nodes": measured.nodes.iter().map(crate::nodes::value).collect::<Vec<_>>(),
        "needed": measured.nodes.len() / 2 + 1,
        "one_client": alone(&measured.alone),
        "one_node_slowed": measured.slowed.as_ref().map(alone),
        "slowed_by_ms": crate::output::millis(measured.slowed_by),
        "contended": {
            "contenders": measured.contenders,
            "per_second": (contended.rate() * 10.0).round() / 10.0,
            "fairness": (contended.fairness() * 1e4).round() / 1e4,
            "shares": contended.shares,
            "wait": contended.wait.value(),
            "hand_over": contended.gaps.value(),
            "failed": contended.failed,
        },
    })
}
