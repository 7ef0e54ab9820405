#!/usr/bin/env bash
# Run the unit tests on every TensorFlow that tapelab supports, each in an environment of its own under build/versions/.
#
#   ci/test_versions.sh                     2.19, 2.20 and 2.21
#   ci/test_versions.sh 2.20 -- -k hooks    one of them, with arguments for pytest
#
# An environment is made once, and again when pyproject.toml has changed. It holds what a learner has, without Jupyter: the
# tests that are run are those of the learner's wing, which are all that import tapelab but not its keeper's wing.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    versions+=("$1")
    shift
done
[ $# -eq 0 ] || shift
[ ${#versions[@]} -gt 0 ] || versions=(2.19 2.20 2.21)

export CUDA_VISIBLE_DEVICES=-1 VIRTUAL_ENV=
mapfile -t tests < <(grep --files-with-matches '^from tapelab' tests/test_*.py |
    xargs grep --files-without-match '^from tapelab.collection')
failed=()
for version in "${versions[@]}"; do
    home=build/versions/$version
    if ! cmp --silent pyproject.toml "$home/pyproject.toml"; then
        .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home"
        # setuptools first: it builds tapelab without the network's help, as in ci/setup.sh.
        .venv/bin/uv pip install --quiet --python "$home/bin/python" 'setuptools>=77'
        .venv/bin/uv pip install --quiet --compile-bytecode --no-build-isolation --python "$home/bin/python" \
            "tensorflow==$version.*" hypothesis pytest pytest-xdist --editable .
        cp pyproject.toml "$home/pyproject.toml"
    fi
    echo "TensorFlow $version"
    "$home/bin/python" -m pytest --quiet -p no:cacheprovider -n "${WORKERS:-auto}" "${tests[@]}" "$@" || failed+=("$version")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed on TensorFlow ${failed[*]}" >&2; exit 1; }
