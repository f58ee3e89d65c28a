#!/usr/bin/env bash
# Obtains the Python clients with which tests/servers/languages shares locks, and prints their folder, target/languages. If they
# cannot be had, says so in a last line "skipped: reason" and prints nothing else: nothing else needs them. What is there
# already is not fetched again.

set -euo pipefail
cd "$(dirname "$0")/.."

folder=target/languages
packages=(redis==5.3.1 pottery==3.0.1)

if [ "$(cat "$folder/wanted" 2>/dev/null)" = "${packages[*]}" ]; then
    realpath "$folder"
    exit
fi
if ! command -v python3 >/dev/null; then
    echo "skipped: there is no python3"
    exit
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
    echo "skipped: python3 has no pip"
    exit
fi
mkdir -p target
fresh=$(mktemp -d target/languages.XXXXXX)
trap 'rm -rf "$fresh"' EXIT
if python3 -m pip install --quiet --no-input --disable-pip-version-check --target "$fresh" "${packages[@]}" \
    >"$fresh/pip.log" 2>&1; then
    echo "${packages[*]}" >"$fresh/wanted"
    rm -rf "$folder"
    mv "$fresh" "$folder"
    realpath "$folder"
else
    echo "skipped: pip could not install ${packages[*]}: $(grep -iE '^error' "$fresh/pip.log" | tail -n 1)"
fi
