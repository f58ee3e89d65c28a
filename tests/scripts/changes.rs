//! Every small change of a script: a number, a comparison, an operator, a condition, a text, an argument, a line.
//!
//! Knows as much of Lua as the scripts use: tokens, blocks, calls and lists. Knows nothing of what the scripts are for.

use std::collections::BTreeSet;
use std::ops::Range;

/// A script's file with one small change.
pub struct Change {
    /// The first line that is changed, from 1.
    pub line: usize,
    /// That line as it is, and as it becomes: nothing if it is left out.
    pub from: String,
    pub to: String,
    /// The whole file with the change.
    pub text: String,
}

/// All changes of a script.
pub fn changes(script: &str) -> Vec<Change> {
    let changer = Changer { script, tokens: tokens(script), edits: Vec::new() };
    let mut seen = BTreeSet::from([script.to_owned()]);
    let changes = changer.edits().into_iter().map(|(span, by)| change(script, span, &by));
    changes.filter(|change| seen.insert(change.text.clone())).collect()
}

fn change(script: &str, span: Range<usize>, by: &str) -> Change {
    let text = [&script[..span.start], by, &script[span.end..]].concat();
    let start = script[..span.start].rfind('\n').map_or(0, |end| end + 1);
    let line = script[..span.start].matches('\n').count() + 1;
    let first = |text: &str| text[start..].lines().next().unwrap_or_default().trim().to_owned();
    let left_out = by.is_empty() && span.start == start;
    let to = if left_out { String::new() } else { first(&text) };
    Change { line, from: first(script), to, text }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Name,
    Number,
    Text,
    Symbol,
}

#[derive(Clone, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    span: Range<usize>,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }

    /// Whether a minus behind it takes something away, and is no sign.
    fn ends_value(&self) -> bool {
        let word = ["and", "or", "not", "return", "then", "else", "do", "in"].contains(&self.text);
        match self.kind {
            Kind::Symbol => [")", "]", "}"].contains(&self.text),
            _ => !word,
        }
    }
}

fn tokens(script: &str) -> Vec<Token<'_>> {
    const LONG: [&str; 5] = ["==", "~=", "<=", ">=", ".."];
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = script[at..].chars().next() {
        let rest = &script[at..];
        let run = |of: fn(char) -> bool| rest.find(|next| !of(next)).unwrap_or(rest.len());
        let (kind, length) = if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        } else if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        } else if first.is_ascii_digit() {
            (Kind::Number, run(|next| next.is_ascii_alphanumeric() || next == '.'))
        } else if first.is_ascii_alphabetic() || first == '_' {
            (Kind::Name, run(|next| next.is_ascii_alphanumeric() || next == '_'))
        } else if first == '\'' {
            (Kind::Text, rest[1..].find('\'').expect("the end of a text") + 2)
        } else if LONG.iter().any(|long| rest.starts_with(long)) {
            (Kind::Symbol, 2)
        } else {
            (Kind::Symbol, 1)
        };
        tokens.push(Token { kind, text: &rest[..length], span: at..at + length });
        at += length;
    }
    tokens
}

struct Changer<'a> {
    script: &'a str,
    tokens: Vec<Token<'a>>,
    edits: Vec<(Range<usize>, String)>,
}

impl Changer<'_> {
    fn edits(mut self) -> Vec<(Range<usize>, String)> {
        for at in 0..self.tokens.len() {
            self.number(at);
            self.operator(at);
            self.condition(at);
            self.list(at);
            self.text(at);
        }
        self.lines();
        self.edits
    }

    fn edit(&mut self, span: Range<usize>, by: impl Into<String>) {
        self.edits.push((span, by.into()));
    }

    fn token(&self, at: usize) -> Option<&Token<'_>> {
        self.tokens.get(at)
    }

    /// One more, one less, a thousand times as much, a thousandth without its fraction, nothing.
    fn number(&mut self, at: usize) {
        let Token { kind: Kind::Number, text, span } = &self.tokens[at] else { return };
        let mut span = span.clone();
        let mut number: f64 = text.parse().expect("a number");
        let sign = at.checked_sub(1).and_then(|before| self.token(before)).filter(|before| before.is("-"));
        let taken_away =
            at.checked_sub(2).and_then(|before| self.token(before)).is_some_and(Token::ends_value);
        if let (Some(sign), false) = (sign, taken_away) {
            (span.start, number) = (sign.span.start, -number);
        }
        for other in [number + 1.0, number - 1.0, number * 1000.0, (number / 1000.0).trunc(), 0.0] {
            // Without the sign of a zero.
            self.edit(span.clone(), format!("{}", other + 0.0));
        }
    }

    fn operator(&mut self, at: usize) {
        let token = self.tokens[at].clone();
        let binary = at.checked_sub(1).and_then(|before| self.token(before)).is_some_and(Token::ends_value);
        let others: &[&str] = match token.text {
            _ if token.kind == Kind::Text => &[],
            "<" => &["<=", ">="],
            "<=" => &["<", ">"],
            ">" => &[">=", "<="],
            ">=" => &[">", "<"],
            "==" => &["~="],
            "~=" => &["=="],
            "and" => &["or"],
            "or" => &["and"],
            "not" => &[""],
            "true" => &["false"],
            "false" => &["true"],
            "+" => &["-"],
            "-" if binary => &["+"],
            "*" => &["/"],
            "/" => &["*"],
            _ => &[],
        };
        for other in others {
            self.edit(token.span.clone(), *other);
        }
    }

    /// The opposite of a condition, and the condition without one of its parts.
    fn condition(&mut self, at: usize) {
        if !["if", "elseif", "while"].iter().any(|word| self.tokens[at].is(word)) {
            return;
        }
        let length = self.tokens[at..].iter().position(|token| token.is("then") || token.is("do"));
        let end = at + length.expect("the end of a condition");
        let whole = self.tokens[at + 1].span.start..self.tokens[end - 1].span.end;
        self.edit(whole.clone(), format!("not ({})", &self.script[whole.clone()]));

        let joints = self.outer(at + 1..end).filter(|token| token.is("and") || token.is("or"));
        let joints: Vec<_> = joints.map(|token| token.span.clone()).collect();
        for (index, joint) in joints.iter().enumerate() {
            let before = index.checked_sub(1).map_or(whole.start, |before| joints[before].end + 1);
            let after = joints.get(index + 1).map_or(whole.end, |next| next.start - 1);
            self.edit(before..joint.end + 1, "");
            self.edit(joint.start - 1..after, "");
        }
    }

    /// The tokens of a range that stand in no brackets within it.
    fn outer(&self, range: Range<usize>) -> impl Iterator<Item = &Token<'_>> {
        let mut depth = 0_i32;
        self.tokens[range].iter().filter(move |token| {
            depth -= i32::from([")", "]", "}"].iter().any(|close| token.is(close)));
            let outside = depth == 0;
            depth += i32::from(["(", "[", "{"].iter().any(|open| token.is(open)));
            outside
        })
    }

    /// A list without one of its values; a command without an argument, or without an option and its value.
    fn list(&mut self, at: usize) {
        let command = self.is_command(at);
        if !(command || self.tokens[at].is("{")) {
            return;
        }
        let close = self.closing(at);
        let inside = at + 1..close;
        if inside.is_empty() {
            return;
        }
        let mut edges = vec![self.tokens[at].span.end];
        edges.extend(self.outer(inside).filter(|token| token.is(",")).map(|comma| comma.span.start));
        edges.push(self.tokens[close].span.start);
        let value = |index: usize| self.script[edges[index]..edges[index + 1]].trim_matches([',', ' ']);
        let is_option = |index: usize| {
            let value = value(index).trim_matches('\'');
            value.len() > 1 && value.bytes().all(|byte| byte.is_ascii_uppercase())
        };
        let mut edits = Vec::new();
        for index in usize::from(command)..edges.len() - 1 {
            let mut span = edges[index]..edges[index + 1];
            if index == 0 && edges.len() > 2 {
                // The comma goes with the value before it.
                span.end += 1;
            }
            edits.push(span);
            if command && is_option(index) && index + 2 < edges.len() {
                edits.push(edges[index]..edges[index + 2]);
            }
        }
        edits.into_iter().for_each(|span| self.edit(span, ""));
    }

    /// Whether this bracket opens the arguments of a command.
    fn is_command(&self, at: usize) -> bool {
        let name = at.checked_sub(1).and_then(|before| self.token(before));
        let defined =
            at.checked_sub(2).and_then(|before| self.token(before)).is_some_and(|it| it.is("function"));
        let is_call = name.is_some_and(|name| name.is("call") || name.is("pcall"));
        let a_command = self.token(at + 1).is_some_and(|first| first.kind == Kind::Text);
        self.tokens[at].is("(") && is_call && !defined && a_command
    }

    fn closing(&self, open: usize) -> usize {
        let mut depth = 0_i32;
        let closes = self.tokens[open..].iter().position(|token| {
            depth += i32::from(["(", "[", "{"].iter().any(|open| token.is(open)));
            depth -= i32::from([")", "]", "}"].iter().any(|close| token.is(close)));
            depth == 0
        });
        open + closes.expect("a bracket that closes")
    }

    /// Another text. Names of commands stay, since servers know no others.
    fn text(&mut self, at: usize) {
        let token = self.tokens[at].clone();
        if token.kind == Kind::Text && !(at > 0 && self.is_command(at - 1)) {
            self.edit(token.span, "'x'");
        }
    }

    /// The script without one of its lines, or without a block, or without one way through a block.
    fn lines(&mut self) {
        let mut starts = vec![0];
        starts.extend(self.script.match_indices('\n').map(|(end, _)| end + 1));
        let line_of = |place: usize| starts.partition_point(|start| *start <= place) - 1;
        let start_of = |line: usize| starts.get(line).copied().unwrap_or(self.script.len());
        let mut lines = vec![Vec::new(); starts.len()];
        for token in &self.tokens {
            lines[line_of(token.span.start)].push(token.clone());
        }
        let opens = |line: &[Token<'_>]| {
            let count = |words: &[&str]| {
                line.iter().filter(|token| words.iter().any(|word| token.is(word))).count() as i32
            };
            count(&["if", "do", "function"]) - count(&["end"])
        };
        let is_way = |line: &[Token<'_>]| line[0].is("else") || line[0].is("elseif");

        let mut edits = Vec::new();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            if opens(line) < 0 || is_way(line) {
                continue;
            }
            // The lines within, at which one way ends and the next begins, and the end.
            let (mut depth, mut ways) = (0, Vec::new());
            for (within, line) in lines.iter().enumerate().skip(number).filter(|(_, line)| !line.is_empty()) {
                if depth == 1 && is_way(line) {
                    ways.push(within);
                }
                depth += opens(line);
                if depth == 0 {
                    ways.push(within);
                    break;
                }
            }
            let end = ways[ways.len() - 1];
            edits.push(start_of(number)..start_of(end + 1));
            edits.extend(ways.windows(2).map(|way| start_of(way[0])..start_of(way[1])));
        }
        edits.into_iter().for_each(|span| self.edit(span, ""));
    }
}

/// The changes are those that one would make by hand.
#[test]
fn changes_are_small_and_complete() {
    let script = "-- no code: 1 < 2\nif a and b <= 3000 then\n    return call('SET', k, 'PX', -1)\nelse\n    f(x - 2)\nend\n";
    let changes = changes(script);
    let found = |from: &str, to: &str| {
        let found = changes.iter().filter(|change| (&*change.from, &*change.to) == (from, to)).count();
        assert_eq!(found, 1, "{from} -> {to}");
    };
    for to in [
        "if a and b < 3000 then",
        "if a and b > 3000 then",
        "if a or b <= 3000 then",
        "if a and b <= 3001 then",
        "if a and b <= 2999 then",
        "if a and b <= 3000000 then",
        "if a and b <= 3 then",
        "if a and b <= 0 then",
        "if not (a and b <= 3000) then",
        "if a then",
        "if b <= 3000 then",
        "",
    ] {
        found("if a and b <= 3000 then", to);
    }
    for to in [
        "return call('SET', k, 'PX')",
        "return call('SET', k)",
        "return call('SET', k, -1)",
        "return call('SET', 'PX', -1)",
        "return call('SET', k, 'x', -1)",
        "return call('SET', k, 'PX', 0)",
        "return call('SET', k, 'PX', -2)",
        "",
    ] {
        found("return call('SET', k, 'PX', -1)", to);
    }
    found("f(x - 2)", "f(x + 2)");
    found("f(x - 2)", "f(x - 3)");
    found("f(x - 2)", "");
    found("else", "");
    let unchanged = changes.iter().all(|change| change.text.starts_with("-- no code: 1 < 2\n"));
    assert!(unchanged, "comments stay");
}
