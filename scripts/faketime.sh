#!/usr/bin/env bash
# Obtains libfaketime, with which tests move the wall clock of a process, and prints its path. Where it cannot be had, says so
# in a last line "skipped: reason" and prints nothing else: there is no need for it but in tests of the clock.

set -euo pipefail

installed() {
    find /usr/lib /usr/lib64 /usr/local/lib -name libfaketimeMT.so.1 2>/dev/null | head -n 1 | grep .
}

if [ "$(uname)" != Linux ]; then
    echo "skipped: the clock of a process is moved on Linux only"
elif installed; then
    :
elif command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] &&
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends libfaketime; } \
        >/dev/null 2>&1 && installed; then
    :
else
    echo "skipped: libfaketime is not installed, and only root can install it"
fi
