#!/usr/bin/env bash
# Push the notebooks without outputs to the branch that Colab's badges open. It has one commit, made anew each time.
# First all notebooks run with the versions that Colab has: where one fails there, nothing is published.
#
#   ci/colab.sh REMOTE      an address that git can push to
set -euo pipefail
cd "$(dirname "$0")/.."
bash ci/versions.sh colab
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
branch=$(.venv/bin/python -m tapelab colab "$place")
commit=$(git rev-parse HEAD)
git -C "$place" init --quiet --initial-branch "$branch"
git -C "$place" add --all
git -C "$place" -c user.name=tapelab -c user.email=tapelab@users.noreply.github.com \
    commit --quiet --message "Notebooks without outputs, of $commit"
git -C "$place" push --quiet --force "$1" "$branch"
