# shellcheck shell=bash
#
# Runs the steps of a check one after the other, goes on after a failed one, and sums up at the end.
# To be sourced:
#
#   step NAME COMMAND...   runs COMMAND; a last line "skipped: reason" says that it had nothing to check
#   summary                prints what became of each step; fails if one failed
#
# What each step printed is also left in target/steps/.

set -uo pipefail

steps_log=target/steps
steps_table=
steps_failed=0

rm -rf "$steps_log"
mkdir -p "$steps_log"
# cargo sees a pipe here, and would leave its colours out although a person looks on.
[ -t 1 ] && export CARGO_TERM_COLOR=always

step() {
    local name=$1 log start=$SECONDS result=ok last
    log=$steps_log/$(tr -cs '[:alnum:]\n' - <<<"$name").log
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    if ! "$@" 2>&1 | tee "$log"; then
        result=FAILED
        steps_failed=$((steps_failed + 1))
    fi
    last=$(tail -n 1 "$log")
    case $result:$last in
    ok:skipped:*) result=$last ;;
    esac
    steps_table+=$(printf '%-28s %6d s  %s' "$name" $((SECONDS - start)) "$result")$'\n'
    [ "$result" != FAILED ]
}

summary() {
    printf '\n== summary\n%s' "$steps_table"
    if [ $steps_failed -gt 0 ]; then
        printf '%d failed\n' $steps_failed
        return 1
    fi
    echo "all passed"
}
