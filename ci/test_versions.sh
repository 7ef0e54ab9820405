#!/usr/bin/env bash
# Run the learner's unit tests where learners are: on each TensorFlow and Python that tapelab supports, with oneDNN on and
# off. Each combination has an environment of its own under build/versions/.
#
#   ci/test_versions.sh                        TensorFlow 2.19, 2.20 and 2.21
#   ci/test_versions.sh 2.20 -- -k hooks       one of them, with arguments for pytest
#   ci/test_versions.sh --python 3.13 2.21     another Python; uv finds it, or a path to one
#   ci/test_versions.sh --onednn 1 2.21        TensorFlow's kernels from oneDNN: 1 on, 0 off; otherwise TensorFlow decides
#
# An environment is made once, and again when pyproject.toml has changed. It holds what a learner has, without Jupyter: the
# tests that are run are those of the learner's wing, which are all that import tapelab but not its keeper's wing.
# Where no version is named, as before a release, explanations of random programs are tried in full (TAPELAB_RELEASE=1).
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --python) python=$2 && shift ;;
        --onednn) export TF_ENABLE_ONEDNN_OPTS=$2 && shift ;;
        *) versions+=("$1") ;;
    esac
    shift
done
[ $# -eq 0 ] || shift
if [ ${#versions[@]} -eq 0 ]; then
    versions=(2.19 2.20 2.21)
    export TAPELAB_RELEASE=1
fi

export CUDA_VISIBLE_DEVICES=-1 VIRTUAL_ENV=
mapfile -t tests < <(grep --files-with-matches '^from tapelab' tests/test_*.py |
    xargs grep --files-without-match '^from tapelab.collection')
failed=()
for version in "${versions[@]}"; do
    name=$version
    [ "$python" = .venv/bin/python ] || name=$version-${python//\//_}
    home=build/versions/$name
    if ! cmp --silent pyproject.toml "$home/pyproject.toml"; then
        .venv/bin/uv venv --quiet --clear --python "$python" "$home"
        # setuptools first: it builds tapelab without the network's help, as in ci/setup.sh.
        .venv/bin/uv pip install --quiet --python "$home/bin/python" 'setuptools>=77'
        .venv/bin/uv pip install --quiet --compile-bytecode --no-build-isolation --python "$home/bin/python" \
            "tensorflow==$version.*" hypothesis pytest pytest-xdist cloudpickle tqdm --editable .
        cp pyproject.toml "$home/pyproject.toml"
    fi
    echo "TensorFlow $version, $("$home/bin/python" --version), oneDNN ${TF_ENABLE_ONEDNN_OPTS:-as TensorFlow decides}"
    "$home/bin/python" -m pytest --quiet -p no:cacheprovider -n "${WORKERS:-auto}" "${tests[@]}" "$@" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed on TensorFlow ${failed[*]}" >&2; exit 1; }
