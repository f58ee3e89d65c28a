#!/usr/bin/env bash
# Every case in which two clients could believe that they hold one lock, against each supported server version, many times,
# with faults at random moments.
#
#   scripts/test-holders.sh [RUNS]      50 runs for each server, if RUNS is not given
#
# What each run printed is in target/holders/. The tests mostly wait, so two runs go on at a time.

set -uo pipefail
cd "$(dirname "$0")/.." || exit

runs=${1:-50}
beside=${BESIDE:-2}
cases=(memory_of_nodes:: node_clocks:: wire_lives:: starved_work::)
logs=target/holders

built=(cargo test --workspace --exclude redquorum-protocol-tests --all-features --test servers --no-run)
program=$("${built[@]}" 2>&1 | tee >(cat >&2) | sed -E 's/\x1b\[[0-9;]*m//g; s/^ *Executable .* \((.*)\)$/\1/; t; d')
[ -n "$program" ] && scripts/servers.sh matrix >/dev/null || exit
mkdir -p "$logs"
rm -f "$logs"/*

once() {
    local name=$1 server=$2 run=$3
    # One that needs no random moment, and many servers of its own, is left to the ordinary run.
    REDQUORUM_REDIS_SERVER=$server REDQUORUM_RANDOM_MOMENTS=1 RUST_TEST_THREADS=12 "$program" "${cases[@]}" \
        --skip news_of_a_flush --skip pushes_are_handed_over >"$logs/$name-$run.log" 2>&1 ||
        mv "$logs/$name-$run.log" "$logs/$name-$run.FAILED"
}

for run in $(seq "$runs"); do
    while read -r name server; do
        while [ "$(jobs -rp | wc -l)" -ge "$beside" ]; do wait -n; done
        once "$name" "$server" "$run" &
    done <target/servers/matrix.txt
done
wait

failed=$(find "$logs" -name '*.FAILED' | sort)
echo "$(find "$logs" -type f | wc -l) runs of all cases, of which failed: ${failed:-none}"
[ -z "$failed" ]
