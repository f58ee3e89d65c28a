//! Passwords never show: not in errors, not in debug output, not in any event at the finest level.

use std::time::Duration;

use clients::{SOON, builder, ms, until_votes};
use harness::Ear;
use harness::{Cluster, Proxy, Server};
use redquorum::{IntoNode, Outcome, Redlock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECRET: &str = "S3ntinel";

/// What a client shows of itself and of all that goes wrong with it.
async fn exercise(ear: &Ear, redlock: &Redlock) {
    ear.note(format!("{redlock:?} {:?}", redlock.nodes()));
    redlock.nodes().iter().for_each(|node| ear.note(node));
    let seen = redlock.inspect("k").await;
    ear.note(format!("{seen:?}"));
    seen.iter().for_each(|seen| ear.note(seen));
    let request = redlock.lock("k");
    ear.note(format!("{request:?}"));
    match request.without_waiting().await {
        Ok(mut guard) => {
            ear.note(format!("{guard:?} {:?} {}", guard.report(), guard.report()));
            ear.note(format!("{:?}", guard.extend(clients::TTL).await));
            ear.note(format!("{:?}", guard.extend(Duration::MAX).await));
            if let Ok(parts) = guard.into_parts().await {
                ear.note(format!("{parts:?}"));
                match redlock.resume(parts).await {
                    Ok(guard) => ear.note(format!("{:?}", guard.release().await)),
                    Err(error) => ear.note(format!("{error} {error:?}")),
                }
            }
        }
        Err(error) => ear.note(format!("{error} {error:?} {error:#?}")),
    }
    if let Err(error) = redlock.lock("k").wait(ms(50)).await {
        ear.note(format!("{error} {error:?}"));
    }
}

/// Wrong hosts, wrong passwords, servers without HELLO that repeat its arguments, refused and broken connections: all of
/// them are talked about and counted, and the password is in none of it, labels of metrics included.
///
/// On one thread, so that everything the client's tasks say is heard.
#[tokio::test]
async fn passwords_never_show() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counting = metrics::set_default_local_recorder(&recorder);
    let metrics = recorder.handle();
    let ear = Ear::default();
    let listening = tracing::subscriber::set_default(ear.clone());
    let cluster = Cluster::start_with(4, |i| {
        let server = Server::builder().args(["--requirepass", if i == 1 { "another" } else { SECRET }]);
        if i == 2 { server.args(["--rename-command", "HELLO", ""]) } else { server }
    });
    let proxy = Proxy::start(&cluster[3]);
    let url = |port: u16, user: Option<&str>| cluster[0].url_at(port, user, Some(SECRET), 0);
    let nodes = [
        url(cluster[0].port(), None),
        url(cluster[1].port(), None),
        url(cluster[2].port(), None),
        url(proxy.port(), None),
        url(cluster[0].port(), Some("nobody")).replace("127.0.0.1", "localhost"),
        url(1, Some("user")),
        format!("redis://user:{SECRET}@no-such-host.invalid:6379"),
    ];

    let building = builder(nodes.clone()).client_name("client");
    ear.note(format!("{building:?} {:?}", nodes[0].as_str().into_node()));
    let redlock = building.lazy().build().await.expect("a lazy client");
    tokio::time::sleep(ms(500)).await;
    exercise(&ear, &redlock).await;
    proxy.reset();
    exercise(&ear, &redlock).await;
    redlock.close(ms(200)).await;
    exercise(&ear, &redlock).await;

    let strict = builder(nodes[4..].to_vec()).connect_timeout(ms(300)).build().await;
    ear.note(format!("{strict:?} {}", strict.as_ref().expect_err("no quorum")));
    let working = builder([nodes[0].clone()]).build().await.expect("one node");
    until_votes(&working, |outcomes| outcomes[0] == Outcome::Granted).await;
    exercise(&ear, &working).await;
    cluster[0].command(&["CONFIG", "SET", "requirepass", "changed"]);
    cluster[0].command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    until_votes(&working, |outcomes| matches!(outcomes[0], Outcome::NotSent(_))).await;
    tokio::time::sleep(ms(300)).await;
    exercise(&ear, &working).await;
    for malformed in [
        format!("redis://user:{SECRET}@host:port"),
        format!("redis://user:{SECRET}@host:6379/x"),
        format!("{SECRET}@host"),
        format!("redis://:{SECRET}@"),
        format!("redis://user:{SECRET}@ho st"),
        format!("rediss://user:{SECRET}@host:99999"),
        format!("redis+unix:///tmp/socket?pass={SECRET}&db=x"),
        format!("redis://host?password={SECRET}"),
        format!("ftp://user:{SECRET}@host"),
    ] {
        let error = builder([malformed.clone()]).lazy().build().await.map(drop);
        ear.note(format!("{error:?}"));
        if let Err(error) = error {
            ear.note(error);
        }
    }
    drop((listening, counting));
    let labels = metrics.render();
    assert!(labels.contains("redquorum_node_up{node=\"127.0.0.1:"), "{labels}");
    ear.note(labels);

    let heard = ear.heard();
    let shows: Vec<_> = heard.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(shows.is_empty(), "{shows:#?}");
    // It was really listened to: each kind of trouble is there.
    for said in
        ["connected", "no connection", "WRONGPASS", "refused", "malformed", "acquire", "TRACE", "DEBUG"]
    {
        assert!(heard.contains(said), "{said:?} was never said:\n{heard}");
    }
}

/// A password with characters that mean something in a URL is used as it is, and hidden as it is.
#[tokio::test]
async fn percent_encoded_passwords_are_hidden_too() {
    let password = "S3nt:@/inel %41";
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let cluster = Cluster::start_with(2, |i| {
        let server = Server::builder().args(["--requirepass", if i == 0 { password } else { "another" }]);
        if i == 1 { server.args(["--rename-command", "HELLO", ""]) } else { server }
    });

    let good = builder([cluster[0].url_with(None, Some(password), 0)]).build().await.expect("one node");
    exercise(&ear, &good).await;
    let bad = builder([cluster[1].url_with(None, Some(password), 0)]).connect_timeout(ms(300)).build().await;
    ear.note(format!("{bad:?} {}", bad.as_ref().expect_err("no quorum")));
    assert!(good.close(SOON).await);

    let heard = ear.heard();
    for secret in [password, "S3nt", "inel %41", "S3nt%3A"] {
        assert!(!heard.contains(secret), "{secret:?} shows:\n{heard}");
    }
}

/// A server that knows no AUTH repeats its arguments, long ones cut short: no part of the password is passed on.
#[tokio::test]
async fn pieces_of_a_repeated_password_are_hidden() {
    let password = "S3ntinel".repeat(40);
    let ear = Ear::default();
    let _listening = tracing::subscriber::set_default(ear.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("an address").port();
    let repeated = password[..100].to_owned();
    let server = tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                let line =
                    format!("-ERR unknown command 'AUTH', with args beginning with: '{repeated}' \r\n");
                let _ = stream.write_all(line.repeat(8).as_bytes()).await;
            }
        }
    });

    let nodes = [format!("redis://:{password}@127.0.0.1:{port}")];
    let built = builder(nodes).connect_timeout(ms(300)).build().await;

    let error = built.expect_err("no node");
    ear.note(format!("{error} {error:?}"));
    assert!(error.to_string().contains("authentication failed"), "{error}");
    assert!(!ear.heard().contains(SECRET), "{}", ear.heard());
    server.abort();
}
