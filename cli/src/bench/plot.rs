//! Drawings of measured times, as SVG whose colours are the page's.
//!
//! Written by hand, not by a plotting crate: the colours have to follow the page from light to dark, and each drawing is made
//! twice, for a wide page and for a narrow one, since letters that shrink with a drawing cannot be read on a phone.

use std::fmt::Write as _;
use std::time::Duration;

use super::series::Series;
use crate::output::time;

/// A drawing's width, and the room for names at its left.
#[derive(Clone, Copy)]
pub struct Size {
    pub width: f64,
    names: f64,
}

pub const WIDE: Size = Size { width: 920.0, names: 190.0 };
pub const NARROW: Size = Size { width: 360.0, names: 14.0 };

/// At the right of every drawing.
const EDGE: f64 = 14.0;

/// How many points a timeline has at most; more could not be told apart.
const POINTS: usize = 1_500;

/// Both sizes of a drawing; the page shows the one that fits.
pub fn both(draw: impl Fn(Size) -> String) -> String {
    format!("<div class=\"wide\">{}</div><div class=\"narrow\">{}</div>", draw(WIDE), draw(NARROW))
}

/// A logarithmic axis of times.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn new<'a>(series: impl Iterator<Item = &'a Series>, from: f64, to: f64) -> Self {
        let (mut least, mut most) = (f64::MAX, f64::MIN);
        for series in series.filter(|series| series.len() > 0) {
            least = least.min(series.least().as_secs_f64());
            most = most.max(series.most().as_secs_f64());
        }
        if least > most {
            (least, most) = (1e-3, 1e-2);
        }
        let least = least.max(1e-6);
        Self { least: (least * 0.85).ln(), most: (most.max(least * 2.0) * 1.15).ln(), from, to }
    }

    fn at(&self, seconds: f64) -> f64 {
        let part = (seconds.max(1e-9).ln() - self.least) / (self.most - self.least);
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// 1, 2 and 5 in each decade, or 1 alone where that would be too many.
    fn ticks(&self, room_for: f64) -> Vec<f64> {
        let decades = (self.most - self.least) / std::f64::consts::LN_10;
        let steps: &[f64] =
            if decades * 3.0 * room_for < (self.to - self.from).abs() { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = (-7..4).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        powers.filter(|tick| (self.least..=self.most).contains(&tick.ln())).collect()
    }
}

fn label(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.9995e-3 => format!("{:.0} µs", seconds * 1e6),
        seconds if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds => format!("{seconds:.0} s"),
    }
}

pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn open(size: Size, height: f64, title: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {:.0} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        size.width,
        escaped(title)
    )
}

/// How times are spread, one ridge for each series, the marked one in the page's accent.
pub fn ridges(series: &[&Series], marked: &str, size: Size) -> String {
    let narrow = size.names < 100.0;
    let (row, rise) = if narrow { (64.0, 30.0) } else { (50.0, 38.0) };
    let height = row * series.len() as f64 + 40.0;
    let axis = Axis::new(series.iter().copied(), size.names, size.width - EDGE);
    let mut svg = open(size, height, "how the times are spread");
    let bottom = height - 26.0;
    for tick in axis.ticks(52.0) {
        let x = axis.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} 8V{bottom:.1}\"/><text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            height - 8.0,
            label(tick)
        );
    }
    for (index, series) in series.iter().enumerate() {
        let base = row * (index as f64 + 1.0);
        let class = if series.name == marked { "marked" } else { "series" };
        let (x, y) = if narrow { (size.names, base - row + 22.0) } else { (0.0, base - 18.0) };
        let _ = write!(
            svg,
            "<text class=\"name {class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escaped(&series.name)
        );
        if series.len() > 0 {
            let (x, y, side) =
                if narrow { (size.width - EDGE, y, " end") } else { (0.0, base - 1.0, " start") };
            let (half, most) = (time(series.percentile(50.0)), time(series.percentile(99.0)));
            let _ = write!(
                svg,
                "<text class=\"tick{side}\" x=\"{x:.1}\" y=\"{y:.1}\">p50 {half} · p99 {most}</text>"
            );
        }
        if series.len() == 0 {
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">no answer in time</text>",
                size.names + 60.0,
                base - 6.0
            );
            continue;
        }
        let _ = write!(
            svg,
            "<path class=\"base\" d=\"M{:.1} {base:.1}H{:.1}\"/><path class=\"ridge {class}\" d=\"{}\"/>",
            size.names,
            size.width - EDGE,
            ridge(series, &axis, base, rise)
        );
        for (name, percentile) in [("p50", 50.0), ("p99", 99.0)] {
            let took = series.percentile(percentile);
            let x = axis.at(took.as_secs_f64());
            let _ = write!(
                svg,
                "<path class=\"mark {class} {name}\" d=\"M{x:.1} {:.1}V{:.1}\"><title>{} {name} {}</title></path>",
                base - 12.0,
                base + 4.0,
                escaped(&series.name),
                time(took)
            );
        }
    }
    svg + "</svg>"
}

/// The outline of a smoothed histogram over a logarithmic axis.
fn ridge(series: &Series, axis: &Axis, base: f64, rise: f64) -> String {
    const BINS: usize = 160;
    let mut bins = [0.0_f64; BINS];
    for (_, took) in &series.points {
        let part = (axis.at(took.as_secs_f64()) - axis.from) / (axis.to - axis.from);
        let index = ((part * BINS as f64) as usize).min(BINS - 1);
        if let Some(bin) = bins.get_mut(index) {
            *bin += 1.0;
        }
    }
    const KERNEL: [f64; 7] = [0.03, 0.1, 0.22, 0.3, 0.22, 0.1, 0.03];
    let smooth = |index: usize| -> f64 {
        let near = KERNEL.iter().enumerate().filter_map(|(offset, weight)| {
            let neighbour = (index + offset).checked_sub(3)?;
            Some(weight * bins.get(neighbour)?)
        });
        near.sum()
    };
    let smoothed: Vec<_> = (0..BINS).map(smooth).collect();
    // By the root, so that rare late answers are to be seen beside the bulk.
    let highest = smoothed.iter().copied().fold(0.0, f64::max).sqrt().max(1e-9);
    let step = (axis.to - axis.from) / BINS as f64;
    let mut path = format!("M{:.1} {base:.1}", axis.from);
    for (index, value) in smoothed.iter().enumerate() {
        let (x, y) = (axis.from + (index as f64 + 0.5) * step, base - value.sqrt() / highest * rise);
        let _ = write!(path, "L{x:.1} {y:.1}");
    }
    let _ = write!(path, "L{:.1} {base:.1}Z", axis.to);
    path
}

/// Each time at its moment: later ones at the right, longer ones further up.
pub fn timeline(series: &[(&Series, &str)], size: Size) -> String {
    let narrow = size.names < 100.0;
    let (left, height) = if narrow { (46.0, 220.0) } else { (64.0, 260.0) };
    let (top, bottom) = (10.0, height - 28.0);
    let axis = Axis::new(series.iter().map(|(series, _)| *series), bottom, top);
    let end = series
        .iter()
        .flat_map(|(series, _)| series.points.last())
        .map(|(at, _)| at.as_secs_f64())
        .fold(0.1, f64::max);
    let x = |at: Duration| left + at.as_secs_f64() / end * (size.width - EDGE - left);
    let mut svg = open(size, height, "the times, one after the other");
    for tick in axis.ticks(26.0) {
        let y = axis.at(tick);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{:.1}\"/><text class=\"tick side\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            size.width - EDGE,
            left - 8.0,
            y + 4.0,
            label(tick)
        );
    }
    let parts = if narrow { 3 } else { 6 };
    for part in 0..=parts {
        let seconds = end * f64::from(part) / f64::from(parts);
        let at = left + (size.width - EDGE - left) * f64::from(part) / f64::from(parts);
        let anchor = if part == parts { " end" } else { "" };
        let _ = write!(
            svg,
            "<text class=\"tick{anchor}\" x=\"{at:.1}\" y=\"{:.1}\">{seconds:.1} s</text>",
            height - 8.0
        );
    }
    for (series, class) in series {
        let step = series.len().div_ceil(POINTS).max(1);
        let mut path = String::new();
        // Of each group the longest: a late answer must not get lost among the others.
        for group in series.points.chunks(step) {
            if let Some((at, took)) = group.iter().max_by_key(|(_, took)| *took) {
                let _ = write!(path, "M{:.1} {:.1}h0", x(*at), axis.at(took.as_secs_f64()));
            }
        }
        let _ = write!(svg, "<path class=\"dots {class}\" d=\"{path}\"/>");
    }
    svg + "</svg>"
}

/// How often each contender had the lock.
pub fn shares(shares: &[u64], size: Size) -> String {
    let narrow = size.names < 100.0;
    let (row, left) = (26.0, if narrow { 40.0 } else { 110.0 });
    let height = row * shares.len() as f64 + 6.0;
    let most = shares.iter().copied().max().unwrap_or(1).max(1) as f64;
    let mut svg = open(size, height, "how often each contender had the lock");
    for (index, share) in shares.iter().enumerate() {
        let y = row * index as f64 + 4.0;
        let name = if narrow { format!("{}", index + 1) } else { format!("contender {}", index + 1) };
        let width = *share as f64 / most * (size.width - left - 70.0);
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{name}</text><rect class=\"bar\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"16\" rx=\"3\"/><text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{share}</text>",
            y + 13.0,
            left + width + 8.0,
            y + 13.0
        );
    }
    svg + "</svg>"
}
