#!/usr/bin/env bash
# Brings up the five nodes of docker-compose.yml and shows that they are what it says: healthy,
# independent, durable. Takes everything down again, volumes included.
#
#   scripts/compose-test.sh            the test
#   scripts/compose-test.sh COMMAND    runs COMMAND (one shell line) as well while the nodes are up, with
#                                      their addresses, comma-separated, in REDQUORUM_NODES, and
#                                      the name of the project in REDQUORUM_PROJECT
#
# The image is made on the spot from the redis-server and redis-cli of this machine, so that the test
# needs no registry; REDQUORUM_IMAGE names another one. Ends with a line "skipped: ..." and success
# where there is no Docker engine, no compose, or nothing to make an image from.

set -euo pipefail
cd "$(dirname "$0")/.."

ports=(7101 7102 7103 7104 7105)
project=redquorum-test-$$
export REDQUORUM_SERVER=${REDQUORUM_SERVER:-redis-server}

skip() {
    echo "skipped: $*"
    exit 0
}

fail() {
    echo "failed: $*" >&2
    exit 1
}

# Both programs of the machine, with the libraries and the loader they ask for, as an image.
make_image() {
    local server=$1 cli=$2 root=$3/root file
    mkdir -p "$root/usr/local/bin" "$root/data" "$root/tmp"
    cp -L "$server" "$root/usr/local/bin/redis-server"
    cp -L "$cli" "$root/usr/local/bin/redis-cli"
    # ldd fails for a static program, which needs nothing else.
    { ldd "$server" || true; ldd "$cli" || true; } 2>/dev/null | grep -oE '/[^ ]+' | sort -u |
        while read -r file; do
            # The links on the way to a library are not needed, only the path that is asked for.
            mkdir -p "$root$(dirname "$file")"
            cp -L "$file" "$root$file"
        done
    tar -C "$root" -cf "$3/root.tar" .
    printf '%s\n' 'FROM scratch' 'ADD root.tar /' 'WORKDIR /data' 'CMD ["redis-server"]' >"$3/Dockerfile"
    rm -r "$root"
    docker build -t "$REDQUORUM_IMAGE" "$3" >"$3/build.log" 2>&1 || {
        cat "$3/build.log" >&2
        fail "the image could not be built"
    }
}

# Sends one command to the node on a port, and prints the first line of its answer that is no length.
ask() {
    local port=$1 answer
    shift
    exec 9<>"/dev/tcp/127.0.0.1/$port" || return 1
    printf '%s\r\n' "$*" >&9
    IFS= read -r -t 5 answer <&9 || answer=
    case $answer in
    '$-1'*) ;;
    '$'* | '*'*) IFS= read -r -t 5 answer <&9 || answer= ;;
    esac
    exec 9>&-
    echo "${answer%$'\r'}"
}

expect() {
    local want=$1 port=$2 got
    shift
    got=$(ask "$@") || fail "node on port $port does not answer"
    [ "$got" = "$want" ] || fail "node on port $port answered '$got', not '$want', to: ${*:2}"
}

wait_healthy() {
    local deadline=$((SECONDS + 90)) containers states
    while :; do
        containers=$(compose ps -q)
        # Word splitting is meant: one argument for each container.
        # shellcheck disable=SC2086
        states=$(docker inspect -f '{{.State.Health.Status}}' $containers 2>&1 | sort | uniq -c | xargs || true)
        [ "$states" = "5 healthy" ] && return
        if [ $SECONDS -ge $deadline ]; then
            compose logs --tail 10 >&2 || true
            fail "not healthy within 90 s: $states"
        fi
        sleep 0.5
    done
}

take_down() {
    local status=$?
    compose down --volumes --remove-orphans --timeout 5 >"$scratch/down.log" 2>&1 || {
        cat "$scratch/down.log" >&2
        status=1
    }
    if [ -n "$made_image" ]; then
        docker image rm -f "$made_image" >/dev/null 2>&1 || true
    fi
    rm -rf "$scratch"
    exit $status
}

command -v docker >/dev/null || skip "no docker here"
timeout 20 docker version >/dev/null 2>&1 || skip "no Docker engine answers"
if timeout 20 docker compose version >/dev/null 2>&1; then
    compose() { docker compose -p "$project" "$@"; }
elif command -v docker-compose >/dev/null && timeout 20 docker-compose version >/dev/null 2>&1; then
    compose() { docker-compose -p "$project" "$@"; }
else
    skip "neither 'docker compose' nor docker-compose here"
fi
for port in "${ports[@]}"; do
    if (exec 9<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
        fail "port $port is in use; if these nodes are up already, take them down first"
    fi
done

scratch=$(mktemp -d)
made_image=
trap take_down EXIT
trap 'exit 130' INT TERM

if [ -z "${REDQUORUM_IMAGE:-}" ]; then
    server=$(command -v redis-server || command -v valkey-server) || skip "no redis-server to make an image from"
    cli=$(command -v redis-cli || command -v valkey-cli) || skip "no redis-cli for the health checks of an image"
    export REDQUORUM_IMAGE=$project
    made_image=$project
    make_image "$server" "$cli" "$scratch"
    echo "image made of $("$server" --version | cut -d' ' -f1-3)"
fi

compose up -d >"$scratch/up.log" 2>&1 || {
    cat "$scratch/up.log" >&2
    fail "the nodes did not come up"
}
wait_healthy
echo "five nodes healthy"

for port in "${ports[@]}"; do
    expect +OK "$port" SET compose-test "on-$port" NX PX 60000
    expect '$-1' "$port" SET compose-test other NX PX 60000
done
for port in "${ports[@]}"; do
    expect "on-$port" "$port" GET compose-test
done
echo "each holds its own key"

# A crash in the middle: what was answered is still there, as docker-compose.yml promises.
compose kill -s KILL redquorum-3 >/dev/null 2>&1
compose up -d >/dev/null 2>&1
wait_healthy
expect on-7103 7103 GET compose-test
expect on-7101 7101 GET compose-test
echo "a killed node remembers"

for port in "${ports[@]}"; do
    expect :1 "$port" DEL compose-test
done

if [ $# -gt 0 ]; then
    REDQUORUM_NODES=$(printf 'redis://127.0.0.1:%s,' "${ports[@]}")
    export REDQUORUM_NODES=${REDQUORUM_NODES%,} REDQUORUM_PROJECT=$project
    echo "running: $1"
    bash -c "$1"
fi
