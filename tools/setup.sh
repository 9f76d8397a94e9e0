#!/usr/bin/env bash
# Make the environment in folder $1 and install the pip arguments that follow, one line per step.
# usage: tools/setup.sh FOLDER PIP-ARGUMENT...
set -euo pipefail

folder=$1
shift
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null; then
    echo "setup: $python is missing: install Python 3.11 or newer, or call make PYTHON=/path/to/python" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "setup: $("$python" --version) is too old: install Python 3.11 or newer, or call make PYTHON=/path/to/python" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "setup: $python cannot make environments: run" >&2
    echo "    sudo apt-get update && sudo apt-get install -y python3-venv" >&2
    exit 1
fi

# An environment that was copied or moved with its folder still points to the old place.
clear=()
if [ -f "$folder/.place" ] && [ "$(cat "$folder/.place")" != "$PWD" ]; then
    clear=(--clear)
fi
if [ ! -x "$folder/bin/python" ] || [ ${#clear[@]} -gt 0 ]; then
    echo "setup: making $folder with $("$python" --version)"
    "$python" -m venv "${clear[@]+"${clear[@]}"}" "$folder"
fi
echo "$PWD" > "$folder/.place"

echo "setup: installing $* into $folder (a few minutes the first time)"
"$folder/bin/python" -m pip install --disable-pip-version-check --quiet --quiet "$@"
