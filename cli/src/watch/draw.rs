//! How `watch` looks, on any terminal from some 60 columns on.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Padding, Paragraph, Row, Table};

use super::model::{Lock, Model};
use crate::nodes::{state, vote, votes};
use crate::output::{Tone, time};

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Strong => Style::new().add_modifier(Modifier::BOLD),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
        Tone::Good => Style::new().fg(Color::Green),
        Tone::Doubtful => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}

fn framed(title: String) -> Block<'static> {
    let title = Span::styled(format!(" {title} "), style(Tone::Strong));
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(style(Tone::Faint))
        .title(title)
        .padding(Padding::horizontal(1))
}

fn cell(tone: Tone, text: impl Into<String>) -> Cell<'static> {
    Cell::from(Span::styled(text.into(), style(tone)))
}

fn rows(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX).saturating_add(3)
}

/// Draws everything.
pub fn draw(frame: &mut Frame, model: &Model, since: Duration) {
    let locks = if model.locks.is_empty() { 0 } else { rows(model.locks.len()) };
    let parts = [
        Constraint::Length(rows(model.nodes.len())),
        Constraint::Length(locks),
        Constraint::Min(3),
        Constraint::Length(1),
    ];
    let [nodes_at, locks_at, events_at, foot_at] = Layout::vertical(parts).areas(frame.area());
    nodes(frame, model, nodes_at);
    if locks > 0 {
        self::locks(frame, model, locks_at);
    }
    events(frame, model, events_at);
    let voting = model.nodes.iter().filter(|node| votes(node)).count();
    let needed = model.nodes.len() / 2 + 1;
    let tone = if voting >= needed { Tone::Good } else { Tone::Bad };
    let foot = Line::from(vec![
        Span::styled(format!(" {voting} of {} vote, {needed} needed", model.nodes.len()), style(tone)),
        Span::styled(format!("   watching for {}   q ends", time(since)), style(Tone::Faint)),
    ]);
    frame.render_widget(Paragraph::new(foot), foot_at);
}

fn nodes(frame: &mut Frame, model: &Model, at: Rect) {
    let table = model.nodes.iter().enumerate().map(|(index, node)| {
        let (state, state_tone) = state(node);
        let (vote, vote_tone) = vote(node);
        Row::new([
            cell(Tone::Plain, format!("n{}", index + 1)),
            cell(Tone::Plain, &*node.address),
            cell(state_tone, state),
            cell(vote_tone, vote),
            cell(Tone::Plain, node.version.as_deref().unwrap_or("-")),
            cell(Tone::Plain, node.round_trip.map_or("-".to_owned(), time)),
        ])
    });
    let widths = [
        Constraint::Length(3),
        Constraint::Fill(3),
        Constraint::Fill(2),
        Constraint::Length(16),
        Constraint::Length(11),
        Constraint::Length(9),
    ];
    let head = Row::new(["", "node", "state", "vote", "server", "answers"]).style(style(Tone::Faint));
    frame.render_widget(Table::new(table, widths).header(head).block(framed("nodes".to_owned())), at);
}

fn locks(frame: &mut Frame, model: &Model, at: Rect) {
    let row = |lock: &Lock| {
        let (holder, tone) = match (&lock.holder, lock.is_known()) {
            (_, false) => ("not known".to_owned(), Tone::Bad),
            (Some(holder), true) => (holder.clone(), Tone::Good),
            (None, true) => ("free".to_owned(), Tone::Faint),
        };
        Row::new([
            cell(Tone::Strong, lock.key.clone()),
            cell(tone, holder),
            cell(Tone::Plain, lock.remaining.map_or("-".to_owned(), time)),
            cell(if lock.waiting > 0 { Tone::Doubtful } else { Tone::Faint }, lock.waiting.to_string()),
        ])
    };
    let widths = [Constraint::Fill(2), Constraint::Fill(2), Constraint::Length(10), Constraint::Length(8)];
    let head = Row::new(["lock", "holder", "remaining", "in line"]).style(style(Tone::Faint));
    let table = Table::new(model.locks.iter().map(row), widths).header(head);
    frame.render_widget(table.block(framed("locks".to_owned())), at);
}

fn events(frame: &mut Frame, model: &Model, at: Rect) {
    let line = |event: &super::model::Event| {
        Line::from(vec![
            Span::styled(format!("{:>8}  ", time(event.at)), style(Tone::Faint)),
            Span::styled(event.text.clone(), style(event.tone)),
        ])
    };
    let lines: Vec<_> = match model.events.is_empty() {
        true => vec![Line::styled("nothing has changed yet", style(Tone::Faint))],
        false => model.events.iter().map(line).collect(),
    };
    frame.render_widget(Paragraph::new(lines).block(framed("events".to_owned())), at);
}
