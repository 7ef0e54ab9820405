#!/usr/bin/env bash
# Run the collection on Colab's versions: an environment of its own in build/colab, each notebook through papermill there.
#
#   ci/colab.sh [NOTEBOOK ...]      all notebooks by default
set -euo pipefail
cd "$(dirname "$0")/.."
make .venv/state
place=$PWD/build/colab
if ! cmp --silent ci/colab.txt "$place/done"; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$place"
    .venv/bin/uv pip install --quiet --compile-bytecode --python "$place/bin/python" -r ci/colab.txt
    "$place/bin/python" -m ipykernel install --prefix "$place" --name colab >/dev/null
    cp ci/colab.txt "$place/done"
fi
# --no-deps: what Colab lacks, the package must do without.
.venv/bin/uv pip install --quiet --no-deps --python "$place/bin/python" .
export JUPYTER_PATH=$place/share/jupyter
.venv/bin/python -m tapelab run --kernel colab --output build/executed-colab "$@"
