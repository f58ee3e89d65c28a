//! `redquorum watch`: nodes and locks, live, until somebody has seen enough.

mod draw;
mod model;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use crate::args::{Common, Watch};
use crate::exit::{self, Failure};
use crate::nodes::all_tried;
use crate::output::{Colours, Output};
use crate::places::Places;
use model::{Lock, Model};

/// How soon the thread that waits for keys notices that nobody listens any more.
const KEY: Duration = Duration::from_millis(100);

/// What somebody did at the keyboard.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    End,
    Resized,
}

pub async fn watch(common: &Common, args: &Watch, output: &Output) -> Result<u8, Failure> {
    if output.json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::usage("`watch` needs a terminal")
            .next("for machines, ask again and again: redquorum --json status KEY, redquorum --json nodes"));
    }
    let places = Places::find(common)?;
    let redlock = all_tried(&places).await?;
    if common.color == Colours::Never {
        ratatui::crossterm::style::force_color_output(false);
    }
    let mut terminal = ratatui::try_init()?;
    let _restored = Restored;
    let mut typed = keys();
    let mut model = Model::default();
    let began = Instant::now();
    let mut looks = tokio::time::interval(args.every.max(Duration::from_millis(20)));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut ending = std::pin::pin!(ended());
    loop {
        tokio::select! {
            biased;
            () = &mut ending => break,
            typed = typed.recv() => if typed.is_none_or(|typed| typed == Typed::End) {
                break;
            },
            _ = looks.tick() => {
                let mut locks = Vec::with_capacity(args.keys.len());
                for key in &args.keys {
                    let found = redlock.inspect(key).await.map_err(|error| Failure::usage(error.to_string()))?;
                    locks.push(Lock::of(key, &found));
                }
                model.look(began.elapsed(), redlock.nodes(), locks);
            }
        }
        terminal.draw(|frame| draw::draw(frame, &model, began.elapsed()))?;
    }
    redlock.close(Duration::ZERO).await;
    Ok(exit::OK)
}

/// Gives the terminal back as it was, however the watch ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Waits for keys on a thread of its own, since reading them blocks.
fn keys() -> mpsc::Receiver<Typed> {
    let (sender, receiver) = mpsc::channel(8);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let typed = match event::poll(KEY) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(_) => return,
            };
            let meant = match typed {
                Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    let interrupted =
                        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                    let ends = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || interrupted;
                    if ends { Typed::End } else { continue }
                }
                Ok(Event::Resize(..)) => Typed::Resized,
                Ok(_) => continue,
                Err(_) => return,
            };
            if sender.blocking_send(meant).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Ends when somebody asks this process to.
async fn ended() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut term), Ok(mut hangup)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()))
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = hangup.recv() => {}
        }
    }
    #[cfg(not(unix))]
    std::future::pending().await
}
