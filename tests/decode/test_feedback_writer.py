"""A writer in a search: it goes on with beginnings, judges all texts, and writes the first ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.conftest import MAX_TOKENS, SPECIAL, make_inverter, make_vectors
from tests.decode.test_feedback import Small
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig, author
from unembed.decode.feedback.refill import Blank
from unembed.inverter import Inverter


@pytest.fixture(scope="module")
def writing():
    return make_inverter(foresees=True, writes=True)


def blank(tokens, aim, u, temperature=1.0):
    return Blank(list(tokens), [0.5] * len(tokens), torch.empty(0), u, temperature, aim=torch.from_numpy(aim))


@torch.inference_mode()
def test_the_rest_is_written_after_what_is_given(writing):
    writer, vectors = writing.artifact.writer, make_vectors(3)
    u = torch.from_numpy(np.random.default_rng(0).random((4, 1, MAX_TOKENS)))
    blanks = [
        blank([10, 11, 12], vectors[0], u[0]), blank([], vectors[1], u[1]), blank([20], vectors[2], u[2]),
        blank(range(30, 30 + MAX_TOKENS), vectors[0], u[3]),
    ]  # fmt: skip
    author.go_on(writer, blanks)
    assert blanks[0].tokens[:3] == [10, 11, 12]
    assert len(blanks[1].tokens) >= 1
    assert blanks[2].tokens[0] == 20
    assert blanks[3].tokens == list(range(30, 30 + MAX_TOKENS))  # there is no room
    for one in blanks:
        assert len(one.tokens) == len(one.sure) <= MAX_TOKENS
        assert not set(one.tokens) & set(SPECIAL)
    alone = blank([20], vectors[2], u[2])
    author.go_on(writer, [alone])
    assert alone.tokens == blanks[2].tokens  # whoever else is at work


@torch.inference_mode()
def test_nearly_without_temperature_it_takes_the_likeliest_words(writing):
    writer, (vector,) = writing.artifact.writer, make_vectors(1, seed=3)
    u = torch.full((1, MAX_TOKENS), 0.5)
    one = blank([9, 17], vector, u, temperature=1e-3)
    author.go_on(writer, [one])
    given = torch.from_numpy(vector[None])
    told, heard, _ = writer.listen(given)
    for place in range(2, len(one.tokens)):
        logits = writer.logits(writer(torch.tensor([one.tokens[:place]]), told), heard)[0, -1]
        assert int(logits.argmax()) == one.tokens[place]


@torch.inference_mode()
def test_it_judges_a_text_by_what_each_word_is_worth_after_those_before(writing):
    writer, vectors = writing.artifact.writer, torch.from_numpy(make_vectors(3))
    texts = [[7, 8, 9, 7], [40], [11, 12, 13, 14, 15, 16]]
    for vector, text, found in zip(vectors, texts, author.judge(writer, vectors, texts), strict=True):
        told, heard, _ = writer.listen(vector[None])
        p = writer.logits(writer(torch.tensor([text]), told), heard)[0].softmax(1)
        assert np.allclose(found, p[torch.arange(len(text)), torch.tensor(text)], atol=1e-3)


def search(inverter, vectors, budget=20, **settings):
    return inverter.invert(vectors, encoder=Small(), feedback=FeedbackConfig(budget=budget, **settings))


def test_a_search_with_it_is_repeatable_within_its_budget_and_never_worse(writing):
    vectors, encoder = make_vectors(4), Small()
    found = search(writing, vectors)
    assert found == search(writing, vectors)
    plain = writing.invert(vectors)
    before = encoder.encode([one.text for one in plain])
    cosines = (before * vectors).sum(1) / np.linalg.norm(before, axis=1)
    for one, least in zip(found, cosines, strict=True):
        assert one.queries <= 20
        assert one.cosine >= least - 1e-6
    assert np.mean([one.cosine for one in found]) > cosines.mean()


def test_what_it_does_can_be_switched_off(writing):
    vectors = make_vectors(3)
    assert search(writing, vectors, writer=False) != search(writing, vectors)
    without = Inverter(replace(writing.artifact, writer=None))
    denoised = DecodeConfig(strategy="confidence")
    both = [
        inverter.invert(vectors, denoised, encoder=Small(), feedback=FeedbackConfig(budget=20, writer=False))
        for inverter in (writing, without)
    ]
    assert both[0] == both[1]


def test_the_first_texts_are_its_best_ones(writing):
    (vector,) = make_vectors(1, seed=8)
    asked = []

    class Watched(Small):
        def encode(self, texts):
            asked.extend(texts)
            return super().encode(texts)

    writing.invert(vector, encoder=Watched(), feedback=FeedbackConfig(budget=4, starts=4))
    best = writing.invert(vector, n_best=4)[0]
    assert asked[:4] == [best.text, *(one.text for one in best.alternatives)]
