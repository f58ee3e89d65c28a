//! What the storm blows on: five server processes of this machine, or the five containers of docker-compose.yml.
//!
//! Containers can be cut off their network. They cannot be wiped, filled, kept from saving, put back to an older state, replaced or
//! set to another time from outside as processes are here; everything else is done to both. Both stand behind the same proxies.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::history::Kind;
use super::ms;
use super::servers::Servers;
use harness::Proxy;

pub const NODES: usize = 5;

/// A server that writes to a busy disk before it answers may take seconds.
const PATIENCE: Duration = Duration::from_secs(15);

/// See the module.
pub enum Nodes {
    Servers(Box<Servers>),
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
    /// Server processes, two of which keep what they know across a crash.
    pub fn servers() -> Self {
        Self::Servers(Box::new(Servers::start()))
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
            Self::Servers(servers) => servers.suffer(kind),
            Self::Containers(_) => !matches!(
                kind,
                Kind::Wiped
                    | Kind::FullMemory
                    | Kind::FailedSave
                    | Kind::Restored
                    | Kind::Promoted
                    | Kind::SteppedNode
                    | Kind::StoodStill
            ),
        }
    }

    /// A proxy before each.
    pub fn proxies(&self) -> Vec<Proxy> {
        match self {
            Self::Servers(servers) => servers.iter().map(Proxy::start).collect(),
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

    /// All forget at the same moment, give or take some milliseconds.
    pub fn flush_all(&self, delays: &[Duration], command: &str) {
        let urls = self.each(str::to_owned);
        thread::scope(|scope| {
            for (url, delay) in urls.iter().zip(delays) {
                scope.spawn(move || {
                    thread::sleep(*delay);
                    ask::<String>(url, &[command]).expect("a node is flushed");
                });
            }
        });
    }

    fn each<T>(&self, ask: impl Fn(&str) -> T) -> Vec<T> {
        match self {
            Self::Servers(servers) => servers.iter().map(|server| ask(&server.url())).collect(),
            Self::Containers(containers) => containers.iter().map(|container| ask(&container.url)).collect(),
        }
    }

    /// Does it to a node.
    pub fn begin(&self, kind: Kind, node: usize) {
        match self {
            Self::Servers(servers) => servers.begin(kind, node),
            Self::Containers(containers) => containers[node].begin(kind),
        }
    }

    /// Ends it.
    pub fn finish(&self, kind: Kind, node: usize) {
        match self {
            Self::Servers(servers) => servers.finish(kind, node),
            Self::Containers(containers) => containers[node].finish(kind),
        }
    }
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
    let mut connection = client.get_connection_with_timeout(PATIENCE).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
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
