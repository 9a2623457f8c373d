"""The encoder's thread: texts of clients one at a time, recovered texts that wait in one call."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from tests.decode.conftest import make_inverter
from tests.serve.conftest import PATIENCE, LetterEncoder
from unembed.errors import EncoderError
from unembed.serve.embedding import Embedding
from unembed.serve.limits import Limits, Refusal


class Slow(LetterEncoder):
    """Waits in its first call, and cannot read one word."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.threads: list[int] = []
        self.entered, self.free = threading.Event(), threading.Event()

    def encode(self, texts):
        self.calls.append(list(texts))
        self.threads.append(torch.get_num_threads())
        self.entered.set()
        assert self.free.wait(PATIENCE)
        if "bad" in texts:
            raise EncoderError("cannot read that")
        return super().encode(texts)


@pytest.fixture
def embedding():
    made = Embedding("none", make_inverter().artifact, Limits(), lambda: made.decoder_idle)
    made.decoder_idle, made._threads = True, 3
    made.start()
    assert made.loaded.wait(PATIENCE)
    made.encoder = Slow()
    yield made
    made.encoder.free.set()
    made.stop()


def ask(embedding, texts, client="", leaves=()):
    """Ask for the first text, for the others while the encoder is busy with it, and take some back."""

    async def run():
        tasks = [asyncio.create_task(embedding.encode(texts[0], client))]
        assert await asyncio.to_thread(embedding.encoder.entered.wait, PATIENCE)
        tasks += [asyncio.create_task(embedding.encode(text, client)) for text in texts[1:]]
        await asyncio.sleep(0)  # they are in the line now
        for text in leaves:
            tasks[texts.index(text)].cancel()
        await asyncio.sleep(0)
        embedding.encoder.free.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


def test_recovered_texts_that_wait_share_a_call(embedding):
    found = ask(embedding, ["one", "two", "three", "four"])
    assert embedding.encoder.calls == [["one"], ["two", "three", "four"]]
    assert [row.tolist() for row in found] == LetterEncoder().encode(["one", "two", "three", "four"]).tolist()


def test_texts_of_clients_are_embedded_alone(embedding):
    ask(embedding, ["one", "two", "three"], client="somebody")
    assert embedding.encoder.calls == [["one"], ["two"], ["three"]]


def test_a_text_whose_client_left_is_not_embedded(embedding):
    ask(embedding, ["one", "two", "three"], leaves=["two"])
    assert embedding.encoder.calls == [["one"], ["three"]]
    assert embedding._asked == 0


def test_a_text_that_cannot_be_embedded_costs_the_others_nothing(embedding):
    one, two, bad, three = ask(embedding, ["one", "two", "bad", "three"])
    assert embedding.encoder.calls[1:] == [["two", "bad", "three"], ["two"], ["bad"], ["three"]]
    assert isinstance(bad, Refusal)
    assert [row.tolist() for row in (one, two, three)] == LetterEncoder().encode(["one", "two", "three"]).tolist()


@pytest.mark.parametrize(("idle", "threads"), [(True, [1, 3]), (False, [1, 1])])
def test_shared_calls_use_the_cores_that_the_decoder_does_not(embedding, idle, threads):
    embedding.decoder_idle = idle
    ask(embedding, ["one", "two", "three"])
    assert embedding.encoder.threads == threads
    assert embedding._thread.submit(torch.get_num_threads).result(PATIENCE) == 1  # as before, for whoever comes next
