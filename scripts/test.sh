#!/usr/bin/env bash
# Everything that must hold before a change goes in, one line for each step. Needs cargo with rustfmt and
# clippy; gets a server program by itself.

cd "$(dirname "$0")/.." || exit
. scripts/steps.sh

# One choice of packages and features wherever tests are built, so that nothing is built twice. The protocol is built and tested
# without any feature, by itself.
workspace=(--workspace --exclude redquorum-protocol-tests --all-features)
built=${CARGO_TARGET_DIR:-target}

# All features of the library but the default set, from where they are declared.
features() {
    awk '/^\[/ { on = $0 == "[features]" } on && /^[a-z][a-z0-9_-]* *=/ && $1 != "default" { print $1 }' Cargo.toml
}

# The layer below all others stands alone: it must not need what the features bring. So the compiler is given no other crate.
unit_tests_alone() {
    mkdir -p "$built/protocol" &&
        rustc --edition 2024 --test --crate-name redquorum src/lib.rs -o "$built/protocol/unit-tests" &&
        "$built/protocol/unit-tests"
}

# The programs that a step has built, one a line: the path, and what it is.
programs() {
    sed -E 's/\x1b\[[0-9;]*m//g; s/^ *Executable (unittests )?(.*) \((.*)\)$/\3 \2/; t; d' "$(steps_file "$1").log"
}

# Starts a program of tests as cargo would. Most tests of some wait for servers and clocks, so more of them than there are
# processors run at a time.
tests() {
    local threads
    case $2 in
    servers/*) threads=6 ;;
    */tool/*) threads=4 ;;
    *) threads=$(nproc) ;;
    esac
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-$threads} "$1"
}

# Builds that no test needs. Each waits for the one before, for cargo lets only one use the folder.
begin_builds() {
    local feature
    begin "docs" nice env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
    for feature in $(features); do
        begin "only $feature" nice cargo check --no-default-features --features "$feature"
    done
}

deny() {
    if cargo deny --version >/dev/null 2>&1; then
        # Without the advisories: their database has to be fetched, and changes without a change here.
        cargo deny --workspace check bans licenses sources
    else
        echo "skipped: cargo-deny is not installed"
    fi
}

# What has to be fetched, while the compiler works: a server program, the library with which tests move the wall clock, and the
# clients in other languages with which tests share locks. Tests find the last two by themselves.
begin "server" scripts/servers.sh default
begin "libfaketime" scripts/faketime.sh
begin "other clients" scripts/languages.sh
# The measurements are a package of their own, which nothing else here would build.
benches=(--manifest-path benches/Cargo.toml)
step "format" cargo fmt --all --check
step "format benches" cargo fmt --check "${benches[@]}"
step "clippy" cargo clippy --workspace --all-targets --all-features -- -D warnings
step "clippy benches" env CARGO_TARGET_DIR="$built" cargo clippy --locked "${benches[@]}" --all-targets --all-features -- -D warnings
step "protocol alone" unit_tests_alone
step "simulation" cargo test --profile simulation --package redquorum-protocol-tests
step "build of tests" cargo test "${workspace[@]}" --no-run
finish
if REDQUORUM_REDIS_SERVER=$(scripts/servers.sh default 2>/dev/null); then
    export REDQUORUM_REDIS_SERVER
fi

# What asks little of the machine runs at the same time. What counts, measures or waits for many processes runs alone: a busy
# machine would make it slow, and its verdict doubtful.
alone=()
while read -r program name; do
    case $name in
    src/* | memory/* | pages/*) begin "tests of $name" tests "$program" "$name" ;;
    *) alone+=("$program $name") ;;
    esac
done < <(programs "build of tests")
finish
for entry in "${alone[@]}"; do
    # The hostile tests mostly wait, and measure nothing: the compiler may work beside them.
    [[ $entry == *" hostile/"* ]] && begin_builds
    step "tests of ${entry#* }" tests "${entry% *}" "${entry#* }"
    [[ $entry == *" hostile/"* ]] && finish
done
step "tests in documentation" cargo test "${workspace[@]}" --doc

demo=(make --no-print-directory demo "TOOL=$built/debug/redquorum")
begin "demo" "${demo[@]}"
begin "compose" scripts/compose-test.sh "${demo[*]} NODES=compose"
step "dependencies" deny
finish

summary
