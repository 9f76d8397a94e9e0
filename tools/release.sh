#!/usr/bin/env bash
# Build wheel, sdist and the wheel of machine code into dist/, and try the wheels in an empty environment.
# usage: tools/release.sh PYTHON-OF-THE-DEVELOPERS
set -euo pipefail

python=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
rm -rf dist

echo "release: building"
"$python" -m build --no-isolation --outdir dist . > "$log" 2>&1 || { tail -20 "$log" >&2; exit 1; }
"$python" tools/kernel_wheel.py dist > "$log" 2>&1 || { tail -20 "$log" >&2; exit 1; }
ls dist

echo "release: trying the wheel in an empty environment"
wheels=(dist/icestream-*.whl) kernels=(dist/icestream_kernels-*.whl)
ICESTREAM_WHEEL=${wheels[0]} ICESTREAM_KERNELS=${kernels[0]} "$python" -m pytest tests/install
