//! What is sent, and what answers and errors mean: one law each.

use super::*;
use crate::protocol::message::{Extensions, Key, Owner};
use crate::protocol::validity::{Drift, Ttl};

const OWNER: Owner = Owner::from_bytes([7; 16]);

fn operations() -> [Operation; 4] {
    let (key, owner) = (Key::new(*b"k"), OWNER);
    let second = std::time::Duration::from_secs(1);
    let ttl = Ttl::new(second, Drift::default(), second).unwrap();
    [
        Operation::Set { key: key.clone(), owner, ttl },
        Operation::Claim { key: key.clone(), owner, ttl, fence: None },
        Operation::Extend { key: key.clone(), owner, ttl, carry: None },
        Operation::Release { key, owner },
    ]
}

fn error(text: &str) -> ServerError {
    let (code, detail) = text.split_once(' ').unwrap_or((text, ""));
    ServerError { code: code.into(), detail: detail.into() }
}

fn packed(operation: &Operation, form: Form) -> String {
    let mut command = Cmd::new();
    encode(&mut command, operation, form, b"");
    let packed = command.get_packed_command();
    String::from_utf8(packed).unwrap().replace("\r\n", " ")
}

/// The wire form that other clients share: `SET key owner NX PX ttl`.
#[test]
fn set_is_the_commands_of_the_field() {
    let [set, _, _, release] = operations();
    let owner = "07070707070707070707070707070707";
    assert_eq!(packed(&set, Form::Set), format!("*6 $3 SET $1 k $32 {owner} $2 NX $2 PX $4 1000 "));
    assert_eq!(packed(&set, Form::SetGet), format!("*7 $3 SET $1 k $32 {owner} $2 NX $3 GET $2 PX $4 1000 "));
    assert_eq!(
        packed(&release, Form::Delete(NativeDelete::Delifeq)),
        format!("*3 $7 DELIFEQ $1 k $32 {owner} ")
    );
    assert_eq!(
        packed(&release, Form::Delete(NativeDelete::Delex)),
        format!("*4 $5 DELEX $1 k $4 IFEQ $32 {owner} ")
    );
    assert!(packed(&release, Form::Digest).contains("$40 "), "a SHA-1 digest");
}

/// Without scripts each operation has a command of its own, or is refused before it is sent.
#[test]
fn without_scripts_commands_serve() {
    let [set, claim, extend, release] = operations();
    let no_scripts = Abilities { set_get: true, no_scripts: true, ..Abilities::default() };
    let able = Abilities { set_ifeq: true, delete: Some(NativeDelete::Delifeq), ..no_scripts };
    let forms = |abilities| [&set, &claim, &extend, &release].map(|operation| form(operation, abilities));
    let delete = Form::Delete(NativeDelete::Delifeq);
    assert_eq!(forms(able), [Form::SetGet, Form::SetGet, Form::SetIfEq, delete]);
    assert_eq!(forms(Abilities { delete: None, ..able })[3], Form::SetIfEq);
    for operation in [&set, &claim, &extend, &release] {
        assert_eq!(able.refuses(operation), None);
        let why = no_scripts.refuses(operation).expect("nothing stands in their place");
        assert!(why.contains("EVALSHA"), "{why}");
        assert_eq!(Abilities { no_scripts: false, ..no_scripts }.refuses(operation), None);
    }
    let owner = "07070707070707070707070707070707";
    let ifeq = |life: &str| format!("*8 $3 SET $1 k $32 {owner} $4 IFEQ $32 {owner} $3 GET $2 PX {life} ");
    assert_eq!(packed(&extend, Form::SetIfEq), ifeq("$4 1000"));
    assert_eq!(packed(&release, Form::SetIfEq), ifeq("$1 1"));

    let mine = Value::BulkString(OWNER.to_hex().to_vec());
    assert_eq!(decode(&extend, Form::SetIfEq, &mine), Reply::Granted);
    assert_eq!(decode(&extend, Form::SetIfEq, &Value::Nil), Reply::Absent);
    let theirs = decode(&release, Form::SetIfEq, &Value::BulkString(b"theirs".to_vec()));
    assert!(matches!(theirs, Reply::Held(_)));
    // A claim that finds its own key has to lengthen its life; a first set is the one that made it.
    assert_eq!(next_form(&claim, Form::SetGet, &mine, able), Some(Form::SetIfEq));
    assert_eq!(next_form(&set, Form::SetGet, &mine, able), None);
    assert_eq!(next_form(&claim, Form::SetGet, &Value::BulkString(b"theirs".to_vec()), able), None);
    assert_eq!(decode(&claim, Form::SetIfEq, &Value::Nil), Reply::Held(Holder::UNNAMED));
}

/// Scripts that are refused in their last form are done without from then on.
#[test]
fn refused_scripts_are_done_without() {
    let [_, _, extend, _] = operations();
    let forbidden = error("NOPERM User app has no permissions to run the 'eval' command");
    let mut abilities = Abilities { set_ifeq: true, ..Abilities::default() };
    assert_eq!(without_scripts(&extend, Form::Digest, &forbidden, &mut abilities), None);
    assert_eq!(without_scripts(&extend, Form::Text, &error("NOPERM no key"), &mut abilities), None);
    assert!(!abilities.no_scripts);
    assert_eq!(without_scripts(&extend, Form::Text, &forbidden, &mut abilities), Some(Form::SetIfEq));
    assert!(abilities.no_scripts);
    let mut unable = Abilities::default();
    assert_eq!(without_scripts(&extend, Form::Text, &forbidden, &mut unable), None);
    assert!(unable.no_scripts, "and nothing is set from then on");
}

/// The meaning of nil depends on the form that was sent.
#[test]
fn nil_is_granted_with_get_and_held_without() {
    let [set, ..] = operations();
    assert_eq!(decode(&set, Form::SetGet, &Value::Nil), Reply::Granted);
    assert_eq!(decode(&set, Form::Set, &Value::Nil), Reply::Held(Holder::UNNAMED));
    assert_eq!(decode(&set, Form::Set, &Value::Okay), Reply::Granted);
    let mine = Value::BulkString(OWNER.to_hex().to_vec());
    assert_eq!(decode(&set, Form::SetGet, &mine), Reply::Granted);
    let theirs = decode(&set, Form::SetGet, &Value::BulkString(b"theirs".to_vec()));
    assert!(matches!(theirs, Reply::Held(Holder { value: HolderValue::Foreign(_), .. })));
}

/// Rule 5: an error from inside a script may have written; one from before it has not.
#[test]
fn errors_inside_scripts_are_unknown() {
    let refused = [
        "NOPERM no permission to run 'evalsha'",
        "LOADING loading",
        "NOSCRIPT no such script",
        "READONLY You can't write against a read only replica.",
        "BUSY Redis is busy running a script.",
    ];
    for text in refused {
        assert!(matches!(decode_error(Form::Digest, &error(text)), Reply::Refused(_)), "{text}");
    }
    let unknown = [
        "MISCONF Errors writing to the AOF file script: 1234, on @user_script:1.",
        "ERR Error running script (call to f_1234): @user_script:3: NOPERM",
        "OOM command not allowed when used memory > 'maxmemory'. script: 1234, on @user_script:4.",
        "ERR something never heard of",
        // Of a counter or a line: about the lock it says nothing.
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 1234, on @user_script:5.",
    ];
    for text in unknown {
        assert!(matches!(decode_error(Form::Text, &error(text)), Reply::Unknown(_)), "{text}");
    }
    let plain = decode_error(Form::Set, &error("ERR invalid expire time in 'set' command"));
    assert!(matches!(plain, Reply::Refused(_)), "a plain command is executed or refused");
    let proxy = decode_error(Form::Set, &error("upstream failure"));
    assert!(matches!(proxy, Reply::Unknown(_)), "a proxy may have sent the command on");
    let wrong =
        decode_error(Form::Delete(NativeDelete::Delifeq), &error("WRONGTYPE Operation against a key"));
    assert!(matches!(wrong, Reply::Held(Holder { value: HolderValue::NotALock, .. })));
}

/// An extension of many leases tells of each, an error included; any other number of answers is unusable.
#[test]
fn each_lease_of_many_is_answered_for_itself() {
    let [_, _, extend, _] = operations();
    let Operation::Extend { owner, ttl, .. } = extend else { panic!("extend") };
    let extension = |key: &[u8]| Extension { key: Key::new(key), owner, ttl, carry: None };
    let extensions = [&b"a"[..], b"b", b"c", b"d", b"e"].map(extension).to_vec();
    let many = Operation::ExtendAll { extensions: Extensions::new(extensions).unwrap() };
    let hex = "07070707070707070707070707070707";
    let sent = packed(&many, Form::Digest);
    assert!(sent.contains("$1 5 $1 a $1 b $1 c $1 d $1 e $32 "), "{sent}");
    assert_eq!(sent.matches(&format!("$32 {hex} $4 1000 ")).count(), 5);

    let other = Value::Array(vec![Value::BulkString(b"other".to_vec()), Value::Int(-1)]);
    let failed = Value::BulkString(b"MISCONF no\r\nwrites".to_vec());
    let answers = vec![Value::Int(1), Value::Int(0), other, failed, Value::Nil];
    let Reply::Each(each) = decode(&many, Form::Digest, &Value::Array(answers)) else { panic!("each") };
    assert_eq!(each[..2], [Reply::Granted, Reply::Absent]);
    assert!(matches!(&each[2], Reply::Held(Holder { value: HolderValue::Foreign(_), .. })));
    let Reply::Unknown(Unknown::Error(message)) = &each[3] else { panic!("{:?}", each[3]) };
    assert_eq!(&**message, "MISCONF no\\r\\nwrites");
    assert!(matches!(each[4], Reply::Unknown(Unknown::Garbled(_))));

    let short = decode(&many, Form::Digest, &Value::Array(vec![Value::Int(1)]));
    assert!(matches!(short, Reply::Unknown(Unknown::Garbled(_))), "{short:?}");
    assert!(matches!(decode(&many, Form::Text, &Value::Int(1)), Reply::Unknown(Unknown::Garbled(_))));
    assert!(is_about_keys(&error("CROSSSLOT Keys in request don't hash to the same slot")));
    assert!(!is_about_keys(&error("LOADING")));
}

/// Abilities are taken back when the server refuses them, and each form has at most one after it.
#[test]
fn refused_forms_fall_back_once() {
    let delete = Some(NativeDelete::Delifeq);
    let mut abilities = Abilities { set_get: true, delete, ..Abilities::default() };
    let fallen = other_form(Form::SetGet, &error("ERR syntax error"), &mut abilities);
    assert_eq!((fallen, abilities.set_get), (Some(Form::Set), false));
    assert_eq!(other_form(Form::Set, &error("ERR syntax error"), &mut abilities), None);

    let unreadable = error("NOPERM No permissions to access a key");
    let fallen = other_form(Form::Delete(NativeDelete::Delifeq), &unreadable, &mut abilities);
    assert_eq!((fallen, abilities.delete), (None, Some(NativeDelete::Delifeq)), "says nothing of other keys");
    let forbidden = error("NOPERM User me has no permissions to run the 'delifeq' command");
    let fallen = other_form(Form::Delete(NativeDelete::Delifeq), &forbidden, &mut abilities);
    assert_eq!((fallen, abilities.delete), (Some(Form::Digest), None));
    assert_eq!(
        other_form(Form::Digest, &error("NOSCRIPT No matching script."), &mut abilities),
        Some(Form::Text)
    );
    assert_eq!(
        other_form(Form::Text, &error("NOPERM no"), &mut abilities),
        None,
        "the second error is reported"
    );
    assert_eq!(other_form(Form::Digest, &error("OOM no"), &mut abilities), None);
    let only_eval = error("NOPERM this user has no permissions to run the 'evalsha' command");
    assert_eq!(other_form(Form::Digest, &only_eval, &mut abilities), Some(Form::Text));
    let no_key = error("NOPERM this user has no permissions to access one of the keys used as arguments");
    assert_eq!(other_form(Form::Digest, &no_key, &mut abilities), None);
}

/// Rule 10: an answer of any other shape is unknown, and named without being repeated.
#[test]
fn answers_of_any_other_shape_are_unknown() {
    let shapes = [
        Value::Int(7),
        Value::Int(-1),
        Value::Array(vec![]),
        Value::Array(vec![Value::Nil, Value::Nil]),
        Value::Map(vec![(Value::Nil, Value::Nil)]),
        Value::Double(f64::NAN),
        Value::Boolean(true),
        Value::SimpleString("S3ntinel".into()),
    ];
    let forms = [Form::Set, Form::SetGet, Form::Delete(NativeDelete::Delex), Form::Digest, Form::Text];
    let [_, claim, _, release] = operations();
    for form in forms {
        for value in &shapes {
            let Reply::Unknown(Unknown::Garbled(message)) = decode(&release, form, value) else {
                panic!("{form:?} {value:?}");
            };
            assert!(!message.contains("S3ntinel"));
        }
    }
    let zero = decode(&claim, Form::Digest, &Value::Int(0));
    assert!(matches!(zero, Reply::Unknown(Unknown::Garbled(_))), "a claim is never answered so: {zero:?}");
}

/// Rule 10: what a server says is shown in one line of bounded length.
#[test]
fn server_messages_are_one_short_line() {
    let hostile = error(&format!("ERR \x1b[31m\r\nsecond line {}", "x".repeat(10_000)));
    let message = hostile.message();
    assert!(message.len() < 300 && !message.chars().any(char::is_control), "{message}");
    assert!(message.starts_with("ERR \\u{1b}[31m\\r\\nsecond line"), "{message}");
}
