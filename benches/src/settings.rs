//! What the command line says: how long each measurement takes, and how often it is repeated.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long one client is measured in one round.
    pub section: Duration,
    /// How many rounds the figures are medians of.
    pub rounds: usize,
    /// How long processes contend in one round.
    pub contention: Duration,
    /// Whether this run only shows that everything works.
    pub quick: bool,
}

impl Settings {
    /// Reads `[--quick] [SECONDS]`; says what is wrong with anything else.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut quick, mut seconds) = (false, None);
        for argument in arguments {
            match argument.parse::<f64>() {
                Ok(number) if number > 0.0 && number <= 600.0 => {
                    seconds = Some(Duration::from_secs_f64(number))
                }
                Ok(_) => {
                    return Err(format!("{argument} seconds for each measurement: more than 0, at most 600"));
                }
                Err(_) if argument == "--quick" => quick = true,
                Err(_) => return Err(format!("{argument:?}: neither --quick nor a number of seconds")),
            }
        }
        let default = if quick { Self::quick() } else { Self::full() };
        // Who is starved waits for seconds: the same time would show too few of them.
        let contention = seconds.map_or(default.contention, |seconds| seconds * 8);
        Ok(Self { section: seconds.unwrap_or(default.section), contention, ..default })
    }

    /// Just as much as it takes to have done everything once.
    pub fn brief(&self) -> Self {
        Self { section: Duration::from_millis(20), rounds: 1, ..*self }
    }

    const fn full() -> Self {
        Self {
            section: Duration::from_millis(600),
            rounds: 5,
            contention: Duration::from_secs(5),
            quick: false,
        }
    }

    const fn quick() -> Self {
        Self {
            section: Duration::from_millis(20),
            rounds: 3,
            contention: Duration::from_millis(500),
            quick: true,
        }
    }
}

/// Tells a person what goes on, and for how long the program has been running.
pub fn step(what: &str) {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    let since = STARTED.get_or_init(Instant::now).elapsed();
    eprintln!("{:4.0} s  {what}", since.as_secs_f64());
}
