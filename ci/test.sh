#!/usr/bin/env bash
# What `make test` runs: lint, types and unit tests, then the notebooks against their stored outputs. Each part always runs.
#
#   ci/test.sh                 without the tests that are marked thorough or dear, and without the notebooks that take
#                              half of the time, but for those that differ from the branch main: some five minutes
#   ci/test.sh quick           without the tests that are marked thorough
#   ci/test.sh whole           all of it
#   ci/test.sh units           of the unit tests what the first has, and nothing else
#   ci/test.sh learner         of these the learner's, as ci/test_versions.sh: what TensorFlow's kernels may change
#   ci/test.sh notebooks       all notebooks, and nothing else
#
# NBVAL=--nbval-lax runs the notebooks without comparing outputs (for a GPU, where last digits differ).
set -uo pipefail
# Each of the many processes would compile the package and the tests again.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "$0")/.." || exit
python=.venv/bin/python
what=${1:-}
leave=(--quicker)
case $what in
    whole) leave=() ;;
    quick) leave=(--quick) ;;
esac
workers=${WORKERS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}
tests=(tests)
if [ "$what" = learner ]; then
    what=units
    mapfile -t tests < <(grep --files-with-matches '^from tapelab' tests/test_*.py |
        xargs grep --files-without-match '^from tapelab.collection')
fi
failed=()

part() {
    local name=$1
    shift
    "$@" || failed+=("$name")
}

# The long notebooks that are as on main, as pytest's options.
left_out() {
    local changed notebook
    changed=$(git diff --name-only "$(git merge-base HEAD main 2>/dev/null || echo HEAD)" -- notebooks 2>/dev/null)
    for notebook in notebooks/{17,18,20,21,22,23,24,25,27}_*.ipynb; do
        grep --quiet --line-regexp --fixed-strings "$notebook" <<<"$changed" || echo "--ignore=$notebook"
    done
}

if [ "$what" != notebooks ] && [ "$what" != units ]; then
    part lint $python -m ruff check .
    part format $python -m ruff format --check .
    part types $python -m mypy
    part workflows .venv/bin/zizmor --offline --quiet .github/workflows
fi
if [ "$what" != notebooks ]; then
    # One worker more than cores: many tests wait for processes. Work is stolen, so that none ends long after the others.
    part "unit tests" $python -m pytest -p no:nbval "${leave[@]+"${leave[@]}"}" -n "${WORKERS:-$((workers + 1))}" \
        --dist worksteal "${tests[@]}"
fi
if [ "$what" != units ]; then
    ignored=()
    [ -n "$what" ] || mapfile -t ignored < <(left_out)
    part notebooks env PYTHONPATH=ci $python -m pytest -p nbval_rules "${NBVAL:---nbval}" --nbval-current-env \
        -n "$workers" --dist loadscope "${ignored[@]+"${ignored[@]}"}" notebooks
fi
for name in "${failed[@]+"${failed[@]}"}"; do
    echo "make test: the $name failed" >&2
done
[ ${#failed[@]} -eq 0 ]
