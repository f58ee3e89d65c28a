//! Figures as plots: SVG, which a browser draws sharp at any size.
//!
//! Colours are those of Okabe and Ito, which people who see few colours tell apart; dashes and marks tell as much. What
//! a colour means stands above the plot, where no data can be.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::bars::{HEALTHY, N, NODES, TASKS};
use crate::contention::{DISTRIBUTED_LOCK, LINE, REDLOCK, RETRY, RSLOCK, RSLOCK_DEFAULT};
use crate::results::{Contention, FLOOR, OURS, RUNTIMES, Row, Run};
use crate::table::{count, tick, time};

const WIDTH: u32 = 960;
const FONT: &str = "Helvetica, Arial, sans-serif";
const INK: RGBColor = RGBColor(34, 34, 34);
const PALE: RGBColor = RGBColor(96, 96, 96);
const GRID: RGBColor = RGBColor(226, 226, 226);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Points = Vec<(f64, f64)>;
type Drawn<T = ()> = Result<T, Box<dyn Error>>;

/// The plots of a run of `make bench`.
pub fn bench(run: &Run, folder: &Path) -> Result<(), String> {
    let draw = || -> Drawn {
        distribution(run, &folder.join("latency.svg"), &[FLOOR, OURS])?;
        throughput(run, &folder.join("throughput.svg"))?;
        nodes(run, &folder.join("nodes.svg"))
    };
    prepared(folder).and_then(|()| draw()).map_err(|error| format!("drawing: {error}"))
}

/// The plots of a run of `make bench-peers`.
pub fn peers(run: &Run, folder: &Path) -> Result<(), String> {
    let draw = || -> Drawn {
        let clients = [FLOOR, OURS, "rslock", "redlock", "distributed-lock"];
        distribution(run, &folder.join("peers.svg"), &clients)?;
        waits(run, &folder.join("waits.svg"))
    };
    prepared(folder).and_then(|()| draw()).map_err(|error| format!("drawing: {error}"))
}

fn prepared(folder: &Path) -> Drawn {
    Ok(std::fs::create_dir_all(folder)?)
}

/// How long a cycle takes, as shares of all cycles.
fn distribution(run: &Run, file: &Path, clients: &[&str]) -> Drawn {
    let row = |who: &str, runtime: &str| {
        run.row(who, HEALTHY, runtime, N, 1).filter(|row| row.distribution.len() > 1)
    };
    let rows: Vec<&Row> =
        clients.iter().flat_map(|who| RUNTIMES.iter().filter_map(|runtime| row(who, runtime))).collect();
    let nines = |share: f64| -(1.0 - share).log10();
    let times = rows.iter().flat_map(|row| row.distribution.iter().map(|(_, micros)| *micros));
    let y = Scale::log(times, tick);
    let ends = rows.iter().filter_map(|row| row.distribution.last()).map(|(share, _)| nines(*share));
    let x = Scale {
        from: 0.0,
        to: ends.fold(1.0, f64::max),
        log: false,
        ticks: [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
            .into_iter()
            .zip(["0", "50 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"])
            .map(|(share, label)| (nines(share), label.to_owned()))
            .collect(),
    };
    let drawn: Vec<&str> =
        clients.iter().copied().filter(|who| rows.iter().any(|row| row.who == *who)).collect();
    let title = "How long an uncontended lock takes: acquire and release";
    let subtitle = format!("{N} nodes, 1 task; time within which that share of the cycles ended");
    panels(file, title, &subtitle, &drawn, 440, |runtime, area| {
        let frame = Frame::draw(area, &x, &y, "share of cycles", "time for a cycle")?;
        for (who, row) in drawn.iter().filter_map(|who| Some((who, row(who, runtime)?))) {
            let points = row.distribution.iter().map(|(share, micros)| (nines(*share), *micros)).collect();
            frame.line(&points, &style(who), false)?;
        }
        Ok(())
    })
}

/// How many cycles a second, over the number of tasks.
fn throughput(run: &Run, file: &Path) -> Drawn {
    let places = TASKS.iter().enumerate().map(|(place, tasks)| (place as f64, tasks.to_string()));
    let x = Scale { from: -0.15, to: TASKS.len() as f64 - 0.85, log: false, ticks: places.collect() };
    let rates = run.rows.iter().filter(|row| row.situation == HEALTHY && row.nodes == N).map(|row| row.rate);
    let y = Scale::from_zero(rates, count);
    let subtitle = format!("{N} nodes; each task acquires and releases keys of its own, as fast as it can");
    let drawn = [FLOOR, OURS];
    panels(file, "Throughput over the number of tasks", &subtitle, &drawn, 400, |runtime, area| {
        let frame = Frame::draw(area, &x, &y, "tasks at a time", "cycles a second")?;
        for who in drawn {
            let rate = |(place, tasks): (usize, &usize)| {
                run.row(who, HEALTHY, runtime, N, *tasks).map(|row| (place as f64, row.rate))
            };
            frame.line(&TASKS.iter().enumerate().filter_map(rate).collect(), &style(who), true)?;
        }
        Ok(())
    })
}

/// What each further node costs.
fn nodes(run: &Run, file: &Path) -> Drawn {
    let x = Scale {
        from: 0.6,
        to: 7.4,
        log: false,
        ticks: NODES.map(|nodes| (nodes as f64, nodes.to_string())).into(),
    };
    let alone = run.rows.iter().filter(|row| row.situation == HEALTHY && row.tasks == 1);
    let y = Scale::from_zero(alone.map(|row| row.cycle.p50), tick);
    let drawn = [FLOOR, OURS];
    let subtitle = "1 task; median time of a cycle, acquire and release";
    panels(file, "Cost over the number of nodes", subtitle, &drawn, 400, |runtime, area| {
        let frame = Frame::draw(area, &x, &y, "nodes", "time for a cycle, p50")?;
        for who in drawn {
            let p50 = |n: &usize| run.row(who, HEALTHY, runtime, *n, 1).map(|row| (*n as f64, row.cycle.p50));
            frame.line(&NODES.iter().filter_map(p50).collect(), &style(who), true)?;
        }
        Ok(())
    })
}

/// Who waited how long, and when it got in: a panel for each client, all on one scale.
fn waits(run: &Run, file: &Path) -> Drawn {
    let contended: Vec<&Contention> =
        run.contention.iter().filter(|contention| contention.processes > 1).collect();
    let rows = contended.len().div_ceil(2).max(1);
    let root = SVGBackend::new(file, (WIDTH, 84 + 250 * rows as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let Some(first) = contended.first() else { return Ok(root.present()?) };
    text(&root, "Waiting for one contended lock: each dot is one grant", (24, 18), 20, INK)?;
    let subtitle = format!(
        "{} processes of {} tasks, {N} nodes, hold {}; medians of {} rounds, dots of the last; a ring still waits at its end",
        first.processes,
        first.tasks,
        tick(first.hold as f64),
        run.rounds,
    );
    text(&root, &subtitle, (24, 45), 14, PALE)?;
    let micros =
        contended.iter().flat_map(|contention| contention.timeline.iter().map(|(_, wait)| *wait * 1e3));
    let y = Scale::log(micros, tick);
    let x = Scale::linear(0.0, run.contention_section, |at| format!("{at}"));
    let (_, body) = root.split_vertically(76);
    for (contention, area) in contended.iter().zip(body.split_evenly((rows, 2))) {
        let colour = style(&contention.who).colour;
        // The caption carries the colour of the dots, and no legend is needed.
        area.draw(&Circle::new((79, 14), 5, colour.filled()))?;
        let caption = format!(
            "{}: {} a second, longest wait {}",
            contention.who,
            count(contention.median(|turns| turns.rate)),
            time(contention.median(|turns| turns.longest) * 1e3)
        );
        text(&area, &caption, (92, 6), 14, INK)?;
        let (_, area) = area.split_vertically(26);
        let frame = Frame::draw(&area, &x, &y, "time of the grant, in seconds", "wait before it")?;
        for (at, wait) in &contention.timeline {
            let place = frame.place(*at, wait * 1e3);
            if *at < run.contention_section {
                area.draw(&Circle::new(place, 2, colour.mix(0.55).filled()))?;
            } else {
                area.draw(&Circle::new(place, 4, colour))?;
            }
        }
    }
    Ok(root.present()?)
}

/// How a client is drawn everywhere.
struct Style {
    colour: RGBColor,
    /// Lengths of dashes and gaps; none for a whole line.
    dashes: Option<(i32, i32)>,
    square: bool,
}

fn style(who: &str) -> Style {
    let (colour, dashes, square) = match who {
        LINE => (RGBColor(0, 114, 178), None, false),
        FLOOR => (RGBColor(90, 90, 90), Some((7, 4)), true),
        RETRY => (RGBColor(86, 180, 233), Some((3, 3)), true),
        "rslock" | RSLOCK => (RGBColor(213, 94, 0), None, true),
        RSLOCK_DEFAULT => (RGBColor(230, 159, 0), None, true),
        "redlock" | REDLOCK => (RGBColor(0, 158, 115), Some((12, 3)), true),
        "distributed-lock" | DISTRIBUTED_LOCK => (RGBColor(170, 90, 140), Some((3, 3)), true),
        _ => (INK, None, false),
    };
    Style { colour, dashes, square }
}

/// A title, what the colours mean, and a panel for each runtime.
fn panels(
    file: &Path,
    title: &str,
    subtitle: &str,
    clients: &[&str],
    height: u32,
    panel: impl Fn(&str, &Area<'_>) -> Drawn,
) -> Drawn {
    let root = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    text(&root, title, (24, 18), 20, INK)?;
    text(&root, subtitle, (24, 45), 14, PALE)?;
    let mut x = 24;
    for who in clients {
        let style = style(who);
        stroke(&root, &[(x, 81), (x + 34, 81)], &style)?;
        text(&root, who, (x + 42, 73), 14, INK)?;
        // How wide letters are is only known where the plot is shown: on the safe side.
        x += 42 + 8 * who.len() as i32 + 26;
    }
    let (_, body) = root.split_vertically(100);
    for (runtime, area) in RUNTIMES.into_iter().zip(body.split_evenly((1, 2))) {
        text(&area, &format!("{runtime} runtime"), (74, 4), 14, INK)?;
        let (_, area) = area.split_vertically(26);
        panel(runtime, &area)?;
    }
    Ok(root.present()?)
}

fn stroke(area: &Area<'_>, points: &[(i32, i32)], style: &Style) -> Drawn {
    let colour = style.colour.stroke_width(2);
    match style.dashes {
        None => area.draw(&PathElement::new(points.to_vec(), colour))?,
        Some((dash, gap)) => area.draw(&DashedPathElement::new(points.iter().copied(), dash, gap, colour))?,
    }
    Ok(())
}

fn text(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, colour: RGBColor) -> Drawn {
    let style = TextStyle::from((FONT, size).into_font()).color(&colour).pos(Pos::new(HPos::Left, VPos::Top));
    Ok(area.draw_text(text, &style, at)?)
}

/// One axis.
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

impl Scale {
    /// From nothing to a little more than the largest of these.
    fn from_zero(values: impl Iterator<Item = f64>, label: impl Fn(f64) -> String) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        Self::linear(0.0, if most > 0.0 { most * 1.06 } else { 1.0 }, label)
    }

    /// With four to nine ticks at round numbers.
    fn linear(from: f64, to: f64, label: impl Fn(f64) -> String) -> Self {
        let power = 10_f64.powf((to - from).log10().floor() - 1.0);
        let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| (to - from) / step <= 7.0).unwrap_or(to - from);
        let ticks = (0..).map(|tick| from + f64::from(tick) * step).take_while(|tick| *tick <= to);
        // Without the noise of the last binary digits.
        let round = |tick: f64| (tick / power).round() * power;
        Self { from, to, log: false, ticks: ticks.map(|tick| (tick, label(round(tick)))).collect() }
    }

    /// Around all of these that are more than nothing, with ticks at 1, 2, 5 of each power of ten, or at the powers
    /// alone where there are many.
    fn log(values: impl Iterator<Item = f64>, label: impl Fn(f64) -> String) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
        let (least, most) = if least <= most { (least, most) } else { (1.0, 10.0) };
        let (from, to) = (least / 1.25, most * 1.25);
        let powers = (from.log10().floor() as i32..=to.log10().ceil() as i32).map(|power| 10_f64.powi(power));
        let steps: &[f64] = if to / from > 2_000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let ticks = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        let ticks = ticks.filter(|tick| (from..=to).contains(tick)).map(|tick| (tick, label(tick))).collect();
        Self { from, to, log: true, ticks }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = if self.log {
            (value.max(self.from) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        place.clamp(0.0, 1.0)
    }
}

/// A panel with its axes, in which data can be placed.
struct Frame<'a, 'b> {
    area: &'a Area<'b>,
    x: &'a Scale,
    y: &'a Scale,
    left: i32,
    top: i32,
    width: f64,
    height: f64,
}

impl<'a, 'b> Frame<'a, 'b> {
    fn draw(area: &'a Area<'b>, x: &'a Scale, y: &'a Scale, x_name: &str, y_name: &str) -> Drawn<Self> {
        let (width, height) = area.dim_in_pixel();
        let (left, top, right, bottom) = (74, 8, 24, 48);
        let (width, height) =
            (f64::from(width) - f64::from(left + right), f64::from(height) - f64::from(top + bottom));
        let frame = Self { area, x, y, left, top, width, height };
        let (right, bottom) = (left + width as i32, top + height as i32);
        let label = |horizontal, vertical| {
            let font = (FONT, 12).into_font();
            TextStyle::from(font).color(&PALE).pos(Pos::new(horizontal, vertical))
        };
        for (value, name) in y.ticks.iter().filter(|(value, _)| (y.from..=y.to).contains(value)) {
            let (_, at) = frame.place(x.from, *value);
            area.draw(&PathElement::new(vec![(left, at), (right, at)], GRID))?;
            area.draw_text(name, &label(HPos::Right, VPos::Center), (left - 8, at))?;
        }
        for (value, name) in x.ticks.iter().filter(|(value, _)| (x.from..=x.to).contains(value)) {
            let (at, _) = frame.place(*value, y.from);
            area.draw(&PathElement::new(vec![(at, bottom), (at, bottom + 5)], PALE))?;
            area.draw_text(name, &label(HPos::Center, VPos::Top), (at, bottom + 9))?;
        }
        area.draw(&PathElement::new(vec![(left, bottom), (right, bottom)], PALE))?;
        let middle = ((left + right) / 2, (top + bottom) / 2);
        area.draw_text(x_name, &label(HPos::Center, VPos::Top), (middle.0, bottom + 28))?;
        let upwards = (FONT, 12).into_font().transform(FontTransform::Rotate270);
        let upwards = TextStyle::from(upwards).color(&PALE).pos(Pos::new(HPos::Center, VPos::Top));
        area.draw_text(y_name, &upwards, (6, middle.1))?;
        Ok(frame)
    }

    fn place(&self, x: f64, y: f64) -> (i32, i32) {
        let (x, y) = (self.x.place(x) * self.width, (1.0 - self.y.place(y)) * self.height);
        (self.left + x.round() as i32, self.top + y.round() as i32)
    }

    fn line(&self, points: &Points, style: &Style, marked: bool) -> Drawn {
        let places: Vec<(i32, i32)> = points.iter().map(|(x, y)| self.place(*x, *y)).collect();
        stroke(self.area, &places, style)?;
        for (x, y) in places.into_iter().filter(|_| marked) {
            let colour = style.colour.filled();
            if style.square {
                self.area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], colour))?;
            } else {
                self.area.draw(&Circle::new((x, y), 5, colour))?;
            }
        }
        Ok(())
    }
}
