"""The real rooms in small: a dataset folder of made-up sentences, and an untrained inverter for its encoder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.measure.doubles import DIM, WORDS, WordCounts, make_tokenizer
from unembed.config import tiny
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors
from unembed.inverter import Inverter
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser


def make_dataset(folder: Path, source: str = "some", seed: int = 0) -> Path:
    """A dataset of about 1,500 different texts of one source."""
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(WORDS[:-4], size=rng.integers(3, 13))) for _ in range(1500)]
    (folder / f"{source}.txt").write_text("\n".join(lines))
    data = folder / f"data-{source}"
    list(write_tokens([folder / f"{source}.txt"], data, make_tokenizer(), max_tokens=16, shard_size=400))
    list(write_vectors(data, WordCounts()))
    return data


def make_inverter(info: dict[str, Any] | None = None) -> Inverter:
    """An inverter whose words depend on the vector, though it never learned anything."""
    torch.manual_seed(0)
    model = dataclasses.replace(
        tiny().model, vocab_size=make_tokenizer().get_vocab_size(), mask_id=2, vector_dim=DIM, max_tokens=16
    )
    net = Denoiser(model)
    net.forbid([0, 1])
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    config, encoder = dataclasses.replace(tiny(), model=model), EncoderInfo("words", DIM, True, "words-1")
    return Inverter(Artifact(net.eval(), make_tokenizer(), config, encoder, info or {}))
