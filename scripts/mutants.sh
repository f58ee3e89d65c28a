#!/usr/bin/env bash
# Changes the protocol in every small way that can be thought of, one at a time, and looks whether a test notices.
#
#   scripts/mutants.sh            all of them: some hours
#   scripts/mutants.sh 1/10       the second of ten parts
#
# The protocol depends on nothing, so a package of it alone is made in target/mutants, which is built in seconds. First
# the unit tests look at each change, then enumeration and simulation at those that they missed. The janitor, which needs
# the runtime, follows. What nobody noticed is printed in the end, and belongs into docs/testing.md with a reason, or
# deserves a test.

set -euo pipefail
cd "$(dirname "$0")/.."

shard=${1:-0/1}
package=target/mutants/package
output=target/mutants/of-${shard/\//-}

command -v cargo-mutants >/dev/null || {
    echo "cargo-mutants is missing: cargo install cargo-mutants --locked" >&2
    exit 1
}

mkdir -p "$package/src/node" "$package/tests"
cat >"$package/Cargo.toml" <<END
[package]
name = "redquorum"
version = "0.0.0"
edition = "2024"

[features]
runtime = []
testing = []
metrics = []
serde = []

[workspace]

[profile.mutants]
inherits = "test"
opt-level = 1
debug = "none"
END
rm -rf "$package"/src/protocol "$package"/src/node/* "$package"/tests/*
mkdir "$package/tests/protocol"
cp src/lib.rs "$package/src/"
cp -r src/protocol "$package/src/"
cp -r src/node/mod.rs src/node/store "$package/src/node/"
cp -r tests/protocol/main.rs tests/protocol/exhaustive.rs tests/protocol/simulation "$package/tests/protocol/"

# Text for people is no decision.
mutants() {
    cargo mutants --dir "$package" --output "$output" --iterate --shard "$shard" --profile mutants --baseline=skip --timeout "$patience" \
        --file 'src/protocol/**/*.rs' --exclude 'src/protocol/**/tests.rs' --exclude 'src/protocol/**/tests/*.rs' \
        --exclude-re 'impl (fmt::)?(Debug|Display) for' --colors never "$@" || [ $? -le 3 ]
}

# Seconds that the tests may take, which are done in two and in twenty as a rule.
patience=15 mutants -- --lib
patience=90 REDQUORUM_SEEDS=${REDQUORUM_SEEDS:-3000} mutants -- --test protocol -- every_round every_law

# What settles debts needs the runtime: the library itself and the simulation of the runtime, in the first part.
janitor=target/mutants/janitor
if [ "${shard%%/*}" = 0 ]; then
    cargo mutants --output "$janitor" --iterate --baseline=skip --timeout 120 --package redquorum --file src/runtime/janitor.rs \
        --test-package redquorum,redquorum-tests --colors never -- --lib --test memory -- runtime:: || [ $? -le 3 ]
fi

echo
echo "not noticed:"
cat "$output/mutants.out/missed.txt" "$janitor"/mutants.out/missed.txt 2>/dev/null || true
