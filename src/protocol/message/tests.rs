use std::time::Duration;

use crate::protocol::fencing::{Carry, FencingToken};
use crate::protocol::validity::Ttl;

use super::*;

/// Section 3: the owner on the wire is 32 upper-case hex digits, and only that form is read back as an owner.
#[test]
fn owner_survives_the_wire() {
    let owner = Owner::from_bytes([0x00, 0xff, 0x1a, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xf0]);
    let hex = owner.to_hex();

    assert_eq!(&hex, b"00FF1A030405060708090A0B0C0D0EF0");
    assert_eq!(owner.to_string(), "00FF1A0304050607…");
    assert_eq!(Owner::from_hex(&hex), Some(owner));
    for other in
        [&b"00ff1a030405060708090a0b0c0d0ef0"[..], b"", b"00FF", b"00FF1A030405060708090A0B0C0D0EF00"]
    {
        assert_eq!(Owner::from_hex(other), None);
    }
}

#[test]
fn foreign_values_are_cut_and_escaped() {
    let HolderValue::Foreign(kept) = HolderValue::read(&[b'x'; 500]) else { panic!("foreign") };
    assert_eq!(kept.len(), 64);
    assert_eq!(HolderValue::read(b"a\x00\n").to_string(), r#""a\x00\n""#);
}

fn ttl() -> Ttl {
    Ttl::unchecked(Duration::from_secs(10))
}

/// Names and bytes come out as they went in.
#[test]
fn names_are_kept() {
    assert_eq!(Key::new(*b"a\xffb").as_bytes(), b"a\xffb");
    assert_eq!(&ClientId::from_bytes([0xab; 16]).to_hex(), b"ABABABABABABABABABABABABABABABAB");
    let one = Extension { key: Key::new(*b"k"), owner: Owner::from_bytes([1; 16]), ttl: ttl(), carry: None };
    for (count, fits) in [(1, false), (2, true), (MOST_EXTENSIONS, true), (MOST_EXTENSIONS + 1, false)] {
        let extensions = Extensions::new(vec![one.clone(); count]);
        assert_eq!(extensions.map(|extensions| extensions.as_slice().len()), fits.then_some(count));
    }
}

/// What each operation is about, and which of them can bring a key into being or take its owner off the node.
#[test]
fn operations_say_what_they_do() {
    let (key, owner, client, hand_over) =
        (Key::new(*b"k"), Owner::from_bytes([1; 16]), ClientId::default(), ttl());
    let carry = Carry {
        token: FencingToken::new(7),
        retention: crate::protocol::fencing::Retention::new(Duration::MAX),
    };
    let extension = Extension { key: key.clone(), owner, ttl: ttl(), carry: None };
    let (k, extensions) = (|| key.clone(), Extensions::new(vec![extension; 3]).unwrap());
    let cases = [
        (Operation::Set { key: k(), owner, ttl: ttl() }, "set", true, false),
        (Operation::Claim { key: k(), owner, ttl: ttl(), fence: None }, "claim", true, false),
        (Operation::Extend { key: k(), owner, ttl: ttl(), carry: None }, "extend", false, false),
        (Operation::Raise { key: k(), owner, carry }, "raise", false, false),
        (Operation::Release { key: k(), owner }, "release", false, true),
        (Operation::HandOver { key: k(), owner, client, hand_over }, "hand over", false, true),
        (
            Operation::Queue {
                key: k(),
                owner,
                client,
                polls: false,
                rename_from: None,
                score: None,
                hand_over,
            },
            "queue",
            true,
            false,
        ),
        (Operation::Inspect { key: k() }, "inspect", false, false),
        (Operation::ExtendAll { extensions }, "extend all", false, false),
    ];
    for (operation, name, creates, releases) in cases {
        assert_eq!((operation.name(), operation.creates(), operation.releases()), (name, creates, releases));
        assert_eq!(operation.key(), &key, "{name}");
        let (keys, owned) = if name == "extend all" { (3, false) } else { (1, name != "inspect") };
        assert_eq!((operation.keys(), operation.owner()), (keys, owned.then_some(owner)), "{name}");
    }
}

/// What each reply counts for: as an answer, as that of a release, as a grant, and against our owner.
#[test]
fn replies_say_what_they_count_for() {
    let place = Place { before: 0, score: 1, entered: true, holder: None };
    for (reply, answer, released, granted, denied) in [
        (Reply::Granted, true, true, true, false),
        (Reply::Fenced(FencingToken::new(1)), true, false, true, false),
        (Reply::Uncounted(Uncounted::Replica), true, false, false, false),
        (Reply::CounterExhausted, true, false, false, false),
        (Reply::Held(Holder::UNNAMED), true, true, false, true),
        (Reply::Absent, true, true, false, true),
        (Reply::NotOurs, true, true, false, true),
        (Reply::HandedOver, true, true, false, false),
        (Reply::Voted, true, false, false, false),
        (Reply::Queued(place), true, false, false, false),
        (Reply::QueueFull, true, false, false, false),
        (Reply::Refused("no".into()), true, false, false, false),
        (Reply::NotSent(NotSent::Closed), false, false, false, false),
        (Reply::Unknown(Unknown::Closed), false, false, false, false),
    ] {
        let counts =
            (reply.is_an_answer(), reply.answers_release(), reply.is_granted(), reply.denies_ownership());
        assert_eq!(counts, (answer, released, granted, denied), "{reply:?}");
    }
}
