"""Guidance, sampling, lengths, n-best and scores, against results computed the plain way."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.conftest import MASK, MAX_TOKENS, make_net, make_vectors, result_of
from unembed.decode import DecodeConfig, engine
from unembed.decode import config as config_module
from unembed.decode.head import pad_rows
from unembed.decode.plan import plan
from unembed.decode.predict import Ask, Sampling, answer
from unembed.decode.score import pseudo_log_likelihood
from unembed.decode.texts import Texts, key_of
from unembed.errors import ConfigError

GREEDY = Sampling(0.0, 1.0, 1.0)


def texts_of(net, vectors, length, sampling=GREEDY):
    with torch.inference_mode():
        c = net.eval().condition(torch.from_numpy(vectors))
    return Texts(c, length, [key_of(v, i) for i, v in enumerate(vectors)], sampling, MASK)


@torch.inference_mode()
def plain_logits(net, vectors, tokens, guidance=1.0):
    """All logits everywhere."""
    t = (tokens == MASK).float().mean(1)
    net.eval()
    with_vector = net.logits(net(tokens, t, net.condition(torch.from_numpy(vectors))))
    without = net.logits(net(tokens, t, net.condition(None, len(tokens))))
    return torch.where(with_vector.isneginf(), with_vector, without + guidance * (with_vector - without))


@pytest.mark.parametrize("guidance", [1.0, 0.5, 3.0])
def test_predictions_are_those_of_a_full_pass(net, guidance):
    vectors = make_vectors(5)
    tokens = torch.randint(5, 60, (5, 7), generator=torch.Generator().manual_seed(0))
    at = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.4
    at[2] = False
    tokens[at] = MASK
    batch = texts_of(net, vectors, 7, replace(GREEDY, guidance=guidance))
    with torch.inference_mode():
        found = result_of(batch.predict(tokens, at, entropy=True), net)
    p = plain_logits(net, vectors, tokens, guidance).softmax(-1)
    assert torch.equal(found.tokens[at], p.argmax(-1)[at])
    assert torch.allclose(found.confidence[at], p.max(-1).values[at], atol=1e-5)
    assert torch.allclose(found.entropy[at], torch.special.entr(p).sum(-1)[at], atol=1e-4)
    assert batch.steps.tolist() == at.any(1).long().tolist()
    assert batch.passes.tolist() == (batch.steps * (1 if guidance == 1 else 2)).tolist()


def test_rows_without_work_are_not_computed(net):
    seen = []
    hook = net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    batch = texts_of(net, make_vectors(40), 3)
    tokens = torch.full((40, 3), MASK)
    at = torch.zeros(40, 3, dtype=torch.bool)
    at[:8, 1] = True
    try:
        with torch.inference_mode():
            result_of(batch.predict(tokens, at), net)
            result_of(batch.predict(tokens, torch.zeros_like(at)), net)
    finally:
        hook.remove()
    assert seen == [8]


def test_draws_follow_the_tempered_distribution_within_top_p(net):
    vectors = np.repeat(make_vectors(1), 4000, axis=0)
    tokens = torch.full((4000, 1), MASK)
    expected = (plain_logits(net, vectors[:1], tokens[:1])[0, 0] / 1.5).softmax(-1)
    for top_p in (1.0, 0.6):
        batch = texts_of(net, vectors, 1, Sampling(1.5, top_p, 1.0))
        with torch.inference_mode():
            drawn = result_of(batch.predict(tokens, torch.ones_like(tokens, dtype=torch.bool)), net).tokens[:, 0]
        order = expected.argsort(descending=True)
        kept = order[: int((expected[order].cumsum(0) < top_p).sum()) + 1]
        target = torch.zeros_like(expected)
        target[kept] = expected[kept] / expected[kept].sum()
        shares = torch.bincount(drawn, minlength=len(expected)) / 4000
        assert (shares[target == 0] == 0).all()
        assert torch.allclose(shares, target, atol=0.035)


def test_padding_repeats_the_last_row():
    x = torch.arange(5)[:, None]
    assert pad_rows(x)[:, 0].tolist() == [0, 1, 2, 3, 4, 4, 4, 4]
    assert pad_rows(x[:4]) is not None
    assert len(pad_rows(x[:4])) == 4


def test_lengths_are_the_median_and_the_likeliest_and_a_fixed_one_is_kept(net):
    vectors = make_vectors(4)
    with torch.inference_mode():
        c = net.eval().condition(torch.from_numpy(vectors))
        p = net.length_logits(c).softmax(1)
        planned = plan(net, c, DecodeConfig(lengths=3))
    medians = [next(k for k in range(len(row)) if row[: k + 1].sum() >= 0.5) for row in p]
    one = list(engine.decode(net, vectors, DecodeConfig(lengths=1)))
    assert [len(candidates[0].tokens) for candidates in one] == medians
    for row, (median, chances) in enumerate(zip(medians, p, strict=True)):
        first, *others = [job.length for job in planned if job.row == row]
        assert first == median
        assert others == [k for k in chances.argsort(descending=True).tolist() if k != median][:2]
    fixed = engine.decode(net, vectors, DecodeConfig(length=7, n_best=2))
    assert {len(c.tokens) for candidates in fixed for c in candidates} == {7}
    with pytest.raises(ConfigError, match=f"at most {MAX_TOKENS} tokens"):
        list(engine.decode(net, vectors, DecodeConfig(length=MAX_TOKENS + 1)))
    every = list(engine.decode(net, vectors, DecodeConfig(lengths=99, n_best=1)))
    assert len(every) == 4


def test_short_texts_are_decoded_at_three_lengths_and_long_ones_at_one(net, monkeypatch):
    vectors = make_vectors(12)
    with torch.inference_mode():
        c = net.eval().condition(torch.from_numpy(vectors))
        log_p = net.length_logits(c).log_softmax(1)
        medians = (log_p.exp().cumsum(1) >= 0.5).int().argmax(1).tolist()
        middle = sorted(medians)[6]
        monkeypatch.setattr(config_module, "SHORT", middle - 1)
        counts = Counter(job.row for job in plan(net, c, DecodeConfig()))
    assert [counts[row] for row in range(12)] == [3 if median < middle else 1 for median in medians]
    assert set(counts.values()) == {1, 3}
    told = list(engine.decode(net, vectors, DecodeConfig(lengths=3)))
    for row, (candidate,) in enumerate(engine.decode(net, vectors, DecodeConfig())):
        if counts[row] == 3:
            assert candidate == told[row][0]
            assert candidate.passes > candidate.steps  # those of all three


def test_n_best_are_different_and_sorted_and_begin_with_the_best(net):
    vectors = make_vectors(5)
    best = list(engine.decode(net, vectors, DecodeConfig()))
    many = list(engine.decode(net, vectors, DecodeConfig(n_best=6)))
    for single, several in zip(best, many, strict=True):
        assert len(single) == 1
        assert len({c.tokens for c in several}) == len(several) == 6
        scores = [c.score for c in several]
        assert scores == sorted(scores, reverse=True)
        assert scores[0] >= single[0].score


def test_the_score_is_the_mean_log_probability_and_the_weighted_length(net):
    vectors = make_vectors(3)
    with torch.inference_mode():
        log_p = net.eval().length_logits(net.condition(torch.from_numpy(vectors))).log_softmax(1)
    for weight in (0.0, 0.5):
        config = DecodeConfig(lengths=1, length_weight=weight, precision="fp32")
        for row, (candidate,) in enumerate(engine.decode(net, vectors, config)):
            expected = np.log(candidate.confidence).mean() + weight * float(log_p[row, len(candidate.tokens)])
            assert candidate.score == pytest.approx(expected, abs=1e-4)


def test_the_pseudo_likelihood_hides_every_token_once(net):
    vectors = make_vectors(2)
    tokens = torch.randint(5, 60, (2, 6), generator=torch.Generator().manual_seed(0))
    batch = texts_of(net, vectors, 6)
    with torch.inference_mode():
        found = result_of(pseudo_log_likelihood(batch, tokens, 99), net)
    for place in range(6):
        hidden = tokens.clone()
        hidden[:, place] = MASK
        expected = plain_logits(net, vectors, hidden)[:, place].log_softmax(-1).gather(1, tokens[:, place : place + 1])
        assert torch.allclose(found[:, place], expected[:, 0], atol=1e-4)
    assert batch.steps.tolist() == [6, 6]
    (candidate,) = next(engine.decode(net, vectors, DecodeConfig(score="pseudo", score_passes=3, length=6, steps=2)))
    assert (candidate.steps, candidate.passes) == (2, 5)


def test_guidance_zero_forgets_the_vector(net):
    found = list(engine.decode(net, make_vectors(4), DecodeConfig(guidance=0.0, lengths=1)))
    assert len({c[0].tokens for c in found}) == 1
    assert found[0][0].passes == found[0][0].steps


def test_decoding_leaves_no_trace_in_the_network_or_the_caller():
    net = make_net().train()
    states = engine.stream(net, make_vectors(1)[0], DecodeConfig(steps=3))
    next(states)
    assert not torch.is_inference_mode_enabled()
    assert net.training
    first = list(engine.decode(net, make_vectors(2), DecodeConfig()))
    assert first == list(engine.decode(net.eval(), make_vectors(2), DecodeConfig()))  # dropout was off


def test_bf16_only_where_it_is_fast(net, monkeypatch):
    monkeypatch.setattr(engine, "fast_bf16", lambda device: False)
    with pytest.raises(ConfigError, match="use 'fp32' or 'auto'"):
        list(engine.decode(net, make_vectors(1), DecodeConfig(precision="bf16")))
    with pytest.raises(ConfigError, match="batch_size"):
        list(engine.decode(net, make_vectors(1), DecodeConfig(), batch_size=0))


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"steps": 2.5}, {"steps": True}, {"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0},
     {"top_p": 1.1}, {"guidance": float("inf")}, {"n_best": 0}, {"lengths": 0}, {"length": 0}, {"seed": -1},
     {"remask_share": 2}, {"remask_threshold": -0.1}, {"entropy_bound": -1}, {"score": "x"}, {"precision": "int8"},
     {"steps": "8"}, {"temperature": "hot"}],
)  # fmt: skip
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        DecodeConfig(**settings)


@torch.inference_mode()
def test_the_repeat_penalty_lowers_what_is_said_already(net):
    """Judged by the log-probabilities of given tokens: 7 stands twice in the text, 9 once, 11 not at all."""
    tokens = torch.tensor([[7, 7, MASK, 9]]).repeat(3, 1)
    at = tokens == MASK
    given = torch.tensor([7, 9, 11])
    c = net.eval().condition(torch.from_numpy(make_vectors(1))).repeat(3, 1)
    plain, punished = (
        answer(net, [Ask(tokens, at, c, replace(GREEDY, repeat_penalty=penalty), torch.zeros(3), given)])[0].log_p
        for penalty in (0.0, 1.5)
    )
    assert (plain[0] - punished[0]) - (plain[2] - punished[2]) == pytest.approx(3.0, abs=1e-4)
    assert (plain[1] - punished[1]) - (plain[2] - punished[2]) == pytest.approx(1.5, abs=1e-4)
    assert punished[2] > plain[2]  # what the others lose


@torch.inference_mode()
def test_different_asks_share_a_pass_and_get_their_own_answers(net):
    """Other lengths, guidance, temperature, penalty, entropy, given tokens: as if each had been asked alone."""
    asks = []
    for k, sampling in enumerate(
        [GREEDY, Sampling(0.0, 1.0, 2.0, 1.5), Sampling(1.5, 1.0, 1.0, 1.0), Sampling(2.0, 0.7, 0.5), GREEDY]
    ):
        length, random = 3 + 2 * k, torch.Generator().manual_seed(k)
        tokens = torch.randint(5, 60, (k + 1, length), generator=random)
        at = torch.rand(k + 1, length, generator=random) < 0.5
        at[:, k] = True
        tokens[at] = MASK
        c = net.eval().condition(torch.from_numpy(make_vectors(k + 1, seed=k)))
        u = torch.rand(int(at.sum()), generator=random, dtype=torch.double)
        given = torch.randint(5, 60, (len(u),), generator=random) if k == 4 else None
        asks.append(Ask(tokens, at, c, sampling, u, given, entropy=k % 2 == 0))
    passes = []
    hook = net.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape))
    try:
        together = answer(net, asks)
    finally:
        hook.remove()
    assert passes == [(1 + 2 + 3 + 4 + 5 + 2 + 4, 11)]  # two of them also without the vector
    for ask, found in zip(asks, together, strict=True):
        (alone,) = answer(net, [ask])
        assert torch.equal(found.tokens, alone.tokens)
        assert torch.allclose(found.log_p, alone.log_p, atol=1e-5)
        assert torch.allclose(found.entropy, alone.entropy, atol=1e-4)
        assert bool(found.entropy.any()) == ask.entropy
    assert torch.equal(together[4].tokens, asks[4].given)
