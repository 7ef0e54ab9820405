#!/usr/bin/env bash
# Test the site and JupyterLab in a real browser, side by side: the system's Chromium, or the one that CHROMIUM names.
#
#   ci/test_browser.sh                  the site whole; in JupyterLab some notebooks
#   ci/test_browser.sh --every          in JupyterLab all of them (some seconds each, and more)
#   ci/test_browser.sh -k keyboard      with arguments for pytest
set -euo pipefail
cd "$(dirname "$0")/.."
names=("${CHROMIUM:-chromium}")
[ -n "${CHROMIUM:-}" ] || names+=(chromium-browser google-chrome)
if ! found=$(command -v "${names[@]}"); then
    echo "make test-browser needs Chromium, and there is no ${names[*]}." \
        "On Debian: apt-get install chromium. Or name one: make CHROMIUM=/path/to/chromium test-browser" >&2
    exit 1
fi
CHROMIUM=${found%%$'\n'*}
export CHROMIUM
home=build/browser-venv
if ! cmp --silent tests/browser/requirements.txt "$home/requirements.txt"; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$home"
    .venv/bin/uv pip install --quiet --python "$home/bin/python" --requirement tests/browser/requirements.txt
    cp tests/browser/requirements.txt "$home/requirements.txt"
fi
# Each file's tests stay in one process, which builds its site or starts its JupyterLab once. (xdist 3.8 overlooks the
# groups of `--dist loadgroup` with pytest 9.2: both processes made everything.)
exec "$home/bin/python" -m pytest -p no:cacheprovider -n 2 --dist loadfile tests/browser "$@"
