//! A host name that comes to mean another address: the client follows it.
//!
//! The test needs a file of host names of its own, so it runs itself again where such a file can be put over the
//! system's for one process alone: in a mount namespace. Where the system allows none, it is skipped and says so.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use clients::{SLACK, SOON, builder, ms, sets, until_votes};
use harness::{Cluster, Server, eventually};
use redquorum::Outcome;

/// Set for the run inside: where its file of host names is.
const INSIDE: &str = "REDQUORUM_TEST_HOSTS";

const NAME: &str = "node.redquorum.test";

/// The name is resolved for each connection: after it moved, the server behind the new address votes.
#[test]
fn a_name_that_moves_is_followed() {
    if let Some(hosts) = std::env::var_os(INSIDE) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(follow(Path::new(&hosts)));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let hosts = dir.path().join("hosts");
    write(&hosts, "127.0.0.1");
    let script = r#"mount --bind "$0" /etc/hosts && grep -q redquorum /etc/hosts || exit 77; exec "$@""#;
    let namespace = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(&hosts)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "dns::a_name_that_moves_is_followed"])
        .env(INSIDE, &hosts)
        .output();
    match namespace {
        Ok(output) if output.status.success() => {}
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            panic!("the run inside failed:\n{out}\n{err}");
        }
        refused => eprintln!("skipped: no mount namespace here: {refused:?}"),
    }
}

fn write(hosts: &Path, address: &str) {
    std::fs::write(hosts, format!("127.0.0.1 localhost\n{address} {NAME}\n")).expect("write the host names");
}

async fn follow(hosts: &Path) {
    let cluster = Cluster::start(3);
    let port = cluster[0].port().to_string();
    let second = Server::builder().args(["--bind", "127.0.0.2", "--port", &port]).start();
    let nodes = [format!("redis://{NAME}:{port}"), cluster[1].url(), cluster[2].url()];
    let redlock = builder(nodes).build().await.expect("nodes");
    clients::all_vote(&redlock).await;
    assert_eq!(sets(&second), 0);

    write(hosts, "127.0.0.2");
    cluster[0].kill9();
    eventually(SOON, "the other server votes", || {
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async { drop(redlock.try_acquire("k").await) })
        });
        sets(&second) > 0
    })
    .await;
    let (back, seen) =
        (until_votes(&redlock, |outcomes| outcomes[0] == Outcome::Granted).await, sets(&second));
    assert!(back < ms(2_000) + SLACK && seen > 0, "{back:?}, {seen}");
    second.kill9();
}
