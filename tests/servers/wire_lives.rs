//! Lives on the wire: no command shortens the life of a key that its holder counts on, and no script confirms a life that
//! did not take.
//!
//! The first part asks real servers as users with fewer and fewer rights. The second runs the shipped scripts on a server
//! whose `redis` table was replaced for the run: there a life ends between two commands of one script, as it does on
//! servers that let time go on while a script runs.

use std::time::Duration;

use clients::{SOON, builder, client, ms};
use harness::{Cluster, Server, eventually};
use redis::Value;
use redquorum::protocol::fencing::{Carry, Fence, FencingToken, Retention};
use redquorum::protocol::message::{ClientId, Extension, Extensions, Key, Operation, Owner, Reply, Unknown};
use redquorum::protocol::validity::Ttl;
use redquorum::testing::RawNode;

const KEY: &str = "k";
const COUNTER: &str = "{k}:redquorum:fence";

/// A life that an older or a weaker command asks for, and one that the holder counts on. No test takes as long as they differ.
const SHORT: Duration = Duration::from_secs(15);
const LONG: Duration = Duration::from_secs(90);

/// Lives shorter than this are not the long one.
const MOSTLY: Duration = Duration::from_secs(60);

const OWNER: [u8; 16] = [0xAB; 16];
const CLIENT: [u8; 16] = [0xCD; 16];

fn owner() -> Owner {
    Owner::from_bytes(OWNER)
}

fn owner_text() -> String {
    String::from_utf8_lossy(&owner().to_hex()).into_owned()
}

/// Every operation that gives a life to a key which carries its owner.
fn lengthening(ttl: Duration) -> Vec<Operation> {
    let (key, owner, client, ttl) =
        (Key::new(KEY.as_bytes().to_vec()), owner(), ClientId::from_bytes(CLIENT), Ttl::unchecked(ttl));
    let retention = Retention::new(LONG);
    let carry = Carry { token: FencingToken::new(4_711), retention };
    let extension = |key: &Key, carry| Extension { key: key.clone(), owner, ttl, carry };
    let other = Key::new(*b"another");
    let both = |carry| Extensions::new(vec![extension(&key, carry), extension(&other, None)]);
    let claim = |fence| Operation::Claim { key: key.clone(), owner, ttl, fence };
    vec![
        extension(&key, None).into(),
        extension(&key, Some(carry)).into(),
        Operation::ExtendAll { extensions: both(None).expect("two") },
        Operation::ExtendAll { extensions: both(Some(carry)).expect("two") },
        claim(None),
        claim(Some(Fence::Advance { candidate: 4_712, retention })),
        claim(Some(Fence::Carry(carry))),
        Operation::Queue {
            key: key.clone(),
            owner,
            client,
            polls: true,
            rename_from: None,
            score: None,
            hand_over: ttl,
        },
    ]
}

/// Whether the answer says that the key lives for at least as long as was asked; a vote says so as well.
fn confirms(reply: &Reply) -> bool {
    match reply {
        Reply::Each(replies) => replies[0].is_granted(),
        Reply::Voted => true,
        reply => reply.is_granted(),
    }
}

/// Gives a user of a server all rights but these.
fn user_without(server: &Server, name: &str, rights: &[&str]) -> String {
    let denied: Vec<_> = rights.iter().map(|right| format!("-{right}")).collect();
    let rules = ["ACL", "SETUSER", name, "reset", "on", ">secret", "~*", "&*", "+@all"];
    server.command(&rules.into_iter().chain(denied.iter().map(String::as_str)).collect::<Vec<_>>());
    server.url_with(Some(name), Some("secret"), 0)
}

/// Whether the server compares lives by itself: `PEXPIRE key ttl GT`.
fn compares(server: &Server) -> bool {
    server.version().at_least((7, 0), (7, 2))
}

/// Whether the server extends without a script where the user may not run what scripts need: `SET key owner IFEQ owner PX ttl`.
fn sets(server: &Server) -> bool {
    server.version().at_least((8, 4), (8, 1))
}

/// Law: whoever may run what, no operation leaves a key that carries its owner with a shorter life than it had. Without scripts
/// an extension sets the life that it asks for, which a lease never asks for by less than what is left of its validity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_shortens_the_life_of_a_key() {
    let server = Server::start();
    for (name, denied) in
        [("all", &[][..]), ("blind", &["pttl"]), ("mute", &["pexpire"]), ("none", &["pttl", "pexpire"])]
    {
        let url = user_without(&server, name, denied);
        let node = RawNode::connect(&url, ClientId::from_bytes(CLIENT)).await.expect("a connection");
        for operation in lengthening(SHORT) {
            for key in [KEY, "another"] {
                server.command(&["SET", key, &owner_text(), "PX", &LONG.as_millis().to_string()]);
            }

            let reply = node.execute(operation.clone()).await;

            let left = server.pttl(KEY).expect("it is there");
            let least = if sets(&server) && denied.contains(&"pexpire") { SHORT - ms(500) } else { MOSTLY };
            assert!(left > least, "as {name}, {operation:?} leaves {left:?}, and answers {reply:?}");
            assert_eq!(server.get(KEY), Some(owner_text()));
        }
    }
}

/// Law: an answer that confirms says the truth: the key lives for as long as was asked. Only a vote, which nobody relies on, may
/// end sooner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_confirmed_lives_for_as_long_as_was_asked() {
    let server = Server::start();
    for (name, denied, able) in [
        ("all", &[][..], true),
        ("blind", &["pttl"], compares(&server)),
        ("mute", &["pexpire"], false),
        ("none", &["pttl", "pexpire"], false),
    ] {
        let url = user_without(&server, name, denied);
        let node = RawNode::connect(&url, ClientId::from_bytes(CLIENT)).await.expect("a connection");
        for operation in lengthening(LONG) {
            // Somebody may also have taken the end away from it.
            for before in [Some(SHORT), None] {
                for key in [KEY, "another"] {
                    server.command(&["SET", key, &owner_text()]);
                    if let Some(before) = before {
                        server.command(&["PEXPIRE", key, &before.as_millis().to_string()]);
                    }
                }

                let reply = node.execute(operation.clone()).await;

                let left = server.pttl(KEY).expect("it is there");
                // Without the right, scripts are not used; a server that has commands in their place confirms by these.
                let replaced = !able && server.version().at_least((8, 4), (8, 1));
                if matches!(operation, Operation::Queue { .. }) {
                    let refused = !able && matches!(reply, Reply::Refused(_));
                    assert!(reply == Reply::Voted || refused, "as {name}: {reply:?}");
                    continue;
                }
                let confirmed = confirms(&reply);
                assert!(confirmed == able || replaced, "as {name}, {operation:?}: {reply:?}");
                assert!(
                    !confirmed || (left > MOSTLY && left <= LONG),
                    "as {name}, {operation:?} leaves {left:?}"
                );
                let told = match &reply {
                    Reply::Each(replies) => replies[0].clone(),
                    reply => reply.clone(),
                };
                let told = matches!(told, Reply::Unknown(Unknown::Error(_)) | Reply::Refused(_));
                assert!(confirmed || told, "as {name}: {reply:?}");
            }
        }
    }
}

/// Law: after an extension to a minute, the renewal task of a lock with a TTL of a second never leaves a node with less life than the
/// holder believes in; also where the client may not read the lives of keys. No rival gets the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_shortens_no_key() {
    let cluster = Cluster::start(3);
    let rival = client(cluster.urls()).await;
    for denied in [&[][..], &["pttl"]] {
        if !denied.is_empty() && !compares(&cluster[0]) {
            continue;
        }
        let urls: Vec<_> = cluster.iter().map(|server| user_without(server, "app", denied)).collect();
        let redlock = builder(urls).ttl(ms(1_000)).max_ttl(LONG).build().await.expect("nodes");
        clients::all_vote(&redlock).await;
        let before = clients::scripts(&cluster[0]);
        let mut guard = redlock.lock(KEY).keep_alive().without_waiting().await.expect("free");

        guard.extend(LONG).await.expect("extended");

        let kept = || clients::scripts(&cluster[0]) >= before + 6;
        eventually(SOON, "the renewal task extends", kept).await;
        assert!(guard.remaining() > MOSTLY, "{:?}", guard.remaining());
        for server in cluster.iter() {
            // Read first: lives only grow shorter meanwhile.
            let left = server.pttl(KEY).expect("it is there");
            assert!(left + ms(50) > guard.remaining(), "{left:?} on a node, without {denied:?}");
        }
        tokio::time::sleep(ms(1_100)).await;
        assert!(rival.try_acquire(KEY).await.is_err(), "without {denied:?}");
        assert!(guard.is_valid());
        guard.release().await.expect("a quorum confirms");
    }
}

/// Law: what goes on the wire asks for no less than what is left of the validity, so that not even a server which shortens
/// does harm: here the keys' lives are read off the commands that a server saw.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extensions_ask_for_what_is_left() {
    let cluster = Cluster::start(1);
    let redlock = builder(cluster.urls()).ttl(ms(1_000)).max_ttl(LONG).build().await.expect("a node");
    let mut guard = redlock.acquire(KEY).await.expect("free");
    guard.extend(LONG).await.expect("extended");
    cluster[0].command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    cluster[0].command(&["SLOWLOG", "RESET"]);

    let left = guard.remaining();
    guard.extend(ms(1_000)).await.expect("extended");

    let log = cluster[0].command(&["SLOWLOG", "GET", "100"]);
    let asked = slow_commands(&log)
        .into_iter()
        .find(|words| words[0].to_lowercase().starts_with("eval") && words.contains(&owner_in(&cluster[0])))
        .expect("an extension");
    let asked = Duration::from_millis(asked.last().expect("a TTL").parse().expect("a number"));
    assert!(asked >= left && asked <= LONG, "asked for {asked:?}, {left:?} were left");
    guard.release().await.expect("a quorum confirms");
}

fn owner_in(server: &Server) -> String {
    server.get(KEY).expect("held")
}

/// The commands in an answer to SLOWLOG GET.
fn slow_commands(log: &Value) -> Vec<Vec<String>> {
    let list = |value: &Value| match value {
        Value::Array(items) => items.clone(),
        _ => Vec::new(),
    };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let words = |entry: &Value| list(entry).get(3).map(|words| list(words).iter().map(text).collect());
    list(log).iter().filter_map(words).collect()
}

// Scripts in which time goes on.

/// The shipped text of a script, put together as the client does.
fn script(name: &str) -> String {
    let folder = harness::top().join("src/node");
    let parts = std::fs::read_to_string(folder.join("redis/command/mod.rs")).expect("the list of scripts");
    let line = format!("static {name}: ");
    let parts = parts.lines().find(|text| text.starts_with(&line)).expect("a script of this name");
    let parts = parts.split('"').skip(1).step_by(2);
    let read = |part: &str| std::fs::read_to_string(folder.join(format!("scripts/{part}.lua")));
    parts.map(|part| read(part).expect("a part")).collect()
}

/// What a server is like for one run of a script.
#[derive(Clone, Copy, Debug)]
struct Nature {
    /// Before which command the short lives end.
    ends_before: usize,
    /// The user may not read the lives of keys.
    blind: bool,
    /// `PEXPIRE` takes no condition, as before Redis 7.0.
    old: bool,
}

/// The script on a server of this nature: what it calls `redis` is made for the run. A life counts as short below 5 s.
fn within(nature: Nature, code: &str) -> String {
    let Nature { ends_before, blind, old } = nature;
    format!(
        r#"
local server, count = redis, 0
local function nature(name, arguments)
    count = count + 1
    if count == {ends_before} then
        for _, key in ipairs(KEYS) do
            local left = server.call('PTTL', key)
            if left >= 0 and left < 5000 then server.call('DEL', key) end
        end
    end
    if {blind} and name == 'PTTL' then return {{ err = 'NOPERM no PTTL' }} end
    if {old} and name == 'PEXPIRE' and #arguments > 2 then return {{ err = 'ERR wrong number of arguments' }} end
end
local redis = {{ error_reply = server.error_reply }}
function redis.pcall(name, ...) return nature(name, {{ ... }}) or server.pcall(name, ...) end
function redis.call(name, ...)
    local refused = nature(name, {{ ... }})
    if refused then error(refused.err) end
    return server.call(name, ...)
end
{code}"#
    )
}

/// Runs a script, and answers with what it answers.
fn run(server: &Server, code: &str, keys: &[&str], arguments: &[&str]) -> Result<Value, String> {
    let count = keys.len().to_string();
    let command: Vec<_> =
        ["EVAL", code, &count].iter().chain(keys).chain(arguments).map(|word| (*word).to_owned()).collect();
    server.try_command(&command).and_then(Value::extract_error).map_err(|error| error.to_string())
}

/// Every nature under which a script may run on this server.
fn natures(server: &Server) -> impl Iterator<Item = Nature> {
    let is_old = !compares(server);
    let moments = (1..=12).flat_map(|ends_before| [false, true].map(|blind| (ends_before, blind)));
    let natures =
        moments.flat_map(|(ends_before, blind)| [false, true].map(|old| Nature { ends_before, blind, old }));
    natures.filter(move |nature| nature.old || !is_old)
}

/// Law: wherever in a script the key's life ends, an answer that confirms is true: the key carries the owner for the life that
/// was asked for. An extension that does not confirm says that the key is absent, or does not know.
#[test]
fn a_key_that_ends_while_a_script_runs_is_not_confirmed() {
    let server = Server::start();
    let (owner, client, life) = (owner_text(), "CD".repeat(16), LONG.as_millis().to_string());
    let (line, lives) = ("{k}:redquorum:line", "{k}:redquorum:lives");
    let scripts: [(&str, &[&str], Vec<&str>); 7] = [
        ("EXTEND", &[KEY], vec![&owner, &life]),
        ("EXTEND", &[KEY, COUNTER], vec![&owner, &life, "1", "4711", &life]),
        ("CLAIM", &[KEY], vec![&owner, &life]),
        ("FENCED_CLAIM", &[KEY, COUNTER], vec![&owner, &life, &life, "4711"]),
        ("FENCED_CLAIM", &[KEY, COUNTER], vec![&owner, &life, &life, "", "4711"]),
        ("QUEUE", &[KEY, line, lives], vec![&owner, &client, "1", "", "", &life, "100", "wake:"]),
        ("QUEUE", &[KEY, line, lives], vec![&owner, &client, "1", &owner, "", &life, "100", "wake:"]),
    ];
    let mut absent = 0;
    for (name, keys, arguments) in &scripts {
        let code = script(name);
        for nature in natures(&server) {
            server.command(&["FLUSHALL"]);
            server.command(&["SET", KEY, &owner, "PX", "4000"]);

            let answer = run(&server, &within(nature, &code), keys, arguments);

            let what = format!("{name} {arguments:?} under {nature:?} answers {answer:?}");
            let held = server.get(KEY).as_deref() == Some(&owner);
            let left = server.pttl(KEY);
            match answer {
                Ok(Value::Int(0)) => {
                    assert!(*name == "EXTEND" && left.is_none(), "{what}, {left:?} are left");
                    absent += 1;
                }
                // A vote is relied upon by nobody before it is claimed.
                Ok(Value::Int(1)) if *name == "QUEUE" && nature.blind && nature.old => {}
                Ok(Value::Int(_)) => {
                    assert!(held && left > Some(MOSTLY) && left <= Some(LONG), "{what}, {left:?} are left");
                }
                Err(error) => assert!(nature.blind && nature.old, "{what}: {error}"),
                Ok(_) => panic!("{what}"),
            }
        }
    }
    assert!(absent >= 8, "{absent} extensions found the key gone");
}

/// Law: wherever in a script the life of a fencing counter ends, a claim, raise or extension that is confirmed leaves a counter
/// at the token or above, for its whole retention.
#[test]
fn a_counter_that_ends_while_a_script_runs_is_set_again() {
    let server = Server::start();
    let (owner, life) = (owner_text(), LONG.as_millis().to_string());
    let keys = [KEY, COUNTER];
    for token in ["4711", "100"] {
        for (name, arguments) in [
            ("EXTEND", vec![owner.as_str(), &life, "1", token, &life]),
            ("RAISE", vec![&owner, token, &life]),
            ("FENCED_CLAIM", vec![&owner, &life, &life, "", token]),
        ] {
            let code = script(name);
            for nature in natures(&server) {
                server.command(&["FLUSHALL"]);
                server.command(&["SET", KEY, &owner, "PX", "30000"]);
                server.command(&["SET", COUNTER, &format!("4711 {owner}"), "PX", "4000"]);

                let answer = run(&server, &within(nature, &code), &keys, &arguments);

                let what = format!("{name} to {token} under {nature:?} answers {answer:?}");
                match answer {
                    Ok(Value::Int(1..)) => {
                        let number =
                            server.get(COUNTER).and_then(|text| text.split(' ').next()?.parse().ok());
                        let number: u64 = number.unwrap_or_else(|| panic!("{what}: no counter"));
                        assert!(number >= token.parse().expect("a number"), "{what}: {number}");
                        assert!(server.pttl(COUNTER) > Some(MOSTLY), "{what}: {:?}", server.pttl(COUNTER));
                    }
                    Err(error) => assert!(nature.blind && nature.old && name != "RAISE", "{what}: {error}"),
                    Ok(_) => panic!("{what}"),
                }
            }
        }
    }
}

/// Law: wherever in a script the life of a line ends, a waiter that is told its place waits in the queue, and what is left of the line
/// has an end.
#[test]
fn a_line_that_ends_while_a_script_runs_is_entered_again() {
    let server = Server::start();
    let (owner, client) = (owner_text(), "CD".repeat(16));
    let (line, lives) = ("{k}:redquorum:line", "{k}:redquorum:lives");
    let member = format!("{owner}{client}");
    let code = script("QUEUE");
    for nature in natures(&server) {
        server.command(&["FLUSHALL"]);
        server.command(&["SET", KEY, "somebody's", "PX", "30000"]);
        server.command(&["ZADD", line, "7", &member]);
        server.command(&["HSET", lives, &client, "p1"]);
        [line, lives].iter().for_each(|key| drop(server.command(&["PEXPIRE", key, "4000"])));

        let arguments = [owner.as_str(), &client, "1", "", "", "500", "100", "wake:"];
        let answer = run(&server, &within(nature, &code), &[KEY, line, lives], &arguments);

        let what = format!("under {nature:?}: {answer:?}");
        let Ok(Value::Array(place)) = &answer else { panic!("{what}") };
        assert!(matches!(place[..], [Value::Int(0), Value::BulkString(_), Value::Int(0 | 1), ..]), "{what}");
        assert!(matches!(server.command(&["ZRANK", line, &member]), Value::Int(0)), "{what}");
        for key in [line, lives] {
            assert!(server.pttl(key) > Some(ms(50_000)), "{what}: {key} {:?}", server.pttl(key));
            assert!(server.pttl(key) < Some(Duration::MAX), "{what}: {key} has no end");
        }
    }
}
