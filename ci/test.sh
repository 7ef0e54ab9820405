#!/usr/bin/env bash
# What `make test` runs: lint, types and unit tests, then the notebooks against their stored outputs. Both halves always run.
#
#   ci/test.sh                 both halves, without the tests that are marked thorough or dear
#   ci/test.sh quick           both halves, without those that are marked thorough
#   ci/test.sh whole           both halves, all tests
#   ci/test.sh units           the unit tests alone, without those that are marked thorough or dear
#   ci/test.sh notebooks       the notebooks alone
#
# NBVAL=--nbval-lax runs the notebooks without comparing outputs (for a GPU, where last digits differ).
set -uo pipefail
# Each of the many processes would compile the package and the tests again.
unset PYTHONDONTWRITEBYTECODE
cd "$(dirname "$0")/.." || exit
python=.venv/bin/python
case ${1:-} in
    whole) leave= ;;
    quick) leave=--quick ;;
    *) leave=--quicker ;;
esac
workers=${WORKERS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}
failed=()

part() {
    local name=$1
    shift
    "$@" || failed+=("$name")
}

if [ "${1:-}" != notebooks ] && [ "${1:-}" != units ]; then
    part lint $python -m ruff check .
    part format $python -m ruff format --check .
    part types $python -m mypy
    part workflows .venv/bin/zizmor --offline --quiet .github/workflows
fi
if [ "${1:-}" != notebooks ]; then
    # One worker more than cores: many tests wait for processes. Work is stolen, so that none ends long after the others.
    part "unit tests" $python -m pytest -p no:nbval $leave -n "${WORKERS:-$((workers + 1))}" --dist worksteal tests
fi
if [ "${1:-}" != units ]; then
    part notebooks env PYTHONPATH=ci $python -m pytest -p nbval_rules "${NBVAL:---nbval}" --nbval-current-env \
        -n "$workers" --dist loadscope notebooks
fi
for name in "${failed[@]+"${failed[@]}"}"; do
    echo "make test: the $name failed" >&2
done
[ ${#failed[@]} -eq 0 ]
