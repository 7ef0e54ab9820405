#!/usr/bin/env bash
# What `make test` runs: lint, unit tests, the notebooks against their stored outputs.
# NBVAL=--nbval-lax runs the notebooks without comparing outputs (for a GPU, where last digits differ).
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
workers=${WORKERS:-$(nproc 2>/dev/null || sysctl -n hw.ncpu)}

$python -m ruff check .
$python -m ruff format --check .
.venv/bin/zizmor --offline --quiet .github/workflows
# The slow tests are whole notebooks; the longest first keeps the last worker short.
$python -m pytest -p no:nbval -n "$workers" --dist worksteal tests
PYTHONPATH=ci $python -m pytest -p nbval_rules "${NBVAL:---nbval}" --nbval-current-env -n "$workers" --dist loadscope notebooks
