"""Steering: what a text still lacks is preferred, and nothing else changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.decode.conftest import DIM, MASK, MAX_TOKENS, SPECIAL, VOCABULARY, make_inverter, make_vectors, same
from unembed.decode import DecodeConfig, engine, plan, strategies
from unembed.decode.head import Shortlist
from unembed.decode.predict import Ask, Sampling, answer
from unembed.decode.score import COSINE_WEIGHT
from unembed.decode.steer import Steer, _gradient, steered
from unembed.errors import ConfigError

GREEDY = Sampling(0.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def foreseeing():
    """An inverter whose surrogate gives every word a vector of its own."""
    inverter = make_inverter(foresees=True)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for table in (inverter.artifact.surrogate.words, inverter.artifact.surrogate.weight):
            table.weight.copy_(torch.randn(table.weight.shape, generator=generator))
    return inverter


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def aims(n):
    return F.normalize(random(n, DIM, seed=1), dim=1)


def test_the_words_of_a_surrogate_add_up_to_what_it_foresees(foreseeing):
    surrogate = foreseeing.artifact.surrogate
    texts = [[7, 9, 9, 30], [12], list(range(5, 5 + MAX_TOKENS))]
    words = surrogate.word_vectors()
    summed = torch.stack([F.normalize(words[text].sum(0), dim=0) for text in texts])
    with torch.inference_mode():
        assert torch.allclose(summed, surrogate.foresee(texts), atol=1e-6)


@pytest.mark.parametrize("wrong_by", [0.0, 0.4])
def test_the_gradient_is_that_of_the_cosine(wrong_by):
    total = (3 * random(4, DIM)).requires_grad_()
    offsets = wrong_by * aims(4).flip(0)
    foreseen = F.normalize(total, dim=1) + offsets
    F.cosine_similarity(foreseen, aims(4)).sum().backward()
    found = _gradient(Steer(torch.empty(0), aims(4), 1.0, offsets if wrong_by else None), total.detach())
    assert torch.allclose(found, total.grad, atol=1e-6)


def test_a_word_that_is_missing_gains_and_one_that_was_said_does_not():
    words = torch.eye(DIM)
    aim = F.normalize(words[5] + words[6] + words[7], dim=0)[None]
    tokens = torch.tensor([[5, 6, MASK, 6]])
    ids = torch.tensor([[5, 6, 7, 8]])
    before = torch.zeros(1, 4)
    found = steered(Steer(words, aim, 10.0), tokens, MASK, torch.tensor([0]), before, ids)[0]
    assert found.argmax() == 2
    assert found[2] > found[0] > found[3] > found[1]  # lacking, said once, not wanted, said too often
    assert torch.equal(steered(Steer(words, aim, 0.0), tokens, MASK, torch.tensor([0]), before, ids)[0], before[0])


def test_masks_behind_the_end_of_a_text_count_for_nothing():
    words, ids = random(VOCABULARY, DIM), torch.arange(5, 13)[None].repeat(2, 1)
    logits = random(2, 8, seed=2)
    short = torch.tensor([[9, MASK, MASK]])
    padded = F.pad(short, (0, 4), value=MASK)
    steer, texts = Steer(words, aims(1), 5.0), torch.tensor([0, 0])
    alone = steered(steer, short, MASK, texts, logits, ids)
    assert torch.allclose(alone, steered(steer, padded, MASK, texts, logits, ids, torch.tensor([4])), atol=1e-6)


def test_it_brings_texts_nearer_as_the_surrogate_sees_it(foreseeing):
    vectors = make_vectors(24)

    def cosine(steering):
        found = foreseeing.invert(vectors, steering=steering)
        with torch.inference_mode():
            foreseen = foreseeing.artifact.surrogate.foresee([one.tokens for one in found])
        assert all(not set(one.tokens) & set(SPECIAL) for one in found)
        return float((foreseen.numpy() * vectors).sum(1).mean())

    assert cosine(15.0) > cosine(0.0) + 0.1


@pytest.mark.parametrize("settings", [{"steering": 0.0}, {"guidance": 0.0}])
def test_without_it_nothing_changes(foreseeing, inverter, settings):
    vectors = make_vectors(5)
    assert foreseeing.invert(vectors, **settings) == inverter.invert(vectors, **settings)
    if "steering" in settings:
        assert foreseeing.invert(vectors) != inverter.invert(vectors)


def test_lengths_are_chosen_with_the_cosine_that_the_surrogate_foresees(foreseeing):
    vectors = make_vectors(16)

    def foreseen(found):
        with torch.inference_mode():
            return (foreseeing.artifact.surrogate.foresee([one.tokens for one in found]).numpy() * vectors).sum(1)

    one, best = foreseeing.invert(vectors, lengths=1), foreseeing.invert(vectors, lengths=4)
    for found, there in zip(one, foreseen(one), strict=True):
        unforeseen = found.score - COSINE_WEIGHT * float(there)
        assert unforeseen < 0  # nothing but log-probabilities is left
        assert unforeseen > np.log(found.confidence).mean() - 1
    assert all(b.score >= a.score for a, b in zip(one, best, strict=True))
    assert foreseen(best).mean() > foreseen(one).mean()


@pytest.mark.parametrize("name", strategies.names())
def test_only_what_reveals_the_surest_is_steered_unless_told_to(foreseeing, inverter, name):
    vectors, surest = make_vectors(5), name in ("confidence", "entropy")
    found = foreseeing.invert(vectors, strategy=name)
    assert found == foreseeing.invert(vectors, strategy=name, steering=15.0 if surest else 0.0)
    assert (found == inverter.invert(vectors, strategy=name)) != surest
    assert foreseeing.invert(vectors, strategy=name, steering=15.0) != inverter.invert(vectors, strategy=name)


@pytest.mark.parametrize("name", strategies.names())
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "top_p": 0.9}, {"guidance": 1.4}, {"n_best": 2}])
def test_a_text_does_not_depend_on_its_batch(foreseeing, name, settings):
    config = DecodeConfig(strategy=name, steering=15.0, **settings)
    vectors = make_vectors(7)
    together = foreseeing.invert(vectors, config)
    alone = [foreseeing.invert(vector[None], config, batch_size=1)[0] for vector in vectors]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert together == foreseeing.invert(vectors, config)


def test_streams_and_pools_are_steered_too(foreseeing):
    vectors = make_vectors(3)
    expected = foreseeing.invert(vectors, lengths=1)
    pool = foreseeing.pool(3)
    tickets = [pool.add(vector) for vector in vectors]
    pooled = {}
    while len(pool):
        pooled |= {ticket: step.inversion for ticket, step in pool.step() if step.inversion}
    for one, vector, ticket in zip(expected, vectors, tickets, strict=True):
        assert same(list(foreseeing.stream(vector))[-1].inversion, one)
        assert same(pooled[ticket], one)


def test_tokens_that_are_judged_are_not_steered(foreseeing):
    net, words = foreseeing.artifact.net, foreseeing.artifact.surrogate.word_vectors()
    tokens = torch.full((1, 6), MASK)
    with torch.inference_mode():
        c = net.eval().condition(torch.from_numpy(make_vectors(1)))
        ask = Ask(tokens, tokens == MASK, c, GREEDY, torch.zeros(6), given=torch.arange(8, 14))
        plain = answer(net, [ask])[0]
        judged = answer(net, [replace(ask, steer=Steer(words, aims(1), 50.0))])[0]
    assert torch.equal(judged.log_p, plain.log_p)


def test_steered_and_other_texts_share_a_pass(foreseeing):
    net, words = foreseeing.artifact.net, foreseeing.artifact.surrogate.word_vectors()
    asks = []
    with torch.inference_mode():
        for k, length in enumerate((4, 7, 5)):
            tokens = torch.full((2, length), MASK)
            tokens[0, 1] = 20
            at = tokens == MASK
            c = net.eval().condition(torch.from_numpy(make_vectors(2, seed=k)))
            steer = None if k == 1 else Steer(words, aims(2), 15.0 + k)
            asks.append(Ask(tokens, at, c, GREEDY, torch.zeros(int(at.sum())), steer=steer))
        for one, ask in zip(answer(net, asks), asks, strict=True):
            alone = answer(net, [ask])[0]
            assert torch.equal(one.tokens, alone.tokens)
            assert np.allclose(one.log_p, alone.log_p, atol=1e-5)


def test_a_wrong_scale_is_named():
    with pytest.raises(ConfigError, match="steering is -1"):
        DecodeConfig(steering=-1)


# --- shortlists ---------------------------------------------------------------------------------------------------


def ask_for(foreseeing, lists):
    """Two steered texts, in one of which some words stand already."""
    net, words = foreseeing.artifact.net, foreseeing.artifact.surrogate.word_vectors()
    tokens = torch.full((2, 6), MASK)
    tokens[0, :2] = torch.tensor([20, 33])
    at = tokens == MASK
    c = net.eval().condition(torch.from_numpy(make_vectors(2)))
    sampling = replace(GREEDY, repeat_penalty=3.0)
    steer = Steer(words, aims(2), 10.0, shortlists=lists and [Shortlist(net, torch.tensor(one)) for one in lists])
    return Ask(tokens, at, c, sampling, torch.zeros(int(at.sum())), steer=steer, entropy=True)


@torch.inference_mode()
def test_a_list_of_all_words_changes_nothing(foreseeing):
    everything = [list(range(VOCABULARY))] * 2
    plain = answer(foreseeing.artifact.net, [ask_for(foreseeing, None)])[0]
    listed = answer(foreseeing.artifact.net, [ask_for(foreseeing, everything)])[0]
    assert torch.equal(listed.tokens, plain.tokens)
    assert torch.allclose(listed.log_p, plain.log_p, atol=1e-5)
    assert torch.allclose(listed.entropy, plain.entropy, atol=1e-4)


@torch.inference_mode()
def test_only_words_of_a_texts_own_list_are_chosen(foreseeing):
    lists = [[20, 21, 22, 40], [9, 10, 50, 51]]
    found = answer(foreseeing.artifact.net, [ask_for(foreseeing, lists)])[0].tokens
    assert set(found[:4].tolist()) <= {20, 21, 22, 40}
    assert set(found[4:].tolist()) <= {9, 10, 50, 51}


@pytest.mark.parametrize("name", ["confidence", "entropy"])
def test_a_listed_text_does_not_depend_on_its_batch(foreseeing, monkeypatch, name):
    vectors, config = make_vectors(7), DecodeConfig(strategy=name)
    everything = foreseeing.invert(vectors, config)
    monkeypatch.setattr(plan, "SHORTLIST", 12)
    together = foreseeing.invert(vectors, config)
    alone = [foreseeing.invert(vector[None], config, batch_size=1)[0] for vector in vectors]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert together != everything  # the lists were looked at
    net = foreseeing.artifact.net
    with torch.inference_mode():
        likely = net.logits(net.bag_hidden(net.condition(torch.from_numpy(vectors)))).topk(12, dim=1).indices
    for one, words in zip(together, likely.tolist(), strict=True):
        assert set(one.tokens) <= set(words)


def test_steering_works_in_bf16_too(foreseeing, monkeypatch):
    monkeypatch.setattr(engine, "fast_bf16", lambda device: True)
    monkeypatch.setattr(engine, "autocast", lambda device: torch.autocast(device.type, dtype=torch.bfloat16))
    for shortlist in (10**6, 40):
        monkeypatch.setattr(plan, "SHORTLIST", shortlist)
        found = foreseeing.invert(make_vectors(3), precision="bf16")
        assert all(one.tokens and np.isfinite(one.score) for one in found)
