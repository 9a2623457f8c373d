#!/usr/bin/env bash
# The whole pipeline on two CPU cores: text -> vectors -> inverter -> results.
#
#   bash runs/cpu.sh TEXT... [-- more settings for `unembed train`]
#   bash runs/cpu.sh corpus/*.txt.xz -- --steps 2000
#
# Everything lands in out/cpu. Run it again after an interruption: each step goes on where it stopped.
# Times are for two AVX-512 cores with bf16; a core without bf16 takes about three times as long.
set -euo pipefail

sources=()
while [ $# -gt 0 ] && [ "$1" != "--" ]; do sources+=("$1"); shift; done
[ $# -gt 0 ] && shift
[ ${#sources[@]} -gt 0 ] || { echo "usage: bash runs/cpu.sh TEXT... [-- train settings]" >&2; exit 2; }

OUT=${OUT:-out/cpu}
mkdir -p "$OUT"

# 1. Text to windows of at most 32 tokens, then to vectors: about 550 texts a second, so 20 minutes for 640,000.
unembed encode "${sources[@]}" -o "$OUT/corpus" --encoder minilm --limit "${LIMIT:-640000}"

# 2. Train: first the conditioner (minutes), then the denoiser. The last checkpoint is used if there is one.
unembed train "$OUT/corpus" -o "$OUT/run" --preset "${PRESET:-cpu}" --resume "$@"

# 3. Measure on texts that no training step has seen: every strategy and the baselines, 95 % intervals.
unembed evaluate "$OUT/run" "$OUT/corpus" -o "$OUT/results.json" --split test --strategies all -n "${N:-300}"

# 4. Look at it.
unembed invert "The parcel will arrive on Tuesday morning." --inverter "$OUT/run"
