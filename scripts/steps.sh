# shellcheck shell=bash
#
# Runs the steps of a check, goes on after a failed one, and sums up at the end. To be sourced:
#
#   step NAME COMMAND...   runs COMMAND; a last line "skipped: reason" says that it had nothing to check
#   begin NAME COMMAND...  starts COMMAND beside what follows
#   finish                 waits for all that was begun, and prints what each printed
#   summary                prints what became of each step, and its time and processor time; fails if one failed
#
# What each step printed is also left in target/steps/.

set -uo pipefail

steps_log=target/steps
steps_table=
steps_failed=0
steps_begun=()

rm -rf "$steps_log"
mkdir -p "$steps_log"
# cargo sees a pipe here, and would leave its colours out although a person looks on.
[ -t 1 ] && export CARGO_TERM_COLOR=always

# Where a step of this name leaves what it prints, without an extension.
steps_file() {
    echo "$steps_log/$(tr -cs '[:alnum:]\n' - <<<"$1")"
}

# Runs a command. Its output goes to FILE.log and to descriptor 3, its status and its times to FILE.end.
steps_run() {
    local file=$1 times TIMEFORMAT='%R %U %S'
    shift
    times=$({ time "$@" 2>&1 | tee "$file.log" >&3; } 2>&1)
    echo "$? $times" >"$file.end"
}

# Adds a step that has ended to the table.
steps_add() {
    local name=$1 file status real user system result=ok last
    file=$(steps_file "$name")
    read -r status real user system <"$file.end"
    last=$(tail -n 1 "$file.log")
    if [ "$status" != 0 ]; then
        result=FAILED
        steps_failed=$((steps_failed + 1))
    elif [[ $last == skipped:* ]]; then
        result=$last
    fi
    steps_table+=$(printf '%-28s %6.0f s %6.0f s  %s' "$name" "$real" "$(awk "BEGIN { print $user + $system }")" "$result")$'\n'
    [ "$result" != FAILED ]
}

step() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    steps_run "$(steps_file "$name")" "$@" 3>&1
    steps_add "$name"
}

begin() {
    local name=$1
    shift
    steps_begun+=("$name")
    steps_run "$(steps_file "$name")" "$@" 3>/dev/null &
}

finish() {
    local name
    wait
    for name in "${steps_begun[@]}"; do
        printf '\n== %s\n' "$name"
        cat "$(steps_file "$name").log"
        steps_add "$name"
    done
    steps_begun=()
}

summary() {
    printf '\n== summary\n%-28s %8s %8s\n%s' '' time processor "$steps_table"
    if [ $steps_failed -gt 0 ]; then
        printf '%d failed\n' $steps_failed
        return 1
    fi
    echo "all passed"
}
