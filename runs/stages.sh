#!/usr/bin/env bash
# The weights of every stage of the shipped inverter, out of the repository's history: bash runs/stages.sh OUT
# (a clone with its history is needed; tools/learning_curve.py measures them).
set -euo pipefail
cd "$(dirname "$0")/.."
# The first weights in the history were those of another net (without shortcuts), not a stage of these.
for commit in $(git log --reverse --format=%h c998994.. -- unembed/weights/minilm/{model,writer,echo}.safetensors); do
  mkdir -p "$1/$commit"
  git archive "$commit" unembed/weights/minilm | tar x -C "$1/$commit" --strip-components=3
done
