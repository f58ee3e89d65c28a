#!/usr/bin/env bash
# Everything that must hold before a change goes in, one line for each step. Needs cargo with rustfmt and
# clippy; gets a server program by itself.

cd "$(dirname "$0")/.." || exit
. scripts/steps.sh

# All features of the library but the default set, from where they are declared.
features() {
    awk '/^\[/ { on = $0 == "[features]" } on && /^[a-z][a-z0-9_-]* *=/ && $1 != "default" { print $1 }' Cargo.toml
}

deny() {
    if cargo deny --version >/dev/null 2>&1; then
        # Without the advisories: their database has to be fetched, and changes without a change here.
        cargo deny --workspace check bans licenses sources
    else
        echo "skipped: cargo-deny is not installed"
    fi
}

if step "server" scripts/servers.sh default; then
    REDQUORUM_REDIS_SERVER=$(scripts/servers.sh default)
    export REDQUORUM_REDIS_SERVER
fi
# Tests of a wrong wall clock find it by themselves.
step "libfaketime" scripts/faketime.sh
# And so do those that share locks with clients in other languages.
step "other clients" scripts/languages.sh
# The measurements are a package of their own, which nothing else here would build.
benches=(--manifest-path benches/Cargo.toml)
step "format" cargo fmt --all --check
step "format benches" cargo fmt --check "${benches[@]}"
step "clippy" cargo clippy --workspace --all-targets --all-features -- -D warnings
step "clippy benches" env CARGO_TARGET_DIR=target cargo clippy --locked "${benches[@]}" --all-targets --all-features -- -D warnings
# The layer below all others stands alone: it must not need what the features bring.
step "protocol alone" cargo test --no-default-features --lib --test exhaustive --test simulation
step "tests" cargo test --workspace --all-features --no-fail-fast
step "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --all-features
for feature in $(features); do
    step "only $feature" cargo check --no-default-features --features "$feature"
done
step "dependencies" deny
step "demo" make --no-print-directory demo
step "compose" scripts/compose-test.sh "make --no-print-directory demo NODES=compose"

summary
