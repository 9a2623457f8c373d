#!/usr/bin/env bash
# What a warm start saves: an inverter for another encoder, from the shipped one (`--init-from`: its vectors are mapped to those of
# the new encoder in closed form) and without it (the `cpu` preset as it is, which begins with the layers of the MiniLM encoder and
# must first learn to read vectors, 150 steps of 512). The rate is lower where there is
# something to lose; texts, seed and all other settings are the same.
#
#   unembed encode shared/corpus/en -o SET --encoder all-mpnet-base-v2 --limit 16384 --exclude medquad_health_qa --exclude spamassassin_ham_emails
#   bash runs/warmstart.sh SET OUT
#   python tools/warmstart_curve.py OUT/warm OUT/cold --data results/warmstart.json -o docs/images/warmstart.svg
set -euo pipefail
cd "$(dirname "$0")/.."

arm() {
  unembed train "$1" --encoder "${ENCODER:-all-mpnet-base-v2}" -o "$2" --resume "${@:3}" --steps "${STEPS:-140}" --set train.ema=0.97 \
    --set train.warmup_steps=10 --set train.validate_every=20 --set train.validate_texts=256 --set train.preview_texts=96 \
    --set train.save_every=20
}
arm "$1" "$2/warm" --init-from default --set train.bag_steps=0 --set train.lr=0.00008  # 0.0004 costs language (docs/LOG.md)
arm "$1" "$2/cold" --set train.bag_steps="${BAG_STEPS:-150}"
