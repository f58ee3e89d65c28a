//! The names of a client's own keys and channels on the servers.
//!
//! Helper keys begin with the client's prefix, so that an ACL pattern for the prefix covers them, and share the cluster
//! slot of the key that they belong to.

use smallvec::SmallVec;

/// Ends the name of the sorted set that is the line for a key.
const LINE: &[u8] = b":redquorum:line";

/// Ends the name of the hash of last looks that belongs to a line.
const LIVES: &[u8] = b":redquorum:lives";

/// Ends the name of a key's fencing counter.
const COUNTER: &[u8] = b":redquorum:fence";

/// The name of a key's fencing counter. A fenced acquire makes it for each node, so short ones take no allocation.
pub(super) fn counter(key: &[u8], prefix: &[u8]) -> SmallVec<[u8; 96]> {
    let mut name = SmallVec::new();
    push(&mut name, key, prefix, COUNTER);
    name
}

/// Calls `with` the names of the line for a key and of the hash that belongs to it. One buffer serves for both.
pub(super) fn with_line(key: &[u8], prefix: &[u8], with: impl FnOnce(&[u8], &[u8])) {
    let mut names = SmallVec::<[u8; 128]>::new();
    push(&mut names, key, prefix, LINE);
    let middle = names.len();
    push(&mut names, key, prefix, LIVES);
    let (line, lives) = names.split_at(middle);
    with(line, lives);
}

fn push<A: smallvec::Array<Item = u8>>(names: &mut SmallVec<A>, key: &[u8], prefix: &[u8], suffix: &[u8]) {
    if has_tag(key) {
        names.extend_from_slice(key);
        // Else the helper of `{k}` would be that of `k`.
        let colons = key.iter().rev().take_while(|byte| **byte == b':').count();
        if key[..key.len() - colons].ends_with(b"}") {
            names.push(b':');
        }
    } else {
        names.extend_from_slice(prefix);
        names.push(b'{');
        names.extend_from_slice(key);
        names.push(b'}');
    }
    names.extend_from_slice(suffix);
}

/// Whether servers of a cluster take a part of the key for its slot: what stands between the first `{` and the next `}`,
/// unless that is nothing.
fn has_tag(key: &[u8]) -> bool {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return false };
    key[open + 1..].iter().position(|byte| *byte == b'}').is_some_and(|length| length > 0)
}

/// What stands before a client in the name of its wake-up channel. Each release names it, so it takes no allocation where the
/// prefix is short.
pub(super) fn channels(prefix: &[u8]) -> SmallVec<[u8; 64]> {
    [prefix, b"redquorum:wake:"].into_iter().flatten().copied().collect()
}

/// The key that names the node.
pub(super) fn marker(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"redquorum:node"].concat()
}

/// A key that never exists, to ask for rights with.
pub(super) fn none(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"redquorum:none"].concat()
}

/// The hash of counts, one for each run of the server, that looks raise.
pub(super) fn beats(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"redquorum:beat"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &str, prefix: &str) -> (String, String) {
        let mut names = None;
        with_line(key.as_bytes(), prefix.as_bytes(), |line, lives| {
            let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
            names = Some((text(line), text(lives)));
        });
        names.unwrap()
    }

    /// Helper keys match the pattern of the prefix and share the key's slot.
    #[test]
    fn helpers_share_prefix_and_slot() {
        let pair = |line: &str, lives: &str| (line.to_owned(), lives.to_owned());
        assert_eq!(line("k", ""), pair("{k}:redquorum:line", "{k}:redquorum:lives"));
        assert_eq!(line("app:k", "app:"), pair("app:{app:k}:redquorum:line", "app:{app:k}:redquorum:lives"));
        assert_eq!(line("a{b}c", ""), pair("a{b}c:redquorum:line", "a{b}c:redquorum:lives"));
        assert_eq!(line("a{}c", "").0, "{a{}c}:redquorum:line");
        assert_eq!(line("a{bc", "").0, "{a{bc}:redquorum:line");
        assert_eq!(counter(b"app:k", b"app:")[..], b"app:{app:k}:redquorum:fence"[..]);
        assert_eq!(counter(b"a{b}c", b"")[..], b"a{b}c:redquorum:fence"[..]);
    }

    /// No two keys share a helper.
    #[test]
    fn helpers_are_one_key_each() {
        let keys = [
            "k", "{k}", "{k}:", "{k}::", "k}", "k}:", "{{k}", "{{k}}", "a{}c", "{a{}c}", "a{b}", "a{b}c",
            "a{b}:c",
        ];
        let names: std::collections::BTreeSet<_> = keys.iter().map(|key| line(key, "").0).collect();
        assert_eq!(names.len(), keys.len(), "{names:?}");
        assert_eq!(line("{k}", "").0, "{k}::redquorum:line");
        let prefixed = ["app:k", "app:{app:k}"].map(|key| counter(key.as_bytes(), b"app:"));
        assert_ne!(prefixed[0], prefixed[1]);
    }
}
