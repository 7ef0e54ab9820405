#!/usr/bin/env bash
# Build .venv from the lock.  usage: ci/setup.sh PYTHON STATE [gpu]
#
# STATE is written to .venv/state at the very end: a set-up that was interrupted starts again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 state=$2 gpu=${3:-}

if ! command -v "$python" >/dev/null; then
    echo "tapelab needs Python 3.11, 3.12 or 3.13; there is no '$python'. Try: make PYTHON=/path/to/python3.12" >&2
    exit 1
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
    3.11 | 3.12 | 3.13) ;;
    *)
        echo "tapelab needs Python 3.11, 3.12 or 3.13; '$python' is $version. Try: make PYTHON=/path/to/python3.12" >&2
        exit 1
        ;;
esac
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$python' cannot make virtual environments. On Debian or Ubuntu: apt install python$version-venv" >&2
    exit 1
fi

echo "Setting up .venv with Python $version: once, about 2.7 GB of disk, some minutes"
echo "  1 of 3: an installer, of the version in the lock"
"$python" -m venv --clear .venv
# uv comes out of the same hashed lock as everything else.
sed -n '/^uv==/,/^[^ ]/{/^uv==/p;/^ /p}' requirements.txt >.venv/uv.txt
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
export VIRTUAL_ENV=$PWD/.venv
echo "  2 of 3: downloading and compiling $(grep -c '^[a-z].*==' requirements.txt) packages, TensorFlow among them (the longest step)"
# Compiled bytecode is what makes `import tensorflow` take 3 s rather than 8.
.venv/bin/uv pip sync --quiet --compile-bytecode --require-hashes requirements.txt
echo "  3 of 3: tapelab itself"
.venv/bin/uv pip install --quiet --no-deps --no-build-isolation --editable .
if [ -n "$gpu" ]; then
    .venv/bin/uv pip install --quiet --compile-bytecode --no-build-isolation --constraint requirements.txt --editable '.[gpu]'
fi
# The test of the lock compiles it again. Doing so once here fills uv's cache, so that the test also runs offline.
bash ci/lock.sh --check >/dev/null || true
printf '%s' "$state" >.venv/state
