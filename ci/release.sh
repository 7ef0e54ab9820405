#!/usr/bin/env bash
# Build what a release publishes into dist/, and check it.
#
#   ci/release.sh           wheel and source distribution
#   ci/release.sh v1.2.3    only if the package's version is that of the tag, and the changelog has it
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
if [ $# -gt 0 ]; then
    [ "$1" = "v$version" ] || { echo "the tag is $1, and pyproject.toml has version $version" >&2; exit 1; }
    grep -q "^## $version" CHANGELOG.md || { echo "CHANGELOG.md has no entry for $version" >&2; exit 1; }
fi
make --no-print-directory .venv/state
rm -rf dist
.venv/bin/python -m build --no-isolation --outdir dist .
.venv/bin/python -m twine check --strict dist/*
