"""A small real inverter with random weights: it knows nothing, but every path of the network speaks."""

from collections.abc import Generator

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models

from unembed.config import Config, ModelConfig
from unembed.decode import Inversion
from unembed.decode.plan import Candidate
from unembed.decode.predict import answer
from unembed.inverter import Inverter
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser
from unembed.model.echo import Echo
from unembed.model.surrogate import Surrogate
from unembed.model.writer import Writer

DIM, VOCABULARY, MAX_TOKENS = 16, 64, 12
SPECIAL = [0, 1, 2, 3, 4]
MASK = 4


def make_net(seed: int = 0) -> Denoiser:
    config = ModelConfig(
        vocab_size=VOCABULARY, mask_id=MASK, vector_dim=DIM, max_tokens=MAX_TOKENS, layers=2, width=32, heads=4, ffn=64,
        dropout=0.1, norm="post", freeze_embeddings=False, prefix_tokens=2, conv=True, bag_of_words=True,
        reader=True, account=True,
    )  # fmt: skip
    net = Denoiser(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.dim() > 1 else 0.1))
    net.forbid(SPECIAL)
    return net


def make_vectors(n: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(n, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def same(found: Candidate | Inversion, expected: Candidate | Inversion) -> bool:
    """The same text; numbers may differ in bits that no decision depends on."""
    numbers = [(*found.confidence, found.score), (*expected.confidence, expected.score)]
    return found.tokens == expected.tokens and np.allclose(*numbers, rtol=0, atol=1e-5)


def result_of(asking: Generator, net: Denoiser | None = None) -> object:
    """Run what asks the network to its end, with a pass of its own for each ask."""
    found = None
    try:
        while True:
            found = answer(net, [next(asking) if found is None else asking.send(found)])[0]
    except StopIteration as end:
        return end.value


def make_tokenizer() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(VOCABULARY - 5)]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(words[:5])
    return tokenizer


def make_writer(net: Denoiser, seed: int = 0, sees: bool = False) -> Writer:
    """One that says something everywhere, and ends its texts; one that sees hears every part of a guess."""
    torch.manual_seed(seed)
    surrogate = Surrogate(net)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        surrogate.words.weight.copy_(torch.randn(surrogate.words.weight.shape, generator=generator))
        writer = Writer(net, surrogate, sees).requires_grad_(False).eval()
        for layer in (writer.account, writer.account_spoken):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * 0.3)
        writer.end.copy_(torch.randn(writer.end.shape, generator=generator))
        if writer.sight is not None:
            for layer in (writer.sight.heed_shortcut, writer.sight.worth, writer.sight.placed, writer.sight.spoken):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) * 0.3)
    return writer


def make_echo(net: Denoiser, surrogate: Surrogate, seed: int = 0) -> Echo:
    """One whose layers say as much as the surrogate."""
    torch.manual_seed(seed)
    echo = Echo(net, surrogate).requires_grad_(False).eval()
    echo.share.copy_(torch.tensor([1.0, 1.0]))
    return echo


def make_inverter(
    seed: int = 0, corrects: bool = False, foresees: bool = False, writes: bool = False, hears: bool = False
) -> Inverter:
    """`corrects`: its writer sees guesses; `hears`: it has a writer and an echo."""
    net = make_net(seed)
    encoder = EncoderInfo("test", DIM, True, "")
    surrogate = Surrogate(net).eval() if foresees or hears else None
    config = Config(model=net.config)
    writer = make_writer(net, seed, corrects) if writes or corrects or hears else None
    echo = make_echo(net, surrogate, seed) if hears and surrogate is not None else None
    return Inverter(Artifact(net, make_tokenizer(), config, encoder, surrogate=surrogate, writer=writer, echo=echo))


@pytest.fixture(scope="session")
def net() -> Denoiser:
    return make_net()


@pytest.fixture(scope="session")
def inverter() -> Inverter:
    return make_inverter()


@pytest.fixture
def vectors() -> np.ndarray:
    return make_vectors(6)
