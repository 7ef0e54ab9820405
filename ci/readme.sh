#!/usr/bin/env bash
# Run the programs of the README and of the page on derivatives with the wheel, beside each Keras that pyproject.toml
# allows: what is said there is tested.
#
#   ci/readme.sh             Keras 3.10 to 3.15
#   ci/readme.sh 3.12        one of them
set -euo pipefail
cd "$(dirname "$0")/.."
make .venv/state
versions=("$@")
[ $# -gt 0 ] || versions=(3.10 3.11 3.12 3.13 3.14 3.15)
place=$PWD/build/readme
rm -rf "$place" && mkdir -p "$place/programs"
.venv/bin/uv build --quiet --wheel --no-build-isolation --python .venv/bin/python --out-dir "$place" .
.venv/bin/python - "$place/programs" <<'END'
import re, sys
from pathlib import Path
text = "".join(Path(page).read_text("utf-8") for page in ("README.md", "site/which_derivative.md"))
for number, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
    Path(sys.argv[1], f"program_{number}.py").write_text(program, "utf-8")
END
export CUDA_VISIBLE_DEVICES=-1

# Each of some versions, one after the other, in one environment; what fails is a line of the file `failed`.
lane() {
    local venv=$place/venv$1 program version
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$venv"
    for version in "${@:2}"; do
        # The wheel with its own requirements: the newest TensorFlow that takes this Keras comes with it.
        if ! .venv/bin/uv pip install --quiet --python "$venv/bin/python" "$place"/*.whl "keras==$version.*"; then
            echo "$version: no installation" >>"$place/failed"
            continue
        fi
        for program in "$place"/programs/*.py; do
            (cd "$place/programs" && "$venv/bin/python" "$program" >/dev/null) ||
                echo "$version: ${program##*/}" >>"$place/failed"
        done
        "$venv/bin/python" -c 'from importlib.metadata import version as of
print("README beside TensorFlow", of("tensorflow"), "and Keras", of("keras"))'
    done
}

# Every other one, in two environments at a time.
mapfile -t even < <(printf '%s\n' "${versions[@]}" | sed -n 'p;n')
mapfile -t odd < <(printf '%s\n' "${versions[@]}" | sed -n 'n;p')
lane 0 "${even[@]}" &
lane 1 "${odd[@]}"
wait $!
[ ! -e "$place/failed" ] || { sed 's/^/failed beside Keras /' "$place/failed" >&2; exit 1; }
