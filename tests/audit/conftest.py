"""Real vectors of sentences of our own with planted personal data; every model is loaded once."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from unembed.audit import leak, stages
from unembed.audit.calibration import Calibration, fit
from unembed.config import Config, ModelConfig
from unembed.data import encoders
from unembed.decode import DecodeConfig
from unembed.inverter import Inverter
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser

EMAIL, PHONE, IBAN = "anna.meyer@example.com", "212-555-0147", "DE89370400440532013000"
PLANTED = {"EMAIL": EMAIL, "PHONE": PHONE, "IBAN": IBAN}
TEXTS = [
    f"Please write to {EMAIL} about the contract.",
    f"Her number is {PHONE}, call before noon.",
    f"The salary goes to IBAN {IBAN} every month.",
    "The patient was treated for a heart attack last year.",
    "We lost the second half of the match because of the rain.",
    "The train to the coast leaves at nine in the morning.",
    "She asked her lawyer to end the contract.",
    "Our garden is full of red roses this summer.",
    "The minister resigned after the vote on the budget.",
    "He forgot the password of the old server again.",
    "The children walked home from school through the snow.",
    "Add two eggs and a cup of flour, then stir.",
]
# Real texts (the first is shortened): half from books of the kind that the weights were trained on, half from the Zen
# of Python, this project's licence and the RFCs, which they were not.
REAL = [
    "It is a truth universally acknowledged, that a single man of good fortune must be in want of a wife.",
    "Call me Ishmael.",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.",
    "Happy families are all alike; every unhappy family is unhappy in its own way.",
    "To Sherlock Holmes she is always the woman.",
    "Marley was dead: to begin with.",
    "Errors should never pass silently. Unless explicitly silenced.",
    "If the implementation is hard to explain, it's a bad idea.",
    "Each Contributor hereby grants to You a perpetual, worldwide, non-exclusive copyright license.",
    "You may add Your own copyright statement to Your modifications.",
    "Be conservative in what you do, be liberal in what you accept from others.",
    "The key words must, must not and should in this document are to be interpreted as described here.",
]


# Every model is real, and loaded only once for all tests of a worker.
load_inverter, load_encoder = cache(unembed.load), cache(encoders.load)
build_topics = cache(stages.TopicModel.build)


@pytest.fixture(scope="session")
def encoder():
    return load_encoder("minilm")


@pytest.fixture(scope="session")
def inverter():
    return load_inverter(None)


@pytest.fixture(scope="session")
def vectors(encoder) -> np.ndarray:
    return encoder.encode(TEXTS)


def small_inverter(folder: Path, spec: str | None = None, dim: int = 24) -> str:
    """Write an inverter with random weights, fast and without knowledge; by default for MiniLM, else of own vectors."""
    shipped = load_inverter(None)
    known = shipped.artifact.config.model
    model = ModelConfig(
        vocab_size=known.vocab_size, mask_id=known.mask_id, vector_dim=dim if spec else shipped.dim, max_tokens=12,
        layers=1, width=16, heads=2, ffn=16, freeze_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    info = EncoderInfo(spec, dim, True, "") if spec else shipped.encoder
    config = dataclasses.replace(Config(), model=model)
    Inverter(Artifact(Denoiser(model), shipped.artifact.tokenizer, config, info)).save_pretrained(folder)
    return str(folder)


def made_up_calibration() -> Calibration:
    """Of no weights: what the tests say must not wait for the shipped one, which is made anew when weights change."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((200, leak.ALONE + 2))
    truth = np.clip(0.4 + 0.1 * table[:, 0] + 0.05 * rng.standard_normal(200), 0, 1)
    alone, with_encoder = fit(table[:, : leak.ALONE], truth, 0), fit(table, truth, 0)
    return Calibration(
        weights="none", decode=dataclasses.asdict(DecodeConfig("writer")), alone=alone, with_encoder=with_encoder,
        n=200, seed=0, split="validation", dataset="", sources={}, command="", date="",
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> str:
    return small_inverter(tmp_path_factory.mktemp("inverter") / "tiny")


@pytest.fixture(scope="session")
def mine(tmp_path_factory) -> str:
    """Of an encoder that nobody has, as one trained on pairs would be: nothing is embedded again."""
    return small_inverter(tmp_path_factory.mktemp("inverter") / "mine", "mine")


@pytest.fixture(scope="module")
def warm():
    """Audits take the models that are loaded already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unembed, "load", load_inverter)
        patch.setattr(encoders, "load", load_encoder)
        patch.setattr(stages.TopicModel, "build", build_topics)
        yield


def without_times(folder) -> dict:
    summary = json.loads((folder / "audit.json").read_text())
    return {key: value for key, value in summary.items() if key not in ("times", "command")}
