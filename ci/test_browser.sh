#!/usr/bin/env bash
# Test the site and JupyterLab in a real browser: the system's Chromium, or the one that CHROMIUM names.
#
#   ci/test_browser.sh                  the site whole; in JupyterLab some notebooks
#   ci/test_browser.sh --every          in JupyterLab all of them (some seconds each, and more)
#   ci/test_browser.sh -k keyboard      with arguments for pytest
set -euo pipefail
cd "$(dirname "$0")/.."
home=build/browser-venv
if ! cmp --silent tests/browser/requirements.txt "$home/requirements.txt"; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home"
    .venv/bin/uv pip install --quiet --python "$home/bin/python" --requirement tests/browser/requirements.txt
    cp tests/browser/requirements.txt "$home/requirements.txt"
fi
exec "$home/bin/python" -m pytest -p no:cacheprovider tests/browser "$@"
