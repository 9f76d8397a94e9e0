#!/usr/bin/env bash
# Build wheel and sdist into dist/, install the wheel into an empty environment, and follow the tutorial there.
# usage: tools/release.sh PYTHON-WITH-BUILD-AND-MYPY
set -euo pipefail

tools=$1
place=build/release
rm -rf dist "$place"
mkdir -p "$place"

echo "release: building"
"$tools" -m build --no-isolation --outdir dist . > "$place/build.log" 2>&1 || { tail -20 "$place/build.log" >&2; exit 1; }
ls dist

echo "release: installing the wheel into an empty environment"
"$tools" -m venv "$place/empty"
"$place/empty/bin/python" -m pip install --disable-pip-version-check --quiet --quiet dist/icestream-*.whl
"$place/empty/bin/icestream" version

echo "release: types of a user's program"
cp tools/user_program.py "$place"
# elsewhere than here, or the sources would be looked at instead of the wheel
(cd "$place" && "$tools" -m mypy --strict --python-executable empty/bin/python --cache-dir mypy user_program.py)

echo "release: the tutorial"
root=$PWD
cd "$place"
PYSPARK_PYTHON="$root/$place/empty/bin/python" "$root/$place/empty/bin/python" "$root/tools/follow.py" "$root/docs/guide/tutorial.md"
echo "release: done"
