#!/usr/bin/env bash
# Compile the lock from pyproject.toml.
#
#   ci/lock.sh              write requirements.txt, keeping the versions it has
#   ci/lock.sh --upgrade    write it with the newest versions
#   ci/lock.sh --check      write nothing; exit 1 and show the difference if it would change
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --extra lab --extra dask --extra site --extra test pyproject.toml "$@"
}

if [ "${1:-}" = --check ]; then
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    cp requirements.txt "$fresh/requirements.txt"
    # Without a network the answers that uv has cached serve as well.
    compile --output-file "$fresh/requirements.txt" >/dev/null 2>"$fresh/error" ||
        compile --offline --output-file "$fresh/requirements.txt" >/dev/null 2>>"$fresh/error" ||
        { cat "$fresh/error" >&2; exit 2; }
    diff -u requirements.txt "$fresh/requirements.txt" ||
        { echo "requirements.txt is not what pyproject.toml compiles to: run 'make lock'" >&2; exit 1; }
else
    compile --output-file requirements.txt "$@" >/dev/null
fi
