#!/usr/bin/env bash
# The shipped inverter for all-MiniLM-L6-v2, in stages: each goes on from the weights that the last one left in the repository.
#
#   bash runs/minilm.sh first CORPUS OUT      conditioner, then the denoiser, from the encoder's own layers
#   bash runs/minilm.sh reader CORPUS OUT     a reader for weights that have none, on top of unembed/weights/minilm; then `next OUT/reader`
#   bash runs/minilm.sh next  CORPUS OUT      another stage on top of unembed/weights/minilm; vectors are made while it trains
#   bash runs/minilm.sh fast  CORPUS OUT      the same on a CPU with AMX: bf16, compiled, large batches, two processes of one thread
#   bash runs/minilm.sh surrogate CORPUS OUT  the surrogate for encoder feedback, beside unembed/weights/minilm, which stays as it is; 150,000 texts are enough
#   bash runs/minilm.sh writer CORPUS OUT     the writer, beside unembed/weights/minilm and its surrogate, or another stage of it; vectors as in `next`;
#                                             a share GUESSES of the texts as corrections; another SEED takes other texts first; LR and MUON_LR are the rates;
#                                             GROW new blocks; PROCESSES=2 is faster on a CPU with AMX; FROM another folder (a stage in two parts, see docs/LOG.md)
#   bash runs/minilm.sh echo  CORPUS OUT      the echo, which judges what the writer has written, beside unembed/weights/minilm; vectors as in `next`
#   bash runs/minilm.sh ship  OUT [RESULTS]   put the result in place (bf16, at most 64 MB a file), with scores in its card
#
# CORPUS is a dataset of `unembed encode`; two sources are held out of it entirely, for out-of-domain numbers:
#   unembed encode shared/corpus/en -o CORPUS --exclude medquad_health_qa --exclude spamassassin_ham_emails --limit 1000000
# For `next` and `fast` tokens are enough (`--stage tokens`), and the more the better: texts that were seen before teach little.
# STEPS sets the length of a stage (`next`: 512 texts a step, `fast`: 768). Run it again after an interruption.
# Why these settings: docs/LOG.md.
set -euo pipefail
cd "$(dirname "$0")/.."

PROCESSES="${PROCESSES:-1}"

no_page_faults() {  # memory that was freed is kept, in huge pages
  export MALLOC_ARENA_MAX=1 MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=100000000000 MALLOC_TOP_PAD_=268435456
  export GLIBC_TUNABLES=glibc.malloc.hugetlb=1
}

train() {  # in PROCESSES processes of one thread each, or as one; two compute a third more than one of two threads
  if [ "$PROCESSES" = 1 ]; then
    unembed train "$@"
    return
  fi
  export OMP_NUM_THREADS=1 WORLD_SIZE=$PROCESSES MASTER_ADDR=127.0.0.1 MASTER_PORT="${MASTER_PORT:-29511}"
  # Not torchrun: its fault handler would take the place of that of tools/amx_cpuid.c. Where that library is needed (its
  # first lines tell), name it in AMX_CPUID: preloaded to this script it would reach bash only.
  [ -z "${AMX_CPUID:-}" ] || export ONEDNN_MAX_CPU_ISA=AVX512_CORE_AMX
  for ((RANK = PROCESSES - 1; RANK >= 0; RANK--)); do
    LD_PRELOAD="${AMX_CPUID:-}" RANK=$RANK LOCAL_RANK=$RANK unembed train "$@" &
  done
  wait
}

case "${1:-}" in
  first)
    unembed train "$2" -o "$3/conditioner" --resume --steps 1 --set train.bag_steps="${BAG_STEPS:-500}" --set train.warmup_steps=20
    unembed train "$2" -o "$3/run" --resume --init-from "$3/conditioner" --steps "${STEPS:-1000}" --set train.bag_steps=0 \
      --set train.validate_every=250 --set train.validate_texts=512 --set train.preview_texts=64 --set train.ema=0.995 \
      --set train.save_every=50 ;;
  next)  # 45 texts a second on two AVX2 cores, encoding included: an hour and a half (docs/LOG.md, tenth session)
    no_page_faults
    unembed train "$2" --online --encoder minilm -o "$3/run" --resume \
      --init-from unembed/weights/minilm --steps "${STEPS:-440}" --set train.bag_steps=0 --set train.compile=true \
      --set train.batch_texts=512 --set train.accumulate=4 --set train.optimizer=muon --set train.lr=0.0003 --set train.muon_lr=0.001 \
      --set train.warmup_steps=20 --set train.decay_share=0.85 --set train.ema=0.99 --set diffusion.weighting=root \
      --set train.validate_texts=512 --set train.validate_every=175 --set train.save_every=40 ;;
  fast)  # 80 to 165 texts a second with AMX (docs/LOG.md, seventh and twelfth session)
    no_page_faults
    PROCESSES=2
    train "$2" --online --encoder minilm -o "$3/run" --resume --init-from unembed/weights/minilm --steps "${STEPS:-600}" \
      --set train.bag_steps=0 --set train.compile=true --set train.batch_texts=768 --set train.accumulate=3 --set train.optimizer=muon \
      --set train.lr=0.0003 --set train.muon_lr=0.001 --set train.warmup_steps=30 --set train.decay_share=0.8 --set train.ema=0.99 \
      --set diffusion.weighting=root --set train.validate_texts=512 --set train.validate_every=200 --set train.save_every=100 ;;
  reader)
    unembed train "$2" -o "$3/reader" --resume --init-from unembed/weights/minilm --steps 1 --set train.bag_steps="${BAG_STEPS:-880}" \
      --set train.bag_trains=reader --set train.bag_lr=0.001 --set train.warmup_steps=20 --set train.decay_share=0.4 \
      --set train.lr=0.00001 --set train.batch_texts=32 --set train.validate_texts=1000 --set train.preview_texts=256 ;;
  surrogate)
    unembed train "$2" -o "$3/run" --resume --surrogate-of unembed/weights/minilm --steps "${STEPS:-1200}" --set train.lr=0.003 \
      --set train.batch_texts=256 --set train.accumulate=1 --set train.warmup_steps=30 --set train.decay_share=0.5 \
      --set train.weight_decay=0 --set train.ema=0.98 --set train.validate_texts=1000 --set train.validate_every=400 ;;
  echo)  # 200 texts a second on two Zen 5 cores, encoding included: 20 minutes (docs/LOG.md, eighteenth session)
    no_page_faults
    unembed train "$2" --online --encoder minilm -o "$3/run" --resume --echo-of unembed/weights/minilm --steps "${STEPS:-1000}" \
      --set train.batch_texts=256 --set train.accumulate=2 --set train.optimizer=muon --set train.lr=0.0003 --set train.muon_lr=0.0005 \
      --set train.warmup_steps=10 --set train.decay_share=0.7 --set train.weight_decay=0 --set train.ema=0.98 \
      --set train.validate_texts=1000 --set train.validate_every=200 --set train.save_every=100 ;;
  writer)  # on two Zen 5 cores (AVX-512 with bf16), encoding included: 175 texts a second without guesses, 115 to 130 with
    no_page_faults
    train "$2" --online --encoder minilm -o "$3/run" --resume --writer-of "${FROM:-unembed/weights/minilm}" --steps "${STEPS:-1500}" \
      --set train.compile=true --set train.batch_texts="${TEXTS:-512}" --set train.accumulate=4 --set train.optimizer=muon \
      --set train.lr="${LR:-0.0005}" --set train.muon_lr="${MUON_LR:-0.0015}" --set train.warmup_steps="${WARMUP:-30}" \
      --set train.decay="${DECAY:-wsd}" --set train.decay_share="${DECAY_SHARE:-0.8}" --set train.ema=0.99 --set train.sampled_softmax=3072 \
      --set train.validate_texts=512 --set train.validate_every=150 --set train.save_every=50 \
      --set train.guesses="${GUESSES:-0.5}" --set train.grow="${GROW:-0}" --set train.seed="${SEED:-0}" ;;
  ship)
    python tools/ship.py "$2/run" "${@:3}" ;;
  *) sed -n '2,20p' "$0" >&2; exit 2 ;;
esac
