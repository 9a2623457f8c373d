"""The shipped weights: they load offline, are small enough, and give back more of a text than chance does."""

import numpy as np
import torch

import unembed
from unembed.measure.metrics import cosine, token_f1

TEXTS = [
    "The parcel will arrive on Tuesday morning.",
    "The patient was treated for a heart attack last year.",
    "How do I install the latest version of Python?",
    "The company announced record profits on Wednesday.",
    "She opened the window and looked at the sea.",
    "Tom doesn't want to learn French.",
    "The algorithm finds the shortest path in a graph.",
    "What is the capital of Australia?",
]


def test_they_recover_words_and_meaning() -> None:
    inverter, encoder = unembed.load(), unembed.encoder("minilm")
    vectors = encoder.encode(TEXTS)
    found = inverter.invert(vectors)

    def score(texts: list[str]) -> float:
        tokens = [inverter.artifact.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
        others = [inverter.artifact.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        return float(np.mean([token_f1(a, b) for a, b in zip(tokens, others, strict=True)]))

    recovered = [one.text for one in found]
    shuffled = recovered[3:] + recovered[:3]
    near = cosine(vectors, encoder.encode(recovered))
    assert score(recovered) > score(shuffled) + 0.15
    assert near.mean() > cosine(vectors, encoder.encode(shuffled)).mean() + 0.25
    assert inverter.encoder.fingerprint == encoder.fingerprint
    assert all("[" not in text for text in recovered)


def test_they_fit_the_repository() -> None:
    files = list(unembed.SHIPPED.iterdir())
    expected = {
        "model.safetensors", "surrogate.safetensors", "writer.safetensors", "echo.safetensors", "config.json",
        "tokenizer.json", "README.md", "calibration.json",
    }  # fmt: skip
    assert {file.name for file in files} == expected
    assert all(file.stat().st_size < 64e6 for file in files)
    assert sum(file.stat().st_size for file in files) < 134e6  # 8 MB of them for corrections, 15 for the echo


def test_the_echo_hears_who_bit_whom() -> None:
    model, encoder = unembed.load().artifact, unembed.encoder("minilm")
    texts = [
        "the dog bit the man.", "the man bit the dog.", "tom likes mary more than anne.",
        "mary likes anne more than tom.", "she gave him the book, not the letter.",
        "he gave her the letter, not the book.",
    ]  # fmt: skip
    tokens = [model.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    assert model.echo is not None
    with torch.inference_mode():
        heard = model.echo.foresee(tokens)
    true = torch.from_numpy(encoder.encode(texts))
    assert float((heard * true).sum(1).mean()) > 0.9
    nearest = (heard @ true.T).argmax(1)
    assert (nearest == torch.arange(len(texts))).float().mean() > 0.8


def test_imagining_comes_nearer_without_asking_anybody() -> None:
    inverter, encoder = unembed.load(), unembed.encoder("minilm")
    vectors = encoder.encode(TEXTS)
    plain, imagined = inverter.invert(vectors), inverter.invert(vectors, imagine=16)
    near = [cosine(vectors, encoder.encode([one.text for one in found])).mean() for found in (plain, imagined)]
    assert near[1] > near[0] + 0.01
    assert all(one.queries == 0 and one.cosine is None for one in imagined)
