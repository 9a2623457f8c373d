"""A writer in a search: it goes on with beginnings, judges all texts, and writes the first ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.conftest import MAX_TOKENS, SPECIAL, make_inverter, make_vectors
from tests.decode.test_feedback import Small
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig, author
from unembed.inverter import Inverter
from unembed.model.sight import guess_of


@pytest.fixture(scope="module")
def writing():
    return make_inverter(foresees=True, writes=True)


@torch.inference_mode()
def test_the_rest_is_written_after_what_is_given(writing):
    writer, vectors = writing.artifact.writer, torch.from_numpy(make_vectors(4))
    full = list(range(30, 30 + MAX_TOKENS))
    beginnings = [[10, 11, 12, 10], [], [20], full]
    found = author.go_on(writer, vectors, beginnings, None, 3)
    for texts, beginning in zip(found, beginnings, strict=True):
        assert 1 <= len(texts) <= 3
        assert len({one.tokens for one in texts}) == len(texts)
        for one in texts:
            assert list(one.tokens[: len(beginning)]) == beginning
            assert 1 <= len(one.tokens) == len(one.confidence) <= MAX_TOKENS
            assert not set(one.tokens) & set(SPECIAL)
    assert [list(one.tokens) for one in found[3]] == [full]  # there is no room
    (alone,) = author.go_on(writer, vectors[2:3], beginnings[2:3], None, 3)
    assert [one.tokens for one in alone] == [one.tokens for one in found[2]]  # whoever else is at work


@pytest.mark.parametrize("shown", [False, True])
@torch.inference_mode()
def test_a_word_is_as_sure_as_the_writer_is_of_it_after_those_before(shown):
    """Shortlists, what is kept of the words before, beginnings and copied words: all against one plain pass."""
    writer = make_inverter(corrects=True).artifact.writer
    vectors = torch.from_numpy(make_vectors(3, seed=3))
    guess = guess_of([[9, 17, 9], [5, 6, 7, 8, 9, 10], [40]], torch.from_numpy(make_vectors(3, seed=4)))
    found = author.go_on(writer, vectors, [[9, 17], [], [21]], guess if shown else None, 2)
    for row, texts in enumerate(found):
        mine = guess.rows(slice(row, row + 1)) if shown else None
        for one in texts:
            tokens = torch.tensor([one.tokens])
            told, heard, seen = writer.listen(vectors[row : row + 1], mine)
            hidden = writer(tokens, told, seen)
            logits = writer.logits(hidden, heard)
            if copied := writer.copies(told, tokens, hidden):
                logits.scatter_add_(2, copied[0][:, None].expand(-1, logits.shape[1], -1), copied[1])
            p = logits[0].softmax(1)[torch.arange(len(one.tokens)), tokens[0]]
            assert np.allclose(one.confidence, p, rtol=2e-3, atol=1e-5)


@torch.inference_mode()
def test_it_judges_a_text_by_what_each_word_is_worth_after_those_before(writing):
    writer, vectors = writing.artifact.writer, torch.from_numpy(make_vectors(3))
    texts = [[7, 8, 9, 7], [40], [11, 12, 12, 12, 15, 16]]
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
