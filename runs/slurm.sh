#!/usr/bin/env bash
# The paper's setting on a Slurm cluster: vectors by an array of jobs, training on one node, then the measurement.
#
#   bash runs/slurm.sh              submits the three jobs, each waiting for the one before
#   PARTS=64 GPUS=8 bash runs/slurm.sh
#
# Every job can be killed and started again (preemption, time limits): finished shards are kept, training resumes.
set -euo pipefail

ENCODER=${ENCODER:-qwen3-embedding-0.6b}
OUT=${OUT:-out/paper}
PARTS=${PARTS:-16}     # encoding jobs; part i of n encodes every n-th shard
GPUS=${GPUS:-8}        # GPUs of the training node
TIME=${TIME:-12:00:00}
mkdir -p "$OUT/logs"

submit() { sbatch --parsable --requeue --output "$OUT/logs/%x-%A_%a.log" "$@"; }

# 1. Tokens: one job without a GPU.
tokens=$(submit --job-name tokens --cpus-per-task 16 --time "$TIME" --wrap \
  "unembed encode hf:allenai/c4?config=en -o $OUT/corpus --stage tokens --limit 2000000")

# 2. Vectors: PARTS jobs, one GPU each. No job waits for another; each owns its shards.
vectors=$(submit --job-name vectors --dependency "afterok:$tokens" --array "1-$PARTS" --gpus 1 --time "$TIME" --wrap \
  "unembed encode -o $OUT/corpus --stage vectors --encoder $ENCODER --part \$SLURM_ARRAY_TASK_ID/$PARTS")

# 3. Training: one node, all its GPUs. --resume makes the requeued job go on at the last checkpoint.
train=$(submit --job-name train --dependency "afterok:$vectors" --nodes 1 --gpus "$GPUS" --time "$TIME" --wrap \
  "torchrun --standalone --nproc-per-node $GPUS -m unembed train $OUT/corpus -o $OUT/$ENCODER --preset paper --encoder $ENCODER --resume")

# 4. Measurement.
submit --job-name evaluate --dependency "afterok:$train" --gpus 1 --time 02:00:00 --wrap \
  "unembed evaluate $OUT/$ENCODER $OUT/corpus -o $OUT/$ENCODER/results.json --split test -n 1000"
echo "submitted; logs in $OUT/logs"
