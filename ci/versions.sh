#!/usr/bin/env bash
# Run the collection on other versions, in an environment of its own under build/.
#
#   ci/versions.sh colab [NOTEBOOK ...]     what Colab has (ci/colab.txt)
#   ci/versions.sh oldest [NOTEBOOK ...]    the oldest TensorFlow that is supported (ci/oldest.txt)
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
make .venv/state
place=$PWD/build/$name
if ! cmp --silent "ci/$name.txt" "$place/done"; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$place"
    .venv/bin/uv pip install --quiet --compile-bytecode --python "$place/bin/python" -r "ci/$name.txt"
    "$place/bin/python" -m ipykernel install --prefix "$place" --name "tapelab-$name" >/dev/null
    cp "ci/$name.txt" "$place/done"
fi
# --no-deps: what is not listed there, the package must do without.
.venv/bin/uv pip install --quiet --no-deps --reinstall --python "$place/bin/python" .
export JUPYTER_PATH=$place/share/jupyter
.venv/bin/python -m tapelab run --kernel "tapelab-$name" --output "build/executed-$name" "$@"
