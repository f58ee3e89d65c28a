//! Where the nodes and the numbers of a client come from: flags, the environment, a file, in that order.
//!
//! Knows the names of the settings and where a file may lie. Shows no value that it read, since addresses hold passwords.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redquorum::{Redlock, RedlockBuilder};
use serde::Deserialize;

use crate::args::{Common, duration};
use crate::exit::{CONFIG, Failure};
use crate::words::split;

/// What a configuration file may say. Anything else in it is a mistake that is told.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct File {
    #[serde(default)]
    nodes: Vec<String>,
    prefix: Option<String>,
    #[serde(default, deserialize_with = "time")]
    ttl: Option<Duration>,
    #[serde(default, deserialize_with = "time")]
    wait: Option<Duration>,
    #[serde(default, deserialize_with = "time")]
    restart_delay: Option<Duration>,
    #[serde(default)]
    no_restart_delay: bool,
    #[serde(default, deserialize_with = "time")]
    connect_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "time")]
    reply_timeout: Option<Duration>,
}

fn time<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    duration(&text).map(Some).map_err(serde::de::Error::custom)
}

/// The nodes, and what was said about a client of them.
#[derive(Clone, Debug)]
pub struct Places {
    /// URLs, which may hold passwords.
    pub urls: Vec<String>,
    pub prefix: String,
    pub ttl: Option<Duration>,
    pub wait: Option<Duration>,
    pub delay: Delay,
    pub connect_timeout: Option<Duration>,
    pub reply_timeout: Option<Duration>,
}

/// What was said of the restart delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    Default,
    Of(Duration),
    Off,
}

impl Places {
    /// What flags, environment and file say together; without a node it is an error that says where to name one.
    pub fn find(common: &Common) -> Result<Self, Failure> {
        let places = Self::find_any(common)?;
        if places.urls.is_empty() {
            let next = format!(
                "name them with --nodes redis://host1,redis://host2,redis://host3, in REDQUORUM_NODES, or as \
                 nodes = [\"redis://host1\", …] in {}",
                candidates().first().map_or("a file".to_owned(), |path| path.display().to_string())
            );
            return Err(Failure::new(CONFIG, "config", "no node is named anywhere").next(next));
        }
        Ok(places)
    }

    /// As [`Places::find`], but there may be no node.
    pub fn find_any(common: &Common) -> Result<Self, Failure> {
        let file = match &common.config {
            Some(path) => read(path)?,
            None => match candidates().iter().find(|path| path.is_file()) {
                Some(path) => read(path)?,
                None => File::default(),
            },
        };
        let given: Vec<_> = common.nodes.iter().flat_map(|given| split(given)).collect();
        let delay = match (common.no_restart_delay, common.restart_delay) {
            (true, _) => Delay::Off,
            (false, Some(delay)) => Delay::Of(delay),
            (false, None) if file.no_restart_delay => Delay::Off,
            (false, None) => file.restart_delay.map_or(Delay::Default, Delay::Of),
        };
        Ok(Self {
            urls: if given.is_empty() { file.nodes } else { given },
            prefix: common.prefix.clone().or(file.prefix).unwrap_or_default(),
            ttl: file.ttl,
            wait: file.wait,
            delay,
            connect_timeout: common.connect_timeout.or(file.connect_timeout),
            reply_timeout: common.reply_timeout.or(file.reply_timeout),
        })
    }

    /// A builder of a client of these nodes.
    pub fn builder(&self) -> RedlockBuilder {
        self.settings().nodes(self.urls.iter().map(String::as_str))
    }

    /// The same, without its nodes.
    pub fn settings(&self) -> RedlockBuilder {
        let mut builder = Redlock::builder().prefix(&self.prefix);
        builder = match self.delay {
            Delay::Default => builder,
            Delay::Of(delay) => builder.restart_delay(delay),
            Delay::Off => builder.without_restart_delay(),
        };
        if let Some(timeout) = self.connect_timeout {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(timeout) = self.reply_timeout {
            builder = builder.reply_timeout(timeout);
        }
        if let Some(ttl) = self.ttl {
            builder = builder.ttl(ttl);
        }
        builder
    }
}

/// Where a file is looked for, the best place first: the user's, then the system's. Not in the current directory, so that
/// nobody is led to other nodes by what lies there.
pub fn candidates() -> Vec<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let mut paths: Vec<_> = user.map(|dir| dir.join("redquorum/config.toml")).into_iter().collect();
    paths.push("/etc/redquorum.toml".into());
    paths
}

fn read(path: &Path) -> Result<File, Failure> {
    let failed = |what: String| {
        let what = format!("{} cannot be used: {what}", path.display());
        Failure::new(CONFIG, "config", what).next("`redquorum help nodes` shows what such a file may say")
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse(&text).map_err(failed)
}

/// What a file says, or where and why it says nothing, without any value that is in it.
fn parse(text: &str) -> Result<File, String> {
    // The parser's longer words quote the line, which may hold a password.
    toml::from_str(text).map_err(|error| {
        let line = error.span().and_then(|span| Some(text.get(..span.start)?.lines().count().max(1)));
        let line = line.map_or(String::new(), |line| format!("line {line}: "));
        format!("{line}{}", unquoted(error.message()))
    })
}

/// A parser's message without any value that it quotes.
fn unquoted(message: &str) -> &str {
    if message.contains("://") { "a value that does not belong there" } else { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A misspelt setting is a mistake, not ignored.
    #[test]
    fn a_misspelt_setting_is_refused() {
        assert!(toml::from_str::<File>("ndoes = []").is_err());
        let file: File = toml::from_str("nodes = [\"redis://a\"]\nttl = \"5s\"\nprefix = \"app:\"").unwrap();
        assert_eq!((file.nodes.len(), file.ttl), (1, Some(Duration::from_secs(5))));
    }

    /// Law: whatever stands in a file, it is read or refused in words that show no password. Twenty thousand files, or
    /// `REDQUORUM_FUZZ`, each bent from one that is right.
    #[test]
    fn any_file_is_read_or_refused_without_showing_a_password() {
        use rand::rngs::StdRng;
        use rand::{RngExt, SeedableRng};

        const WHOLE: &str = "nodes = [\"redis://user:S3ntinel@a:1/3\", \"rediss://:S3ntinel@b\"]\nprefix = \"app:\"\n\
                             ttl = \"5s\"\nwait = \"1.5m\"\nrestart-delay = \"1h\"\nno-restart-delay = false\n\
                             connect-timeout = \"300ms\"\nreply-timeout = \"50 us\"\n";
        const PIECES: [&str; 24] = [
            "\"",
            "'",
            "\n",
            "=",
            "[",
            "]",
            "{",
            "}",
            ",",
            ".",
            "#",
            "nodes",
            "ttl",
            "9e999",
            "99999999999999999999",
            "-1",
            "true",
            "1979-05-27",
            "\\u0000",
            "\\",
            "µs",
            "\u{1f512}",
            "[[nodes]]",
            "\"\"\"",
        ];
        let count = std::env::var("REDQUORUM_FUZZ").map_or(20_000, |count| count.parse().expect("a number"));
        let mut random = StdRng::seed_from_u64(1);
        let (mut good, mut bad) = (0, 0);
        for number in 0..count {
            let mut text: Vec<char> = WHOLE.chars().collect();
            for _ in 0..random.random_range(0..5) {
                let at = random.random_range(0..=text.len());
                let end = (at + random.random_range(0..4)).min(text.len());
                let piece = PIECES[random.random_range(0..PIECES.len())];
                text.splice(at..end, piece.chars().take(random.random_range(0..30)));
            }
            let text: String = text.into_iter().collect();
            match parse(&text) {
                Ok(_) => good += 1,
                Err(why) => {
                    // A password that was broken in two is none any more.
                    assert!(!why.contains("S3ntinel") && why.len() < 500, "{number}: {text:?}: {why:?}");
                    bad += 1;
                }
            }
            let _ = (split(&text), duration(&text));
        }
        assert!(good > 0 && bad > 0, "{good} were read, {bad} refused");
    }
}
