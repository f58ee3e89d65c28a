//! TLS: trusted, distrusted, spoken to a port that does not speak it, and not spoken to one that does.

use clients::{REPLY, SLACK, SOON, builder, client, ms, timed};
use harness::{Certificate, Cluster, Server, eventually};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use redquorum::{AcquireError, BuildError, Health, NodeAddress};

/// Whether the server program can do TLS; says so where it cannot.
fn tls_is_there() -> bool {
    let there = Server::supports_tls();
    if !there {
        eprintln!("skipped: this server program was built without TLS");
    }
    there
}

/// The address of a server with TLS, with its authority trusted.
fn trusting(server: &Server) -> ConnectionInfo {
    trusting_that_of(server, server)
}

/// The address of a server with TLS, with the authority of another trusted.
fn trusting_that_of(other: &Server, server: &Server) -> ConnectionInfo {
    let root_cert = Some(std::fs::read(other.ca()).expect("the authority's certificate"));
    let certificates = TlsCertificates { client_tls: None, root_cert };
    Client::build_with_tls(server.url(), certificates).expect("a url").get_connection_info().clone()
}

/// Nodes with TLS are nodes like any other, also beside plain ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_over_tls() {
    if !tls_is_there() {
        return;
    }
    let cluster = Cluster::start_with(3, |i| if i < 2 { Server::builder().tls() } else { Server::builder() });
    let node =
        |info: ConnectionInfo| -> NodeAddress { redquorum::IntoNode::into_node(info).expect("an address") };
    let plain = redquorum::IntoNode::into_node(cluster[2].url()).expect("an address");
    let redlock = client([node(trusting(&cluster[0])), node(trusting(&cluster[1])), plain]).await;

    let mut guard = redlock.try_acquire("k").await.expect("acquired");
    guard.extend(clients::TTL).await.expect("extended");
    eventually(SOON, "on all nodes", || cluster.values("k").iter().all(Option::is_some)).await;
    assert!(guard.report().to_string().contains("tls://127.0.0.1"), "{}", guard.report());
    guard.release().await.expect("released");
    cluster.no_key("k", SOON).await;
}

/// Plain words to a TLS port, TLS to a plain port, and a certificate that nobody vouches for: an error in time, with a
/// cause for each node that says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mismatched_ports_are_told_apart() {
    if !tls_is_there() {
        return;
    }
    let cluster = Cluster::start_with(3, |i| if i < 2 { Server::builder().tls() } else { Server::builder() });
    let plain_to_tls = cluster[0].url().replace("rediss:", "redis:");
    let distrusted = cluster[1].url();
    let tls_to_plain = cluster[2].url().replace("redis:", "rediss:");
    let nodes = [plain_to_tls, distrusted, tls_to_plain];
    let budget = ms(1_000);

    let (built, took) = timed(builder(nodes.clone()).connect_timeout(budget).build()).await;
    let error = built.expect_err("no node can be used");
    let BuildError::NotConnected { connected: 0, trouble, .. } = &error else { panic!("{error:?}") };
    assert!(took < budget + ms(100) + SLACK, "{took:?}");
    let troubles: Vec<_> = trouble.split("; n").collect();
    assert_eq!(troubles.len(), 3, "{trouble}");
    assert!(troubles[0].contains("speak TLS"), "{trouble}");
    assert!(troubles[1].to_lowercase().contains("certificate"), "{trouble}");
    // A plain server never answers a TLS greeting, so only time can tell.
    assert!(troubles[2].contains("speak plain"), "{trouble}");

    let redlock = builder(nodes).lazy().build().await.expect("a lazy client");
    let deadline = std::time::Instant::now() + SOON;
    loop {
        let (refused, took) = timed(redlock.try_acquire("k")).await;
        let Err(AcquireError::NoQuorum { report, .. }) = &refused else { panic!("{refused:?}") };
        assert!(took < REPLY + SLACK, "{took:?}");
        let text = report.to_string();
        if text.contains("speak TLS") && text.to_lowercase().contains("certificate") {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(ms(20)).await;
    }
}

/// Law: a server is who its certificate says, or it is no node: another authority, another name and a date that is over
/// are refused, each with the cause, and no address switches that off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_does_not_fit_is_refused() {
    if !tls_is_there() {
        return;
    }
    let kinds = [Certificate::Good, Certificate::OtherName, Certificate::Expired];
    let cluster = Cluster::start_with(3, |i| Server::builder().tls_with(kinds[i]));
    let unverified = format!("{}/#insecure", cluster[0].url()).as_str().into_connection_info();
    let unverified = unverified.expect("the crate takes the address");
    let good = trusting(&cluster[0]);
    for (what, node, cause) in [
        ("another authority", trusting_that_of(&cluster[1], &cluster[0]), "BadSignature"),
        (
            "no authority of this machine's",
            cluster[0].url().as_str().into_connection_info().expect("a url"),
            "UnknownIssuer",
        ),
        ("another name", trusting(&cluster[1]), "not valid for name"),
        ("a date that is over", trusting(&cluster[2]), "expired"),
        ("an address that asks for no proof", unverified, "insecure"),
    ] {
        let redlock = builder([node]).connect_timeout(SOON).lazy().build().await.expect("a lazy client");
        let trouble = || match &redlock.nodes()[0].health {
            Health::Down(trouble) => trouble.clone(),
            Health::Up => panic!("{what} is accepted"),
            _ => String::new(),
        };
        let told = || trouble().contains(cause);
        eventually(SOON, what, told).await;
    }
    let good = builder([good]).connect_timeout(SOON).build().await.expect("a good one");
    good.lock("k").wait(SOON).await.expect("acquired").release().await.expect("released");
}

/// A server that speaks TLS 1.2 and nothing newer is a node like any other, and one that speaks only what is older is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_2_is_the_least() {
    if !tls_is_there() {
        return;
    }
    let with = |protocols: &str| Server::builder().tls().args(["--tls-protocols", protocols]);
    let server = with("TLSv1.2").start();
    let redlock = builder([trusting(&server)]).connect_timeout(SOON).build().await.expect("a node");
    redlock.lock("k").wait(SOON).await.expect("acquired").release().await.expect("released");

    // Many builds of the server know nothing so old.
    let Ok(old) = with("TLSv1.1").try_start() else { return println!("skipped: no server with TLS 1.1") };
    let refused = builder([trusting(&old)]).connect_timeout(ms(500)).build().await;
    assert!(matches!(refused, Err(BuildError::NotConnected { .. })), "{refused:?}");
}
