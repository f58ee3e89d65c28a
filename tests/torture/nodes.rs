//! What the storm blows on: five server processes of this machine, or the five containers of docker-compose.yml.
//!
//! Containers can be cut off their network, and cannot be wiped, filled or kept from saving from outside as processes are here;
//! everything else is done to both. Both stand behind the same proxies.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::history::Kind;
use super::ms;
use harness::{Cluster, Proxy, Server};

pub const NODES: usize = 5;

/// See the module.
pub enum Nodes {
    Servers(Cluster),
    Containers(Vec<Container>),
}

/// One node of docker-compose.yml.
pub struct Container {
    id: String,
    network: String,
    port: u16,
    url: String,
}

impl Nodes {
    /// Two servers that keep what they know across a crash, three that do not.
    pub fn servers() -> Self {
        Self::Servers(Cluster::start_with(NODES, |node| {
            let server = Server::builder().args(["--dbfilename", "blocked"]);
            if node < 2 { server.aof() } else { server }
        }))
    }

    /// The containers of a project, which is up.
    pub fn containers(project: &str) -> Self {
        let list =
            docker(&["ps", "--quiet", "--filter", &format!("label=com.docker.compose.project={project}")]);
        let mut containers: Vec<Container> = list.lines().map(Container::find).collect();
        containers.sort_by_key(|container| container.port);
        assert_eq!(containers.len(), NODES, "the nodes of docker-compose.yml as project {project}");
        Self::Containers(containers)
    }

    /// What can be done to them.
    pub fn suffers(&self, kind: Kind) -> bool {
        match self {
            Self::Servers(_) => kind != Kind::Disconnected,
            Self::Containers(_) => !matches!(kind, Kind::Wiped | Kind::FullMemory | Kind::FailedSave),
        }
    }

    /// A proxy before each.
    pub fn proxies(&self) -> Vec<Proxy> {
        match self {
            Self::Servers(cluster) => cluster.proxies(),
            Self::Containers(containers) => {
                containers.iter().map(|container| Proxy::before(container.port)).collect()
            }
        }
    }

    /// With the restart delay on, servers vote once they are older than the longest TTL.
    pub fn are_older_than(&self, age: Duration) -> bool {
        let server = |info: &str| {
            let seconds = info.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"))?;
            seconds.trim().parse::<u64>().ok()
        };
        self.each(|url| ask::<String>(url, &["INFO", "server"]))
            .iter()
            .all(|info| info.as_deref().and_then(server).is_some_and(|seconds| seconds > age.as_secs()))
    }

    /// The keys of locks that are there.
    pub fn lock_keys(&self) -> Vec<String> {
        let keys = self.each(|url| ask::<Vec<String>>(url, &["KEYS", "*"]));
        let keys = keys.into_iter().map(|keys| keys.expect("a node tells its keys"));
        keys.flatten().filter(|key| !key.contains("redquorum:")).collect()
    }

    fn each<T>(&self, ask: impl Fn(&str) -> T) -> Vec<T> {
        match self {
            Self::Servers(cluster) => cluster.iter().map(|server| ask(&server.url())).collect(),
            Self::Containers(containers) => containers.iter().map(|container| ask(&container.url)).collect(),
        }
    }

    /// Does it to a node.
    pub fn begin(&self, kind: Kind, node: usize) {
        match self {
            Self::Servers(cluster) => begin(kind, &cluster[node]),
            Self::Containers(containers) => containers[node].begin(kind),
        }
    }

    /// Ends it.
    pub fn finish(&self, kind: Kind, node: usize) {
        match self {
            Self::Servers(cluster) => finish(kind, &cluster[node]),
            Self::Containers(containers) => containers[node].finish(kind),
        }
    }
}

fn begin(kind: Kind, server: &Server) {
    match kind {
        Kind::Frozen => server.freeze(),
        Kind::Crashed => server.kill9(),
        Kind::Wiped => server.wipe(),
        Kind::FullMemory => drop(server.command(&["CONFIG", "SET", "maxmemory", "1"])),
        Kind::FailedSave => {
            // A folder stands where the file should be.
            fs::create_dir_all(dump(server)).expect("a folder");
            server.command(&["CONFIG", "SET", "save", "3600 1"]);
            drop(server.try_command(&["BGSAVE"]));
            saved(server);
        }
        Kind::FlushedScripts => drop(server.command(&["SCRIPT", "FLUSH"])),
        _ => {}
    }
}

fn finish(kind: Kind, server: &Server) {
    match kind {
        Kind::Frozen => server.thaw(),
        Kind::Crashed => server.restart(),
        Kind::FullMemory => drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
        Kind::FailedSave => {
            server.command(&["CONFIG", "SET", "save", ""]);
            saved(server);
            // A server that starts would try to read it.
            fs::remove_dir(dump(server)).expect("the folder was there");
        }
        _ => {}
    }
}

/// Waits until no save is under way any more.
fn saved(server: &Server) {
    while server.info("persistence", "rdb_bgsave_in_progress").is_some_and(|saves| saves != "0") {
        thread::sleep(ms(5));
    }
}

/// The file that a server would save to.
fn dump(server: &Server) -> PathBuf {
    let folder = server.command(&["CONFIG", "GET", "dir"]);
    let folder: HashMap<String, String> = redis::from_redis_value(folder).expect("a folder");
    Path::new(&folder["dir"]).join("blocked")
}

impl Container {
    fn find(id: &str) -> Self {
        let inspect = |format: &str| docker(&["inspect", "--format", format, id]);
        let port = inspect("{{(index (index .NetworkSettings.Ports \"6379/tcp\") 0).HostPort}}");
        let network = inspect("{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}");
        let port: u16 = port.parse().expect("a published port");
        Self { id: id.to_owned(), network, port, url: format!("redis://127.0.0.1:{port}") }
    }

    fn begin(&self, kind: Kind) {
        match kind {
            Kind::Frozen => drop(docker(&["pause", &self.id])),
            Kind::Crashed => drop(docker(&["kill", &self.id])),
            Kind::Disconnected => drop(docker(&["network", "disconnect", &self.network, &self.id])),
            Kind::FlushedScripts => drop(ask::<String>(&self.url, &["SCRIPT", "FLUSH"])),
            _ => {}
        }
    }

    fn finish(&self, kind: Kind) {
        match kind {
            Kind::Frozen => drop(docker(&["unpause", &self.id])),
            Kind::Crashed => drop(docker(&["start", &self.id])),
            Kind::Disconnected => drop(docker(&["network", "connect", &self.network, &self.id])),
            _ => return,
        }
        // A node is back once it answers.
        let deadline = Instant::now() + Duration::from_secs(20);
        while ask::<String>(&self.url, &["PING"]).is_none() {
            assert!(Instant::now() < deadline, "the node on port {} does not come back", self.port);
            thread::sleep(ms(20));
        }
    }
}

/// What a node answers; nothing where it does not.
fn ask<T: redis::FromRedisValue>(url: &str, command: &[&str]) -> Option<T> {
    let client = redis::Client::open(url).expect("an address");
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let (name, arguments) = command.split_first().expect("a command");
    redis::cmd(name).arg(arguments).query(&mut connection).ok()
}

/// What the engine's command line answers.
fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
