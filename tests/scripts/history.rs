//! Histories of one server: what it is asked, what time passes, what others do to its data, and what must come of it.
//!
//! [`Store`] computes what must come of it. `rights.rs` has the rules for users that lack a right. The scripts are not looked at
//! here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use redquorum::node::store::{QueueRecord, Store};
use redquorum::protocol::fencing::{Carry, Counter, END, Fence, FencingToken, Retention};
use redquorum::protocol::message::{
    ClientId, Extension, Extensions, Holder, HolderValue, Key, Operation, Owner, Reply,
};
use redquorum::protocol::time::Instant;
use redquorum::protocol::validity::Ttl;
use redquorum::protocol::wait_queue::rank::MOST_QUEUED;
use redquorum::testing::script_command;

use crate::lives::{Nature, natures};
use crate::rights::{DENIED, Denied};

/// The clients that listen on their channels. Others are as good as dead.
pub const LISTENING: [u8; 2] = [1, 2];

/// How many may stand in one line here.
const MOST: u64 = 3;

/// Where all histories begin: microseconds since 1970, in the last millisecond of a second.
const BEGINNING: u64 = 1_800_000_000_999_456;

/// Apart from each other, and from sums of the times that pass, by more than the real time that a history takes.
const TTLS: [u64; 3] = [60_700, 120_900, 240_800];
const HAND_OVERS: [u64; 2] = [20_600, 40_400];

/// In microseconds: first those around the time for which a waiting client counts as alive.
const PASSING: [u64; 9] =
    [7, 544, 1_000_000, 2_999_000, 3_000_000, 3_001_000, 10_000_000, 31_000_000, 130_000_000];

/// More commands than any script needs here.
const FAR_TOO_MANY: u64 = 300;

/// Two owners for each of three clients.
const OWNERS: u8 = 6;

/// What a history does most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    Line,
    Fencing,
    Lives,
}

/// A history, ready to be sent.
pub struct History {
    pub steps: Vec<Step>,
    /// The texts of the scripts that run in it.
    pub scripts: BTreeSet<Vec<u8>>,
    /// The wake-ups that are published: the channel and what is said.
    pub wake_ups: Vec<(Vec<u8>, Vec<u8>)>,
}

/// One step, and what the server keeps after it.
pub struct Step {
    pub what: String,
    pub sent: Sent,
    pub kept: KeepAlive,
}

pub enum Sent {
    /// Commands that others send.
    Foreign(Vec<Vec<Vec<u8>>>),
    /// Microseconds pass.
    Pass(u64),
    /// A script, in the words of its command, and what it answers.
    Script { operation: Operation, words: Vec<Vec<u8>>, answer: Answer },
}

/// What a script answers.
#[derive(Clone, Debug)]
pub enum Answer {
    This(Reply),
    /// An error that says this.
    Error(&'static str),
    /// For each key of many.
    Each(Vec<Answer>),
}

/// Everything that a server keeps, by name.
pub type KeepAlive = BTreeMap<Vec<u8>, Kept>;

/// What is under one name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    pub data: Data,
    /// Its life in ms, if it ends.
    pub left: Option<u64>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Data {
    /// The first 64 bytes of a text.
    Text(Vec<u8>),
    /// Members and their scores, in order.
    Ordered(Vec<(Vec<u8>, u64)>),
    Fields(BTreeMap<Vec<u8>, Vec<u8>>),
    Other,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |text: &Vec<u8>| text.escape_ascii().to_string();
        match self {
            Self::Text(value) => f.write_str(&text(value)),
            Self::Ordered(members) => {
                f.debug_map().entries(members.iter().map(|(member, score)| (text(member), score))).finish()
            }
            Self::Fields(fields) => {
                f.debug_map().entries(fields.iter().map(|(field, value)| (text(field), text(value)))).finish()
            }
            Self::Other => f.write_str("data of another type"),
        }
    }
}

pub fn keys() -> [Key; 2] {
    [Key::new(*b"k"), Key::new(*b"{tag}:x")]
}

/// The name of what belongs to a key.
pub fn helper(key: &Key, what: &str) -> Vec<u8> {
    let tagged = key.as_bytes().starts_with(b"{");
    let (open, close): (&[u8], &[u8]) = if tagged { (b"", b"") } else { (b"{", b"}") };
    [open, key.as_bytes(), close, b":redquorum:", what.as_bytes()].concat()
}

/// The channel on which a client is woken.
pub fn channel(client: ClientId) -> Vec<u8> {
    [b"redquorum:wake:", &client.to_hex()[..]].concat()
}

pub fn client(byte: u8) -> ClientId {
    ClientId::from_bytes([byte; 16])
}

/// The client that an owner is of, as a rule.
fn client_of(owner: Owner) -> ClientId {
    client(1 + (owner.to_hex()[1] - b'0') % 3)
}

pub fn owner(byte: u8) -> Owner {
    Owner::from_bytes([byte; 16])
}

/// What the harness does to a server while one script runs.
#[derive(Default)]
pub struct Staging {
    /// Commands that are answered with an error, on one key only, or on all if that is empty.
    pub denied: Vec<&'static str>,
    pub denied_key: Vec<u8>,
    /// Before the first of these commands on it, this key is deleted.
    pub ends_before: &'static str,
    pub ending: Vec<u8>,
    /// `PEXPIRE` takes no condition.
    pub old: bool,
}

/// What is unusual while a script runs.
#[derive(Clone, Copy, Debug)]
enum Unusual {
    Denied(Denied),
    Nature(Nature),
}

impl Unusual {
    fn answer(self, drawing: &mut Drawing, operation: &Operation) -> Option<Answer> {
        match self {
            Self::Denied(denied) => drawing.without(denied, operation),
            Self::Nature(nature) => drawing.under(nature, operation),
        }
    }

    fn staging(self, operation: &Operation) -> Staging {
        match self {
            Self::Denied(denied) => denied.staging(operation.key()),
            Self::Nature(nature) => nature.staging(operation),
        }
    }
}

/// A history that the seed draws, for a server that compares lives or for one that does not.
pub fn draw(seed: u64, compares: bool) -> History {
    let theme = [Theme::Line, Theme::Line, Theme::Fencing, Theme::Lives][(seed % 4) as usize];
    let mut drawn = Drawing::new(seed, compares);
    for _ in 0..30 {
        drawn.step(theme);
    }
    drawn.history
}

pub struct Drawing {
    chance: StdRng,
    pub store: Store,
    /// Whether the server compares lives: `PEXPIRE key ttl GT`.
    pub compares: bool,
    /// Microseconds since 1970.
    pub now: u64,
    often_denied: Denied,
    /// What stands in the place of a key's counter and is none; nothing for data of another type.
    pub spoiled: BTreeMap<Key, Option<Vec<u8>>>,
    history: History,
}

impl Drawing {
    fn new(seed: u64, compares: bool) -> Self {
        let mut store = Store::default();
        store.set_most_queued(MOST);
        LISTENING.iter().for_each(|byte| store.subscribe(client(*byte)));
        let history = History { steps: Vec::new(), scripts: BTreeSet::new(), wake_ups: Vec::new() };
        Self {
            chance: StdRng::seed_from_u64(seed),
            store,
            compares,
            now: BEGINNING,
            often_denied: DENIED[(seed / 4) as usize % DENIED.len()],
            spoiled: BTreeMap::new(),
            history,
        }
    }

    pub fn now(&self) -> Instant {
        Instant::from_nanos(1_000 * self.now)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.chance).expect("something to choose from")
    }

    fn happens(&mut self, per_cent: u32) -> bool {
        self.chance.random_ratio(per_cent, 100)
    }

    fn step(&mut self, theme: Theme) {
        let key = keys()[usize::from(self.happens(20))].clone();
        match self.chance.random_range(0..100) {
            0..18 => self.pass(theme),
            18..28 => self.foreign(&key),
            28..33 if theme == Theme::Fencing => self.counter(&key),
            28..32 if theme == Theme::Line => self.turn(key),
            _ => {
                let operation = self.operation(key, theme);
                self.ask(operation);
            }
        }
    }

    fn push(&mut self, what: String, sent: Sent) {
        let kept = self.kept();
        self.history.steps.push(Step { what, sent, kept });
    }

    fn pass(&mut self, theme: Theme) {
        let often = if theme == Theme::Line { 75 } else { 30 };
        match self.chance.random_range(0..100) {
            // Beyond all retentions.
            0..2 => self.pass_one_of(&[400_000_000_000]),
            drawn if drawn < often => self.pass_one_of(&PASSING[..6]),
            _ => self.pass_one_of(&PASSING),
        }
    }

    fn pass_one_of(&mut self, times: &[u64]) {
        let mut passing = self.pick(times);
        // No life may end so close to then that the real time which a history takes makes a difference.
        let lives: Vec<u64> = self.kept().values().filter_map(|kept| kept.left).collect();
        while lives.iter().any(|left| (1_000 * left).abs_diff(passing) < 1_500_000) {
            passing += 3_000_000;
        }
        self.now += passing;
        self.push(format!("{passing} µs pass"), Sent::Pass(passing));
    }

    /// Another client or an administrator changes a key.
    fn foreign(&mut self, key: &Key) {
        let now = self.now();
        let name = key.as_bytes();
        let hex = &owner(self.chance.random_range(0..OWNERS)).to_hex()[..];
        let long = [hex, b" and more than any owner has, by far: longer"].concat();
        let commands = match self.chance.random_range(0..8) {
            0 => {
                self.store.put_other_type(key, now);
                vec![words([b"DEL", name]), words([b"RPUSH", name, b"data"])]
            }
            1..4 => {
                self.store.remove(key);
                vec![words([b"DEL", name])]
            }
            _ => {
                // Another client's value may look like an owner of ours, and then it is one.
                let value = self.pick(&[&b"someone"[..], b"", hex, hex, hex, &long]);
                let ttl = self.happens(50).then(|| Duration::from_millis(TTLS[1]));
                self.store.put_foreign(key, value, ttl, now);
                let mut command = words([b"SET", name, value]);
                if let Some(ttl) = ttl {
                    command.extend(words([b"PX", ttl.as_millis().to_string().as_bytes()]));
                }
                vec![command]
            }
        };
        self.push(format!("others change {key}"), Sent::Foreign(commands));
    }

    /// An administrator changes a fencing counter.
    fn counter(&mut self, key: &Key) {
        let name = helper(key, "fence");
        self.store.remove_counter(key);
        self.spoiled.remove(key);
        let mut commands = vec![words([b"DEL", &name])];
        match self.chance.random_range(0..8) {
            0 => {}
            1 => {
                self.spoiled.insert(key.clone(), None);
                commands.push(words([b"RPUSH", &name, b"data"]));
            }
            2 => {
                let hex = &owner(1).to_hex()[..];
                let text = self.pick(&[&b""[..], b"17", hex, b"none 01010101010101010101010101010101"]);
                self.spoiled.insert(key.clone(), Some(text.to_vec()));
                commands.push(words([b"SET", &name, text]));
            }
            _ => {
                let number = if self.happens(20) { self.pick(&[END, END + 7]) } else { self.number(key) };
                let owner = owner(self.chance.random_range(0..OWNERS));
                let life = 86_400_000 * self.chance.random_range(1..4);
                let counter = Counter { number, owner, expires: self.now / 1_000 + life };
                self.store.put_counter(key, counter);
                let text = [number.to_string().as_bytes(), b" ", &owner.to_hex()[..]].concat();
                commands.push(words([b"SET", &name, &text, b"PX", life.to_string().as_bytes()]));
            }
        }
        self.push(format!("others change the counter of {key}"), Sent::Foreign(commands));
    }

    /// A number of a counter, or for one.
    fn number(&mut self, key: &Key) -> u64 {
        let ahead = self.now + 10_000_000;
        let stored =
            self.store.counter(key, self.now()).map_or(5, |counter| counter.number).clamp(2, END - 2);
        self.pick(&[
            0,
            1,
            stored - 1,
            stored,
            stored + 1,
            self.now - 1_000_000_000,
            self.now,
            ahead - 1,
            ahead,
            ahead + 1,
            self.now + 3_600_000_000,
            self.now + 315_360_000_000_000,
            END - 2,
            END - 1,
        ])
    }

    fn token(&mut self, key: &Key) -> FencingToken {
        FencingToken::new(self.number(key).max(1))
    }

    /// One holds the key, another waits for some time, and has its turn if it still lives.
    fn turn(&mut self, key: Key) {
        let [holder, waiter, other] = [0, 1, 2].map(|client| owner(client + 3 * u8::from(self.happens(50))));
        let hand_over = Ttl::unchecked(Duration::from_millis(HAND_OVERS[0]));
        let queue = |who: Owner, polls| {
            let client = client_of(who);
            let (rename_from, score) = (None, None);
            Operation::Queue { key: key.clone(), owner: who, client, polls, rename_from, score, hand_over }
        };
        self.delete(&key);
        let ttl = Ttl::unchecked(Duration::from_millis(TTLS[0]));
        self.ask(Operation::Claim { key: key.clone(), owner: holder, ttl, fence: None });
        let polls = self.happens(25);
        self.ask(queue(waiter, polls));
        self.pass_one_of(&PASSING[..6]);
        if self.happens(50) {
            let client = client_of(holder);
            self.ask(Operation::HandOver { key, owner: holder, client, hand_over });
        } else {
            self.delete(&key);
            self.ask(queue(other, polls));
        }
    }

    fn delete(&mut self, key: &Key) {
        self.store.remove(key);
        self.push(format!("others delete {key}"), Sent::Foreign(vec![words([b"DEL", key.as_bytes()])]));
    }

    fn ask(&mut self, operation: Operation) {
        let most_commands = self.most_commands(&operation);
        let unusual = self.unusual().into_iter().find_map(|it| Some((it, it.answer(self, &operation)?)));
        let (most_commands, unusual, answer) = match unusual {
            Some((unusual, answer)) => (FAR_TOO_MANY, Some(unusual), answer),
            None => (most_commands, None, self.with_all_rights(&operation)),
        };
        let told = self.store.take_wake_ups().into_iter().map(|wake_up| {
            let said = [&wake_up.owner.to_hex()[..], wake_up.key.as_bytes()].concat();
            (channel(wake_up.client), said)
        });
        self.history.wake_ups.extend(told);
        let mut words = script_command(&operation);
        if let Some(most) = words.iter_mut().find(|word| **word == MOST_QUEUED.to_string().as_bytes()) {
            *most = MOST.to_string().into_bytes();
        }
        self.history.scripts.insert(words[1].clone());
        let staging = unusual.map_or_else(Staging::default, |unusual| unusual.staging(&operation));
        let (seconds, micros) = (self.now / 1_000_000, self.now % 1_000_000);
        words.extend([seconds, micros].map(|part| part.to_string().into_bytes()));
        words.extend([staging.denied.join(" ").into_bytes(), staging.denied_key]);
        words.extend([staging.ends_before.as_bytes().to_vec(), staging.ending]);
        words.extend([u64::from(staging.old), most_commands].map(|part| part.to_string().into_bytes()));
        let what = match unusual {
            Some(unusual) => format!("{operation:?}, {unusual:?}"),
            None => format!("{operation:?}"),
        };
        self.push(what, Sent::Script { operation, words, answer });
    }

    /// What may be unusual while the next script runs, best first.
    fn unusual(&mut self) -> Vec<Unusual> {
        match self.chance.random_range(0..100) {
            0..16 => {
                let mut rights = DENIED;
                rights.shuffle(&mut self.chance);
                [self.often_denied].into_iter().chain(rights).map(Unusual::Denied).collect()
            }
            16..40 => {
                let mut natures = natures();
                natures.shuffle(&mut self.chance);
                if self.happens(50) {
                    natures.sort_by_key(|nature| !nature.is_rare());
                }
                natures.into_iter().map(Unusual::Nature).collect()
            }
            _ => Vec::new(),
        }
    }

    fn operation(&mut self, key: Key, theme: Theme) -> Operation {
        let now = self.now();
        let holder = self.store.holder(&key, now);
        let holder = holder.and_then(|holder| match holder.value {
            HolderValue::Owner(owner) => Some(owner),
            _ => None,
        });
        let own = holder.filter(|_| self.happens(65));
        let owner = own.unwrap_or_else(|| owner(self.chance.random_range(0..OWNERS)));
        let client = if self.happens(90) { client_of(owner) } else { client(self.chance.random_range(1..4)) };
        let ttl = Ttl::unchecked(Duration::from_millis(self.pick(&TTLS)));
        let hand_over = Ttl::unchecked(Duration::from_millis(self.pick(&HAND_OVERS)));
        let days = self.chance.random_range(1..4);
        let retention = Retention::new(Duration::from_secs(86_400 * days));
        // A counter at its end tells of the clocks of another century: nothing carries a token there.
        let spent = self.store.counter(&key, now).is_some_and(|counter| counter.number >= END);
        let carry = Carry { token: self.token(&key), retention };
        let fenced = self.happens(if theme == Theme::Fencing { 80 } else { 10 });
        let carry = (fenced && !spent).then_some(carry);
        match (theme, self.chance.random_range(0..20)) {
            (_, 0) => Operation::Inspect { key },
            (_, 1) => Operation::Release { key, owner },
            (_, 2..4) => Operation::HandOver { key, owner, client, hand_over },
            (_, 4) => {
                let extension = |key: Key| {
                    let carried = carry.filter(|_| key == keys()[0] || days == 1);
                    let spent = self.store.counter(&key, now).is_some_and(|counter| counter.number >= END);
                    Extension { key, owner, ttl, carry: carried.filter(|_| !spent) }
                };
                let mut all = keys().map(extension).to_vec();
                if days == 2 {
                    all.reverse();
                }
                Operation::ExtendAll { extensions: Extensions::new(all).expect("two keys") }
            }
            (_, 5) => Operation::Extend { key, owner, ttl, carry },
            (Theme::Line, 6..14) | (_, 6) => {
                let rename_from = self.happens(30).then(|| {
                    let other = self.chance.random_range(0..OWNERS);
                    holder.filter(|_| self.happens(40)).unwrap_or(Owner::from_bytes([other; 16]))
                });
                let score = self.happens(15).then(|| self.now - self.pick(&[0, 1, 5_000_000]));
                let polls = self.happens(25);
                Operation::Queue { key, owner, client, polls, rename_from, score, hand_over }
            }
            (Theme::Line, _) | (_, 7) => Operation::HandOver { key, owner, client, hand_over },
            (Theme::Fencing, 8..12) if !spent => {
                let carry = Carry { token: self.token(&key), retention };
                Operation::Raise { key, owner, carry }
            }
            (_, 8..11) => Operation::Extend { key, owner, ttl, carry },
            (_, 11) => Operation::Release { key, owner },
            _ if fenced => {
                let candidate = self.number(&key);
                let advance = Fence::Advance { candidate, retention };
                let carry = carry.filter(|_| self.happens(40)).map(Fence::Carry);
                Operation::Claim { key, owner, ttl, fence: Some(carry.unwrap_or(advance)) }
            }
            _ => Operation::Claim { key, owner, ttl, fence: None },
        }
    }

    /// How many commands the operation may take on the server. The usual cases take few.
    fn most_commands(&mut self, operation: &Operation) -> u64 {
        let (now, key) = (self.now(), operation.key());
        let (free, ours) = (self.store.holder(key, now).is_none(), self.is_ours(operation));
        let waiting = self.store.waiting(key, now) > 0;
        match operation {
            Operation::Claim { fence: None, .. } if free => 2,
            Operation::Claim { .. } if free => 4,
            Operation::Release { .. } if ours => 2,
            Operation::HandOver { .. } if ours && !waiting => 3,
            Operation::Queue { rename_from: None, .. } if !free => 12,
            _ => FAR_TOO_MANY,
        }
    }

    /// What comes of an operation.
    pub fn with_all_rights(&mut self, operation: &Operation) -> Answer {
        if let Operation::ExtendAll { extensions } = operation {
            let each = extensions.as_slice().iter().cloned();
            return Answer::Each(each.map(|each| self.with_all_rights(&each.into())).collect());
        }
        if self.spoiled.contains_key(operation.key()) {
            match operation {
                Operation::Claim { fence: Some(_), .. } => return Answer::This(Reply::CounterExhausted),
                Operation::Extend { carry: Some(_), .. } | Operation::Raise { .. }
                    if self.is_ours(operation) =>
                {
                    let of_another_type = self.spoiled[operation.key()].is_none();
                    return Answer::Error(if of_another_type {
                        "WRONGTYPE"
                    } else {
                        "the fencing counter is none"
                    });
                }
                _ => {}
            }
        }
        Answer::This(self.store.execute(operation, self.now()))
    }

    pub fn is_ours(&mut self, operation: &Operation) -> bool {
        let holder = self.store.holder(operation.key(), self.now());
        let owner = operation.owner().map(HolderValue::Owner);
        holder.is_some_and(|holder| Some(holder.value) == owner)
    }

    /// Everything that the server keeps now.
    fn kept(&mut self) -> KeepAlive {
        let (now, millis) = (self.now(), self.now / 1_000);
        let mut kept = BTreeMap::new();
        for key in keys() {
            if let Some(Holder { value, remaining }) = self.store.holder(&key, now) {
                let data = text(&value).map_or(Data::Other, Data::Text);
                let left = remaining.map(|left| left.as_millis() as u64);
                kept.insert(key.as_bytes().to_vec(), Kept { data, left });
            }
            if let Some(Counter { number, owner, expires }) = self.store.counter(&key, now) {
                let text = [number.to_string().as_bytes(), b" ", &owner.to_hex()[..]].concat();
                let left = Some(expires.saturating_sub(millis));
                kept.insert(helper(&key, "fence"), Kept { data: Data::Text(text), left });
            }
            if let Some(spoiled) = self.spoiled.get(&key) {
                let data = spoiled.clone().map_or(Data::Other, Data::Text);
                kept.insert(helper(&key, "fence"), Kept { data, left: None });
            }
            let QueueRecord { entries, entries_end, looks, last, looks_end } =
                self.store.queue_record(&key, now);
            let member = |owner: Owner, client: ClientId| [owner.to_hex(), client.to_hex()].concat();
            if !entries.is_empty() {
                let entries = entries.iter().map(|(owner, client, score)| (member(*owner, *client), *score));
                let left = Some(entries_end.saturating_sub(millis));
                kept.insert(helper(&key, "line"), Kept { data: Data::Ordered(entries.collect()), left });
            }
            let mut fields: BTreeMap<_, _> = looks
                .iter()
                .map(|(client, at, polls)| {
                    let look = [if *polls { "p" } else { "w" }, &at.to_string()].concat();
                    (client.to_hex().to_vec(), look.into_bytes())
                })
                .collect();
            fields.extend(last.map(|(owner, client)| (b"@".to_vec(), member(owner, client))));
            if !fields.is_empty() {
                let left = Some(looks_end.saturating_sub(millis));
                kept.insert(helper(&key, "lives"), Kept { data: Data::Fields(fields), left });
            }
        }
        kept
    }
}

fn words<const N: usize>(words: [&[u8]; N]) -> Vec<Vec<u8>> {
    words.map(<[u8]>::to_vec).to_vec()
}

/// What a holder's value is on the server, its first 64 bytes; nothing for data of another type.
pub fn text(value: &HolderValue) -> Option<Vec<u8>> {
    match value {
        HolderValue::Owner(owner) => Some(owner.to_hex().to_vec()),
        HolderValue::Foreign(text) => Some(text.to_vec()),
        HolderValue::NotALock | HolderValue::Unnamed => None,
    }
}
