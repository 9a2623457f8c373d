"""Speed of a training step of the `cpu()` net, as ratios measured in one run.

    python benchmarks/train_step.py -o results/train_step.json

Ours: micro-batches sorted by length, logits only at masked positions, sampled softmax, attention written out, the
machine's fast precision, with --compile also one loop for what lies between two products. Naive: the same net, texts
and masks on a fixed canvas of 32, full softmax at all positions, `scaled_dot_product_attention`, float32. Also printed:
the share of our step that its matrix products would take at the rate of a bare GEMM on this machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from unembed.config import cpu
from unembed.model import batches, objective, optim
from unembed.model.denoiser import Block, Denoiser
from unembed.model.objective import Batch, Noise
from unembed.model.rows import Padding
from unembed.precision import autocast, fast_bf16

CANVAS = 32


def random_batch(texts: int, seed: int) -> Batch:
    """Texts with the lengths of the training corpus (mean 21) and random tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(21, 8, texts).round(), 5, CANVAS).astype(int)
    return batches.collate([rng.integers(1000, 30000, n) for n in lengths], rng.normal(size=(texts, 384)))


def our_step(net: Denoiser, batch: Batch, noise: Noise, candidates: objective.Candidates, parts: int) -> None:
    """What the trainer does for one step, up to the gradients."""
    loss = objective.DenoisingLoss(net)
    total = int(batch.lengths.sum())
    for rows in torch.arange(len(batch.tokens)).chunk(parts):
        some = batch.rows(rows)
        with autocast(torch.device("cpu")):
            value = loss(some, noise.rows(rows, some.tokens.shape[1]), candidates, len(batch.tokens), total)
        value.backward()


def naive_step(net: Denoiser, batch: Batch, noise: Noise) -> None:
    """The same mathematics in the plain way."""
    pad = CANVAS - batch.tokens.shape[1]
    tokens, masked, valid = (F.pad(x, (0, pad)) for x in (batch.tokens, noise.masked, batch.valid))
    c = net.condition(batch.vectors)
    hidden = net(tokens.masked_fill(masked, net.config.mask_id), noise.share, c, valid)
    entropy = F.cross_entropy(net.logits(hidden).transpose(1, 2), tokens.clamp(min=1000), reduction="none")
    loss = (noise.weight[:, None] * entropy * masked).sum() / int(batch.lengths.sum())
    loss = loss + objective.LENGTH_WEIGHT * F.cross_entropy(net.length_logits(c), batch.lengths)
    loss.backward()


def fused_attention(block: Block, x: Tensor, rows: Padding) -> Tensor:
    """The block's attention (without its output layer) through scaled_dot_product_attention."""
    n, length, width = x.shape
    q, k, v = block.qkv(x).view(n, length, 3, block.heads, width // block.heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=rows.valid[:, None, None])
    return mixed.transpose(1, 2).reshape(n, length, width)


def seconds(step: Callable[[], None], net: Denoiser, repeats: int) -> float:
    """Best time of a step with its optimizer update."""
    optimizers = optim.build(net, cpu().train)
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        start = time.perf_counter()
        step()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def gemm_rate() -> float:
    """FLOP per second of a bare product with the shape of the net's MLP."""
    kind = torch.bfloat16 if fast_bf16(torch.device("cpu")) else torch.float32
    a, b = torch.randn(2048, 384).to(kind), torch.randn(1536, 384).to(kind)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        F.linear(a, b)
        times.append(time.perf_counter() - start)
    return 2 * 2048 * 384 * 1536 / float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--texts", type=int, default=cpu().train.batch_texts)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="our step with train.compile")
    parser.add_argument("--goal", type=float, default=2.0, help="exit with 1 below this ratio")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = cpu()
    net = Denoiser(replace(config.model, init="random"))
    for block in net.blocks:
        block.compiled = args.compile
    batch = random_batch(args.texts, 0)
    rng = objective.generator(0)
    noise = objective.draw_noise(batch, config.diffusion, rng)
    candidates = objective.CandidateSampler(np.ones(30522), config.train.sampled_softmax)
    drawn = candidates.draw(batch.tokens[noise.masked], rng)

    ours = seconds(lambda: our_step(net, batch, noise, drawn, config.train.accumulate), net, args.repeats)
    with FlopCounterMode(display=False) as counter:
        our_step(net, batch, noise, drawn, config.train.accumulate)
    net.zero_grad()
    for block in net.blocks:
        block.compiled = False
    with patch.object(Block, "_mix", fused_attention):
        naive = seconds(lambda: naive_step(net, batch, noise), net, args.repeats)
    rate = gemm_rate()
    result = {
        "texts": args.texts,
        "compiled": args.compile,
        "ours_texts_per_second": args.texts / ours,
        "naive_texts_per_second": args.texts / naive,
        "ratio": naive / ours,
        "gemm_gflops": rate / 1e9,
        "step_gflops": counter.get_total_flops() / ours / 1e9,
        "share_at_gemm_rate": counter.get_total_flops() / rate / ours,
        "precision": "bf16" if fast_bf16(torch.device("cpu")) else "fp32",
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(result, indent=2))
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=2) + "\n")
    if result["ratio"] < args.goal:
        sys.exit(f"the step is {result['ratio']:.2f} times as fast as the naive one, the goal is {args.goal}")


if __name__ == "__main__":
    main()
