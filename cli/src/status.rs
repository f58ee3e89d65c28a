//! `redquorum status`: who holds a lock, for how long, and who waits, on every node.

use std::time::Duration;

use redquorum::{Inspection, NodeInspection};
use serde_json::{Value, json};

use crate::args::{Common, Status};
use crate::exit::{self, Failure};
use crate::nodes::all_tried;
use crate::output::{Output, Tone, millis, time};
use crate::places::Places;
use crate::table::{Table, cell, plain};

/// `status --free` found it held.
const IS_HELD: u8 = 1;

pub async fn status(common: &Common, args: &Status, output: &Output) -> Result<u8, Failure> {
    let places = Places::find(common)?;
    let redlock = all_tried(&places).await?;
    let found = redlock.inspect(&args.key).await;
    redlock.close(Duration::ZERO).await;
    let found = found.map_err(|error| Failure::usage(error.to_string()))?;
    match output.json {
        true => output.value(&value(&args.key, &found))?,
        false => show(output, &args.key, &found)?,
    }
    let answered = found.nodes().iter().filter(|node| node.state.is_ok()).count();
    let needed = needed(&found);
    if answered < needed {
        let what = format!("{answered} of {} nodes answered, {needed} are needed", found.nodes().len());
        return Err(Failure::new(exit::NO_QUORUM, "no_quorum", what)
            .next("look after the nodes that did not; `redquorum doctor` checks each of them"));
    }
    Ok(if args.free && found.holder().is_some() { IS_HELD } else { exit::OK })
}

fn needed(found: &Inspection) -> usize {
    found.nodes().len() / 2 + 1
}

/// For how long a quorum keeps the holder's key: the Q-th longest of what the nodes that carry it say.
pub fn remaining(found: &Inspection) -> Option<Duration> {
    let holder = found.holder()?;
    let states = found.nodes().iter().filter_map(|node| node.state.as_ref().ok());
    let carriers = states.filter(|state| state.holder.as_deref() == Some(holder));
    let mut left: Vec<_> = carriers.filter_map(|state| state.remaining).collect();
    left.sort_by(|a, b| b.cmp(a));
    left.get(needed(found) - 1).copied()
}

/// Who has it, in words.
pub fn summary(found: &Inspection) -> String {
    let carried =
        found.nodes().iter().any(|node| node.state.as_ref().is_ok_and(|state| state.holder.is_some()));
    let waiting = match found.waiting() {
        0 => "nobody waits".to_owned(),
        1 => "1 waits".to_owned(),
        many => format!("{many} wait"),
    };
    match (found.holder(), remaining(found)) {
        (Some(holder), Some(left)) => format!("held by {holder} for another {}, {waiting}", time(left)),
        (Some(holder), None) => format!("held by {holder}, {waiting}"),
        (None, _) if carried => format!("on no majority of the nodes, {waiting}"),
        (None, _) => format!("free, {waiting}"),
    }
}

fn show(output: &Output, key: &str, found: &Inspection) -> Result<(), Failure> {
    output.line(format!("lock \"{key}\": {}", output.paint(Tone::Strong, &summary(found))))?;
    let mut table = Table::new(&["", "node", "holder", "remaining", "waiting"]);
    for (index, NodeInspection { address, state, .. }) in found.nodes().iter().enumerate() {
        let (name, address) = (plain(format!("n{}", index + 1)), plain(&**address));
        match state {
            Err(why) => table.row([name, address, cell(Tone::Bad, why)]),
            Ok(state) => table.row([
                name,
                address,
                state.holder.as_deref().map_or(cell(Tone::Faint, "free"), plain),
                match (state.remaining, &state.holder) {
                    (Some(left), _) => plain(time(left)),
                    (None, Some(_)) => cell(Tone::Doubtful, "for ever"),
                    (None, None) => plain("-"),
                },
                plain(state.waiting.to_string()),
            ]),
        }
    }
    output.show(&table)
}

/// A lock for machines.
pub fn value(key: &str, found: &Inspection) -> Value {
    let node = |node: &NodeInspection| match &node.state {
        Err(why) => json!({ "address": &*node.address, "error": why }),
        Ok(state) => json!({
            "address": &*node.address,
            "holder": state.holder,
            "remaining_ms": state.remaining.map(millis),
            "waiting": state.waiting,
        }),
    };
    json!({
        "key": key,
        "held": found.holder().is_some(),
        "holder": found.holder(),
        "remaining_ms": remaining(found).map(millis),
        "waiting": found.waiting(),
        "needed": needed(found),
        "nodes": found.nodes().iter().map(node).collect::<Vec<_>>(),
    })
}
