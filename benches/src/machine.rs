//! Where and when a run was made: what a reader needs to judge its figures.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use serde::{Deserialize, Serialize};

/// The machine, the day and the versions of a run.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[allow(missing_docs)]
pub struct Machine {
    pub date: String,
    pub processor: String,
    pub cores: usize,
    pub memory: String,
    pub system: String,
    /// How busy it was before anything was started: processes that ran or wanted to, over the last minute.
    pub load: String,
    pub rustc: String,
    pub server: String,
    /// Packages and their versions.
    pub versions: Vec<(String, String)>,
}

/// The packages whose versions matter for the figures.
const PACKAGES: [&str; 6] = ["redquorum", "redis", "tokio", "rslock", "redlock", "distributed-lock-redis"];

impl Machine {
    /// This machine, now.
    pub fn here(server: String) -> Self {
        let uname = rustix::system::uname();
        let of = |file: &str, name: &str| {
            let text = fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or("unknown".into(), |line| line.trim_start_matches([':', ' ', '\t']).to_owned())
        };
        let kib = of("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse::<f64>().unwrap_or(f64::NAN);
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            date: said("date", &["-u", "+%Y-%m-%d"]),
            processor: of("/proc/cpuinfo", "model name"),
            cores: available_parallelism().map_or(1, Into::into),
            memory: format!("{:.0} GiB", kib / 1_048_576.0),
            system: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            load: load.split(' ').next().unwrap_or("unknown").to_owned(),
            rustc: said("rustc", &["--version"]).split(' ').take(2).collect::<Vec<_>>().join(" "),
            server,
            versions: PACKAGES.iter().map(|name| ((*name).to_owned(), locked(name))).collect(),
        }
    }
}

/// The version of a package that this program was built with: the newest, where a peer brings an old one along.
fn locked(package: &str) -> String {
    let name = format!("name = \"{package}\"");
    let lines = include_str!("../Cargo.lock").lines();
    let versions = lines.clone().zip(lines.skip(1)).filter(|(line, _)| *line == name).map(|(_, next)| next);
    let newest = versions.last().and_then(|line| line.strip_prefix("version = "));
    newest.map_or("unknown".into(), |version| version.trim_matches('"').to_owned())
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
