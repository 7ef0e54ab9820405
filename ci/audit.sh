#!/usr/bin/env bash
# Ask the advisory database about every version in the lock. It needs the network, so it is no part of `make test`.
set -euo pipefail
cd "$(dirname "$0")/.."
"${PYTHON:-python3}" -m venv --clear build/audit
build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1
build/audit/bin/pip-audit --require-hashes --disable-pip --requirement requirements.txt
