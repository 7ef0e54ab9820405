#!/usr/bin/env bash
# The GPU pipeline. It first asserts that TensorFlow sees a GPU; then the notebooks run without a comparison of outputs,
# since last digits differ between devices: the assertions inside the cells carry the weight.
set -euo pipefail
cd "$(dirname "$0")/.."
export GPU=1
make .venv/state
.venv/bin/python ci/require_gpu.py
# One notebook at a time: they share the GPU's memory.
NBVAL=--nbval-lax WORKERS=1 make ARGS=quick test
