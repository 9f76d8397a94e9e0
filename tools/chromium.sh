#!/usr/bin/env bash
# Print the path of a Chromium that tests can drive; install one where that is possible.
# Looks at CHROMIUM, then PATH. Everything but the answer goes to stderr.
set -euo pipefail

find_chromium() {
    local name
    for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
        command -v "$name" && return 0
    done
    return 1
}

if ! find_chromium; then
    if ! command -v apt-get >/dev/null || [ "$(id -u)" -ne 0 ]; then
        echo "chromium is missing: run" >&2
        echo "    sudo apt-get update && sudo apt-get install -y chromium fonts-liberation" >&2
        echo "or set CHROMIUM to the path of one" >&2
        exit 1
    fi
    echo "chromium: installing it with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq --no-install-recommends chromium fonts-liberation >&2
    find_chromium
fi
