#!/usr/bin/env bash
# The CPU pipeline: all tests, then every notebook through papermill.
set -euo pipefail
cd "$(dirname "$0")/.."
make ARGS=whole test
make run
