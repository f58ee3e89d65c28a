#!/usr/bin/env bash
# The tests against each supported server line in turn, and then with all of them in one quorum: whatever
# scripts/servers.sh can obtain here.

cd "$(dirname "$0")/.." || exit
. scripts/steps.sh

if step "servers" scripts/servers.sh matrix; then
    # Read up front: what a test reads from its input would be missing here.
    mapfile -t servers <target/servers/matrix.txt
    for server in "${servers[@]}"; do
        read -r name path <<<"$server"
        step "$name" env REDQUORUM_REDIS_SERVER="$path" cargo test --workspace --exclude redquorum-protocol-tests --all-features --tests --no-fail-fast
    done
    step "all in one quorum" env REDQUORUM_MIXED=required cargo test --workspace --all-features --test servers mixed:: -- --nocapture
fi

summary
