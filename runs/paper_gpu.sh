#!/usr/bin/env bash
# The paper's setting on a GPU machine: 2M windows of C4, an 8 x 768 denoiser, 200K steps of batch 400.
#
#   bash runs/paper_gpu.sh                                   one GPU; the paper reports 48 hours on an A100
#   GPUS=8 bash runs/paper_gpu.sh                            the same run on eight, same global batch
#   UNEMBED_TRUST_REMOTE_CODE=1 ENCODER=jina-embeddings-v3 bash runs/paper_gpu.sh        another encoder (vectors are made anew, tokens are kept)
#   LANGS=languages=paper bash runs/paper_gpu.sh             the paper's ten languages, in equal parts
#   TOKENIZER=gpt2/tokenizer.json bash runs/paper_gpu.sh     another tokenizer for the inverter
#
# Needs: pip install 'unembed[encoders,hf]', and the hub for C4 and the encoder.
set -euo pipefail

ENCODER=${ENCODER:-qwen3-embedding-0.6b}
OUT=${OUT:-out/paper}
GPUS=${GPUS:-1}

# 1. Tokens, once. C4 is streamed: nothing is downloaded that is not used.
unembed encode "hf:allenai/c4?${LANGS:-config=en}" -o "$OUT/corpus" --stage tokens --limit 2000000 \
  ${TOKENIZER:+--tokenizer "$TOKENIZER"}

# 2. Vectors, once for each encoder.
unembed encode -o "$OUT/corpus" --stage vectors --encoder "$ENCODER"

# 3. Train. torchrun starts one process for each GPU; the batch of 400 is shared out between them.
torchrun --standalone --nproc-per-node "$GPUS" -m unembed train "$OUT/corpus" -o "$OUT/$ENCODER" \
  --preset paper --encoder "$ENCODER" --resume

# 4. Measure, with the four strategies of the paper and its baselines.
unembed evaluate "$OUT/$ENCODER" "$OUT/corpus" -o "$OUT/$ENCODER/results.json" --split test -n 1000 \
  --strategies sequential,euler,remask,two-stage
