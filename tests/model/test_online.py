"""Training on vectors that are made as it goes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from tests.model.conftest import BagEncoder
from tests.processes import Process
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.data.online import OnlineDataset
from unembed.data.text import decode
from unembed.data.windows import split_of, text_hash
from unembed.model import batches
from unembed.model.trainer import fit_to_data, train


def texts_of(data: Dataset, batch: batches.objective.Batch) -> list[str]:
    rows = [row[:n].tolist() for row, n in zip(batch.tokens, batch.lengths.tolist(), strict=True)]
    return decode(data.tokenizer, rows)


def test_the_first_epoch_trains_to_the_same_weights_as_shards(data: Dataset, tmp_path: Path) -> None:
    weights = []
    for kind, source in (("shards", data), ("online", OnlineDataset(data.folder, BagEncoder()))):
        config = fit_to_data(override(tiny(), ["train.steps=4", "train.bag_steps=2"]), source)
        weights.append(load_file(train(config, source, tmp_path / kind) / "model.safetensors"))
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_later_epochs_are_cut_anew_and_embedded_as_what_they_are(data: Dataset) -> None:
    online = OnlineDataset(data.folder, BagEncoder())
    known = {text for batch, _ in islice(batches.stream(online, 64, 0, batches.Cursor()), 19)
             for text in texts_of(online, batch)}  # fmt: skip
    seen = []
    for epoch in (1, 2):
        batch, _ = next(batches.stream(online, 64, 0, batches.Cursor(epoch)))
        texts = texts_of(online, batch)
        assert np.allclose(batch.vectors, BagEncoder().encode(texts), atol=1e-3)
        assert all(split_of(text_hash(text)) == "train" for text in texts)
        assert min(batch.lengths.tolist()) >= 3
        seen.append(set(texts))
    assert len(seen[0] - known) > 10
    assert seen[0] != seen[1]
    again, _ = next(batches.stream(online, 64, 0, batches.Cursor(1)))
    assert set(texts_of(online, again)) == seen[0]


def test_only_the_texts_asked_for_are_encoded(data: Dataset) -> None:
    encoder = BagEncoder()
    asked: list[str] = []
    encode = encoder.encode
    encoder.encode = lambda texts: asked.extend(texts) or encode(texts)  # type: ignore[method-assign,func-returns-value]
    online = OnlineDataset(data.folder, encoder)
    next(batches.stream(online, 64, 0, batches.Cursor()))
    assert len(asked) == 64
    sample = online.sample("validation", 5, 0)
    assert sorted(asked[64:]) == sorted(sample.texts)
    assert sample.texts == data.sample("validation", 5, 0).texts


def test_the_fingerprint_is_that_of_tokens_and_encoder(data: Dataset) -> None:
    other = BagEncoder()
    other.fingerprint = "bag-2"
    prints = {OnlineDataset(data.folder, e).fingerprint for e in (BagEncoder(), BagEncoder(), other)}
    assert len(prints) == 2
    assert data.fingerprint not in prints


def encode_a_share(folder: str, rank: int, meeting_point: str, count: int) -> None:
    """One of two processes that train together: all vectors, of which it encoded only some."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
    encoder = BagEncoder()
    asked: list[str] = []
    encode = encoder.encode
    encoder.encode = lambda texts: asked.extend(texts) or encode(texts)  # type: ignore[method-assign,func-returns-value]
    online = OnlineDataset(folder, encoder)
    batch, _ = next(batches.stream(online, count, 0, batches.Cursor()))
    assert np.array_equal(batch.vectors, encode(texts_of(online, batch)).astype(np.float16).astype(np.float32))
    assert len(asked) in (count // 2, count - count // 2)
    torch.distributed.destroy_process_group()


def test_processes_that_train_together_encode_a_share_each(data: Dataset, tmp_path: Path) -> None:
    for count in (33, 1):  # and one of them may have nothing to do
        together = [
            Process(encode_a_share, str(data.folder), rank, str(tmp_path / f"{count}"), count) for rank in (0, 1)
        ]
        for process in together:
            done = process.wait()
            assert done.returncode == 0, done.stderr
