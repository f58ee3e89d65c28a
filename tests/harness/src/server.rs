//! One real server process, and the ways in which it can fail.
//!
//! The harness speaks to a server over a Unix socket of its own and as a user of its own. So a test may
//! cut, slow or encrypt the TCP port, set a password or lock the default user out, and still look at
//! what the server holds.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use redis::{FromRedisValue, RedisResult, ToRedisArgs, Value};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tempfile::TempDir;

use crate::port::Port;
use crate::tls::{Certificate, Tls};

/// A healthy server answers within 50 ms; this is for a machine that is busy building.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// One that writes to a busy disk before it answers may take seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

const USER: &str = "harness";
const PASSWORD: &str = "harness";

/// Becomes the server, and leaves a watcher behind that ends the server with the test process.
///
/// The watcher blocks on a pipe whose other end only the test process holds: the pipe closes on every
/// kind of death, SIGKILL included, and a frozen server dies of SIGKILL too. A line on the pipe instead
/// of its end says that the server is gone already, and its process id must not be touched any more.
/// PR_SET_PDEATHSIG would need unsafe code here, and fires when the *thread* that started the server
/// ends, not the process. The watcher ignores what a terminal sends to the whole group at Ctrl-C.
///
/// `$0` is the server's directory, which has nobody left to remove it then.
const LAUNCH: &str = r#"
exec 3<&0 </dev/null
(
    trap '' INT TERM HUP
    read -r line <&3 || { kill -9 $$; rm -rf "$0"; }
) &
exec "$@" 3<&-
"#;

/// How to start a [`Server`]; made by [`Server::builder`].
#[derive(Default)]
#[must_use]
pub struct ServerBuilder {
    binary: Option<PathBuf>,
    args: Vec<String>,
    aof: bool,
    tls: Option<Certificate>,
    clock: Option<(PathBuf, PathBuf)>,
}

impl ServerBuilder {
    /// Moves the server's wall clock by what the file `clock` says, with the `library` of [`super::faketime`].
    pub fn clock_in(mut self, library: impl Into<PathBuf>, clock: impl Into<PathBuf>) -> Self {
        self.clock = Some((library.into(), clock.into()));
        self
    }

    /// Another server program than the one that the environment names.
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Appends to the command line, for example `.args(["--maxmemory", "2mb"])`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Keeps every write across crashes and restarts (`appendfsync always`). Without it a server
    /// forgets everything when it ends.
    pub fn aof(mut self) -> Self {
        self.aof = true;
        self
    }

    /// Serves TLS, and only TLS, on the port. See [`Server::supports_tls`] and [`Server::ca`].
    pub fn tls(self) -> Self {
        self.tls_with(Certificate::Good)
    }

    /// The same with a certificate of this kind.
    pub fn tls_with(mut self, certificate: Certificate) -> Self {
        self.tls = Some(certificate);
        self
    }

    /// Starts the server and waits until it answers. Panics, with the server's own words, where it
    /// does not.
    pub fn start(self) -> Server {
        self.try_start().unwrap_or_else(|log| panic!("the server did not start: {log}"))
    }

    /// As [`start`](Self::start), but hands out what a server wrote that did not start.
    pub fn try_start(self) -> Result<Server, String> {
        let dir = TempDir::with_prefix("redquorum-").expect("make a directory for the server");
        let tls = self.tls.map(|kind| Tls::generate(dir.path(), kind).expect("make certificates"));
        let mut server = Server {
            binary: Mutex::new(self.binary.unwrap_or_else(server_binary)),
            args: self.args,
            aof: self.aof,
            tls,
            clock: self.clock,
            port: Port::reserve().expect("reserve a port"),
            dir: Some(dir),
            process: Mutex::new(None),
        };
        // Where a port cannot be reserved, somebody may have been quicker.
        for _ in 0..3 {
            match server.launch() {
                Err(log) if log.contains("Address already in use") => {
                    server.port = Port::reserve().expect("reserve a port");
                }
                ended => return ended.map(|()| server),
            }
        }
        Err("no free port found in three tries".to_owned())
    }
}

/// A server process on a port of its own; killed when dropped, and when the test process dies.
///
/// All methods block until what they say has happened. A method that asks the server panics while it
/// is frozen or down: a test that does so is wrong about its own state.
pub struct Server {
    binary: Mutex<PathBuf>,
    args: Vec<String>,
    aof: bool,
    tls: Option<Tls>,
    /// What moves its wall clock, and the file that says by how much.
    clock: Option<(PathBuf, PathBuf)>,
    port: Port,
    /// `None` once kept for reading after a failed test.
    dir: Option<TempDir>,
    /// `None` while the server is down.
    process: Mutex<Option<Process>>,
}

struct Process {
    child: Child,
    lifeline: ChildStdin,
    /// `None` after an error that left it unusable.
    connection: Option<redis::Connection>,
}

impl Server {
    /// Starts a plain server: no persistence, no password, no TLS.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// To start one in another way.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Whether the server program that the environment names was built with TLS.
    pub fn supports_tls() -> bool {
        // Newer servers know the directives in any case, so only a start tells.
        match Self::builder().tls().try_start() {
            Ok(_) => true,
            Err(log) => {
                let without = log.contains("tls-port") || log.contains("TLS support");
                assert!(without, "the server did not start: {log}");
                false
            }
        }
    }

    // Where it is.

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The url of the TCP port, for the default user.
    pub fn url(&self) -> String {
        self.url_with(None, None, 0)
    }

    /// The url of the TCP port with credentials (any characters) and a database.
    pub fn url_with(&self, user: Option<&str>, password: Option<&str>, db: u32) -> String {
        self.url_at(self.port(), user, password, db)
    }

    /// As [`url_with`](Self::url_with), on another port: that of a proxy in front of this server.
    pub fn url_at(&self, port: u16, user: Option<&str>, password: Option<&str>, db: u32) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let user = user.map(percent_encoded).unwrap_or_default();
        let password = password.map(|password| format!(":{}", percent_encoded(password))).unwrap_or_default();
        let at = if user.is_empty() && password.is_empty() { "" } else { "@" };
        let db = if db == 0 { String::new() } else { format!("/{db}") };
        format!("{scheme}://{user}{password}{at}127.0.0.1:{port}{db}")
    }

    /// The url of the Unix socket, for the default user.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The PEM file of the authority that signed the server's certificate. Panics without TLS.
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().expect("a server started with tls()").ca
    }

    /// The process id; changes with each start. Panics while the server is down.
    pub fn pid(&self) -> u32 {
        self.process().as_ref().expect("the server is running").child.id()
    }

    /// What the server wrote to its log, over all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Whether its process lives, frozen or not.
    pub fn is_running(&self) -> bool {
        self.process().is_some()
    }

    // Faults.

    /// Stops the process where it stands, with all its threads (SIGSTOP). The kernel still accepts
    /// connections and bytes for it; all of them are served after [`thaw`](Self::thaw).
    pub fn freeze(&self) {
        let process = self.process();
        let pid = process.as_ref().expect("the server is running").pid();
        kill_process(pid, Signal::STOP).expect("freeze the server");
        // A signal is only sent when kill returns. The stop is reported once every thread stands still.
        let status = waitpid(Some(pid), WaitOptions::UNTRACED).expect("wait for the server to stop");
        assert!(status.is_some_and(|(_, status)| status.stopped()), "the server ended instead of stopping");
    }

    /// Lets a frozen server go on (SIGCONT).
    pub fn thaw(&self) {
        let process = self.process();
        let pid = process.as_ref().expect("the server is running").pid();
        kill_process(pid, Signal::CONT).expect("thaw the server");
    }

    /// Kills the process, also a frozen one, as a crash does. Does nothing while it is down.
    pub fn kill9(&self) {
        if let Some(mut process) = self.process().take() {
            process.kill();
        }
    }

    /// Ends the server in an orderly way. Does nothing while it is down.
    pub fn stop(&self) {
        self.shut_down(&["SHUTDOWN"]);
    }

    /// Starts the server again on the same port with the same arguments, having stopped it if it runs.
    /// It comes back empty, except with [`aof`](ServerBuilder::aof).
    pub fn restart(&self) {
        self.stop();
        self.launch().unwrap_or_else(|log| panic!("the server did not start again: {log}"));
    }

    /// Restarts the server at once, empty, whatever it was told to keep.
    pub fn wipe(&self) {
        self.shut_down(&["SHUTDOWN", "NOSAVE"]);
        fs::remove_dir_all(self.data_dir()).expect("remove the server's data");
        self.restart();
    }

    /// Copies what it keeps, as a backup does while it runs.
    pub fn back_up(&self, to: &Path) {
        copy(&self.data_dir(), to);
    }

    /// Kills it and starts it again with what such a copy holds.
    pub fn restore(&self, from: &Path) {
        self.kill9();
        fs::remove_dir_all(self.data_dir()).expect("remove the server's data");
        copy(from, &self.data_dir());
        self.restart();
    }

    /// Puts another server program in its place, on the same port with the same arguments, and empty: no server reads
    /// what a newer one left.
    pub fn replace(&self, binary: impl Into<PathBuf>) {
        *self.binary.lock().unwrap_or_else(PoisonError::into_inner) = binary.into();
        self.wipe();
    }

    fn shut_down(&self, command: &[&str]) {
        if !self.is_running() {
            return;
        }
        let answer = self.query::<Value>(command);
        if let Err(error) = answer
            && !(error.is_connection_dropped() || error.is_io_error())
        {
            panic!("the server did not shut down: {error}");
        }
        let mut process = self.process().take().expect("the server is running");
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while process.child.try_wait().expect("wait for the server").is_none() {
            assert!(Instant::now() < deadline, "the server does not end; is it frozen?");
            thread::sleep(Duration::from_millis(1));
        }
    }

    // What it holds.

    /// The answer to a command; panics on an error answer.
    pub fn command<A: ToRedisArgs>(&self, command: &[A]) -> Value {
        self.try_command(command).unwrap_or_else(|error| panic!("command on {}: {error}", self.url()))
    }

    /// The answer to a command, errors of the server included.
    pub fn try_command<A: ToRedisArgs>(&self, command: &[A]) -> RedisResult<Value> {
        self.query(command)
    }

    /// The value of a key that is a string.
    pub fn get(&self, key: &str) -> Option<String> {
        self.ask(&["GET", key])
    }

    /// Time until `key` expires: `None` where there is no such key, the maximum where it never expires.
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> Option<Duration> {
        match self.ask::<i64, &[u8]>(&[b"PTTL", key.as_ref()]) {
            -2 => None,
            -1 => Some(Duration::MAX),
            millis => Some(Duration::from_millis(millis.unsigned_abs())),
        }
    }

    /// Whether it holds the key.
    pub fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key])
    }

    /// The number of keys in database 0.
    pub fn dbsize(&self) -> u64 {
        self.ask(&["DBSIZE"])
    }

    /// The keys in database 0, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.ask(&["KEYS", "*"]);
        keys.sort();
        keys
    }

    /// How often a command was executed since the start (subcommands as in `config|get`). The
    /// harness's own commands count as well: PING, AUTH, INFO, and those that a test sends through it.
    pub fn commandstats(&self, command: &str) -> u64 {
        let stats = self.info("commandstats", &format!("cmdstat_{}", command.to_lowercase()));
        stats.map_or(0, |stats| {
            let calls = stats.split(',').find_map(|field| field.strip_prefix("calls="));
            calls.and_then(|calls| calls.parse().ok()).expect("calls in commandstats")
        })
    }

    /// Connections that are open now, the harness's own not counted.
    pub fn connected_clients(&self) -> u64 {
        self.info_number("clients", "connected_clients") - 1
    }

    /// Connections accepted since the start. The harness makes its own before a start returns, and
    /// keeps it, so differences count the connections of others.
    pub fn total_connections_received(&self) -> u64 {
        self.info_number("stats", "total_connections_received")
    }

    /// Which server it is.
    pub fn version(&self) -> Version {
        let valkey = self.info("server", "valkey_version");
        let is_valkey = valkey.is_some();
        let number = valkey.or_else(|| self.info("server", "redis_version")).expect("a version in INFO");
        let mut parts = number.split('.').map(|part| part.parse().expect("a number in the version"));
        let mut part = || parts.next().unwrap_or_default();
        Version { is_valkey, major: part(), minor: part() }
    }

    /// How long the server has been up, as it says itself: in whole seconds.
    pub fn uptime(&self) -> Duration {
        Duration::from_secs(self.info_number("server", "uptime_in_seconds"))
    }

    /// One field of a section of INFO.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let info: String = self.ask(&["INFO", section]);
        info.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.trim_end().to_owned())
    }

    fn info_number(&self, section: &str, field: &str) -> u64 {
        let value = self.info(section, field);
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("a number {field} in INFO"))
    }

    fn ask<T: FromRedisValue, A: ToRedisArgs>(&self, command: &[A]) -> T {
        self.query(command).unwrap_or_else(|error| panic!("command on {}: {error}", self.url()))
    }

    fn query<T: FromRedisValue>(&self, command: &[impl ToRedisArgs]) -> RedisResult<T> {
        let mut process = self.process();
        let process = process.as_mut().unwrap_or_else(|| panic!("{} is down", self.url()));
        let mut cmd = redis::Cmd::new();
        for arg in command {
            cmd.arg(arg);
        }
        let kept = process.connection.take();
        let was_kept = kept.is_some();
        let mut connection = kept.map_or_else(|| self.connect(), Ok)?;
        let mut answer = cmd.query::<T>(&mut connection);
        // A test may kill all connections; ours then ended before the command was written.
        if was_kept && answer.as_ref().is_err_and(redis::RedisError::is_connection_dropped) {
            connection = self.connect()?;
            answer = cmd.query(&mut connection);
        }
        // After a timeout the answer may still come, and would be taken for that of the next command.
        if !answer.as_ref().is_err_and(|error| error.is_io_error() || error.is_connection_dropped()) {
            process.connection = Some(connection);
        }
        answer
    }

    // Starting.

    /// Starts the process and waits until it answers; otherwise says what the log holds.
    fn launch(&self) -> Result<(), String> {
        let mut process = self.process();
        assert!(process.is_none(), "the server is running");
        fs::create_dir_all(self.data_dir()).expect("make the data directory");
        let log = File::options().create(true).append(true).open(self.log_file()).expect("open the log");
        let mut command = Command::new("sh");
        if let Some((library, clock)) = &self.clock {
            super::with_clock_in(&mut command, library, clock);
        }
        let mut child = command
            .args(["-c", LAUNCH])
            .arg(self.dir())
            .arg(&*self.binary.lock().unwrap_or_else(PoisonError::into_inner))
            .args(self.command_line())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("share the log"))
            .stderr(log)
            .spawn()
            .expect("run sh");
        let lifeline = child.stdin.take().expect("the pipe was asked for");
        let mut started = Process { child, lifeline, connection: None };

        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Ok(mut connection) = self.connect()
                && redis::cmd("PING").query::<String>(&mut connection).is_ok()
            {
                started.connection = Some(connection);
                *process = Some(started);
                return Ok(());
            }
            let ended = started.child.try_wait().expect("watch the server");
            if ended.is_some() || Instant::now() > deadline {
                return Err(self.log());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn command_line(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        let mut directive = |name: &str, values: &[&dyn AsRef<std::ffi::OsStr>]| {
            line.push(format!("--{name}").into());
            line.extend(values.iter().map(|value| value.as_ref().to_owned()));
        };
        let port = self.port().to_string();
        directive("bind", &[&"127.0.0.1"]);
        match &self.tls {
            None => directive("port", &[&port]),
            Some(tls) => {
                directive("port", &[&"0"]);
                directive("tls-port", &[&port]);
                directive("tls-ca-cert-file", &[&tls.ca]);
                directive("tls-cert-file", &[&tls.certificate]);
                directive("tls-key-file", &[&tls.key]);
                directive("tls-auth-clients", &[&"no"]);
            }
        }
        directive("unixsocket", &[&self.socket()]);
        directive("user", &[&USER, &"on", &format!(">{PASSWORD}"), &"~*", &"&*", &"+@all"]);
        directive("dir", &[&self.data_dir()]);
        directive("daemonize", &[&"no"]);
        directive("save", &[&""]);
        if self.aof {
            directive("appendonly", &[&"yes"]);
            directive("appendfsync", &[&"always"]);
        } else {
            directive("appendonly", &[&"no"]);
        }
        line.extend(self.args.iter().map(Into::into));
        line
    }

    fn connect(&self) -> RedisResult<redis::Connection> {
        let url = format!("{}?user={USER}&pass={PASSWORD}", self.unix_url());
        let connection = redis::Client::open(url)?.get_connection_with_timeout(ANSWER_TIMEOUT)?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(connection)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        // A test that panicked elsewhere must still be able to end its servers.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir(&self) -> &Path {
        self.dir.as_ref().expect("kept until drop").path()
    }

    /// Where it keeps what is to outlive it.
    pub fn data_dir(&self) -> PathBuf {
        self.dir().join("data")
    }

    fn socket(&self) -> PathBuf {
        self.dir().join("socket")
    }

    fn log_file(&self) -> PathBuf {
        self.dir().join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        if thread::panicking()
            && let Some(dir) = self.dir.take()
        {
            eprintln!("log of {}: {}", self.port(), dir.keep().join("log").display());
        }
    }
}

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn kill(&mut self) {
        // An error says that it has ended of itself, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _: io::Result<()> = self.lifeline.write_all(b"gone\n");
    }
}

/// Which server it is, as far as tests need to tell versions apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Valkey, not Redis.
    pub is_valkey: bool,
    /// The first number of the version.
    pub major: u32,
    /// The second one.
    pub minor: u32,
}

impl Version {
    /// Whether this is Redis of at least `redis` or Valkey of at least `valkey`, as (major, minor).
    pub fn at_least(self, redis: (u32, u32), valkey: (u32, u32)) -> bool {
        (self.major, self.minor) >= if self.is_valkey { valkey } else { redis }
    }
}

/// The server program that tests run: `REDQUORUM_REDIS_SERVER`, or else what the PATH holds.
pub fn server_binary() -> PathBuf {
    if let Some(path) = env::var_os("REDQUORUM_REDIS_SERVER").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)))
        .find(|candidate| candidate.is_file())
        .expect("a server program: run scripts/servers.sh default, or set REDQUORUM_REDIS_SERVER")
}

/// Copies a folder. A file that goes away meanwhile, as when a server rewrites its own, makes it start again.
fn copy(from: &Path, to: &Path) {
    for _ in 0..10 {
        let _ = fs::remove_dir_all(to);
        let copied = Command::new("cp").arg("-r").arg(from).arg(to).stderr(Stdio::null()).status();
        if copied.expect("run cp").success() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("cannot copy {} to {}", from.display(), to.display());
}

/// Escapes what a url gives a meaning to, which passwords hold at times.
fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("write to a string");
        }
        encoded
    })
}
