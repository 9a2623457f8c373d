"""Continuous batching: texts that come and go share every pass, and each gets what it would have got alone."""

import itertools
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unembed
from tests.decode.conftest import make_inverter, make_vectors, same
from unembed.decode import DecodeConfig, strategies
from unembed.decode import pool as pool_module
from unembed.decode.pool import PoolFull, best_of
from unembed.errors import ConfigError, DataError

INVERTER = make_inverter()
EXTRAS = (
    {},
    {"temperature": 0.9, "seed": 3},
    {"guidance": 1.7, "temperature": 1.2, "top_p": 0.8, "seed": 1},
    {"guidance": 0.0, "length": 2},
    {"guidance": 2.5, "score": "pseudo", "score_passes": 2, "length": 7},
    {"repeat_penalty": 0.0, "length": 12},
)
CONFIGS = [DecodeConfig(strategy=s, steps=4, **extra) for s in strategies.BUILT_IN for extra in EXTRAS]


def run(pool):
    """Every ticket's steps, to the end."""
    steps = {}
    while len(pool):
        for ticket, step in pool.step():
            steps.setdefault(ticket, []).append(step)
    return steps


def agree(steps, expected, atol=1e-5):
    """The same texts at every step; only last bits of numbers differ."""
    assert [step.tokens for step in steps] == [step.tokens for step in expected]
    for found, wanted in zip(steps, expected, strict=True):
        assert np.allclose(found.confidence, wanted.confidence, rtol=0, atol=atol)
        assert (found.step, found.masked, found.passes, found.text) == (
            wanted.step,
            wanted.masked,
            wanted.passes,
            wanted.text,
        )
        assert (found.inversion is None) == (wanted.inversion is None)
    found, wanted = steps[-1].inversion, expected[-1].inversion
    assert same(found, wanted)
    assert (found.text, found.steps, found.passes) == (wanted.text, wanted.steps, wanted.passes)


def test_all_strategies_lengths_and_settings_at_once_give_what_stream_gives():
    vectors = make_vectors(len(CONFIGS))
    pool = INVERTER.pool(capacity=len(CONFIGS))
    tickets = [pool.add(vector, config) for vector, config in zip(vectors, CONFIGS, strict=True)]
    assert len(pool) == len(CONFIGS) == len(set(tickets))
    steps = run(pool)
    for ticket, vector, config in zip(tickets, vectors, CONFIGS, strict=True):
        agree(steps[ticket], list(INVERTER.stream(vector, config)))


def test_the_shipped_inverter_in_a_pool_gives_what_it_streams():
    """Real weights, texts that arrive one round after the other, so that all are at different steps."""
    inverter = unembed.load()
    texts = ["Good morning.", "The parcel will arrive on Tuesday morning, if nobody steals it from the doorstep first."]
    vectors = unembed.encoder("minilm").encode(texts)
    kinds = ({}, {"guidance": 1.5, "seed": 5, "temperature": 0.8, "top_p": 0.95})
    work = [
        (vectors[k % 2], DecodeConfig(strategy=s, steps=3 + k % 3, length=length, precision="fp32", **kind))
        for k, (s, (length, kind)) in enumerate(
            itertools.product(strategies.BUILT_IN, zip((None, 9), kinds, strict=True))
        )
    ]
    pool, steps, tickets = inverter.pool(), {}, []
    while len(pool) or len(tickets) < len(work):
        for vector, config in work[len(tickets) : len(tickets) + 3]:
            tickets.append(pool.add(vector, config))
        for ticket, step in pool.step():
            steps.setdefault(ticket, []).append(step)
    for ticket, (vector, config) in zip(tickets, work, strict=True):
        agree(steps[ticket], list(inverter.stream(vector, config)), atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(CONFIGS), st.integers(0, 3), st.booleans()), min_size=1, max_size=8))
def test_whoever_comes_and_goes_does_not_change_the_others(arrivals):
    """Each comes some rounds after the one before, and may be dropped a round later."""
    vectors = make_vectors(len(arrivals), seed=1)
    pool, steps, kept = INVERTER.pool(), {}, {}
    leaving = None

    def round_():
        for ticket, step in pool.step():
            steps.setdefault(ticket, []).append(step)

    for vector, (config, wait, leaves) in zip(vectors, arrivals, strict=True):
        for _ in range(wait):
            round_()
        if leaving is not None:
            pool.drop(leaving)
        ticket = pool.add(vector, config)
        leaving = ticket if leaves else None
        if not leaves:
            kept[ticket] = (vector, config)
    while len(pool):
        round_()
    for ticket, (vector, config) in kept.items():
        agree(steps[ticket], list(INVERTER.stream(vector, config)))


def test_a_round_is_one_pass_whoever_is_there():
    shapes = []
    net = INVERTER.artifact.net
    hook = net.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    try:
        pool = INVERTER.pool()
        for vector, length, guidance in zip(make_vectors(6), (3, 5, 5, 9, 12, 1), (1, 2, 1, 1, 3, 1), strict=True):
            pool.add(vector, DecodeConfig(strategy="sequential", steps=12, length=length, guidance=guidance))
        rounds = 0
        while len(pool):
            pool.step()
            rounds += 1
    finally:
        hook.remove()
    assert rounds == len(shapes) == 12
    assert shapes[0] == (8, 12)  # six texts, two of them also without their vector
    assert shapes[-1] == (2, 12)  # one, and its twin


def test_capacity_and_what_frees_a_place():
    pool = INVERTER.pool(capacity=2)
    vectors = make_vectors(3)
    first = pool.add(vectors[0], DecodeConfig(steps=1))
    second = pool.add(vectors[1], DecodeConfig(strategy="sequential", steps=99, length=5))
    with pytest.raises(PoolFull, match="all 2 places are taken"):
        pool.add(vectors[2])
    ((ticket, last),) = [(t, s) for t, s in pool.step() if s.inversion]
    assert (ticket, last.masked, len(pool)) == (first, (), 1)
    assert first not in pool
    assert second in pool
    third = pool.add(vectors[2])
    pool.drop(second)
    pool.drop(second)
    pool.drop(first)
    pool.drop(99)
    assert len(pool) == 1
    assert {t for t, _ in pool.step()} == {third}
    pool.drop(third)
    assert pool.step() == []


def test_bad_input_takes_no_place(caplog):
    pool = INVERTER.pool(capacity=1)
    vector = make_vectors(1)[0]
    for bad, message in (
        (vector[:3], "this inverter reads 16"),
        (vector * np.nan, "NaN"),
        (vector * 0, "zero"),
        (make_vectors(2), "one vector is wanted, got 2"),
    ):
        with pytest.raises(DataError, match=message):
            pool.add(bad)
    with pytest.raises(ConfigError, match="at most 12 tokens"):
        pool.add(vector, DecodeConfig(length=13))
    with pytest.raises(ConfigError, match="capacity is 0"):
        INVERTER.pool(capacity=0)
    assert len(pool) == 0
    with caplog.at_level(logging.WARNING, "unembed"):
        pool.add((vector * 3).tolist())
    assert "not of unit length" in caplog.text


def test_it_leaves_no_trace_in_the_network_or_the_caller():
    inverter = make_inverter()
    inverter.artifact.net.train()
    pool = inverter.pool()
    ticket = pool.add(make_vectors(1)[0])
    steps = [step for _, step in pool.step()]
    assert inverter.artifact.net.training
    assert not torch.is_inference_mode_enabled()
    agree(steps + run(pool)[ticket], list(INVERTER.stream(make_vectors(1))))


def test_a_strategy_that_fails_is_dropped_alone(monkeypatch):
    def broken(batch, config):
        yield from batch.predict(torch.full(batch.shape, batch.mask_id), torch.ones(batch.shape, dtype=torch.bool))
        raise RuntimeError("bug")

    def silent(batch, config):
        yield from ()

    real, vectors, config = strategies.load, make_vectors(3), DecodeConfig(steps=3)
    monkeypatch.setattr(strategies, "load", lambda name: {"euler": broken, "remask": silent}.get(name) or real(name))
    pool = INVERTER.pool()
    one = pool.add(vectors[0], config)
    bad = pool.add(vectors[1], DecodeConfig(strategy="euler"))
    two = pool.add(vectors[2], config)
    with pytest.raises(ConfigError, match="'remask' ended without a state"):
        pool.add(vectors[0], DecodeConfig(strategy="remask"))
    with pytest.raises(RuntimeError, match="bug"):
        pool.step()
    assert bad not in pool
    steps = run(pool)
    agree(steps[one], list(INVERTER.stream(vectors[0], config)))
    agree(steps[two], list(INVERTER.stream(vectors[2], config)))


def test_a_pass_that_fails_is_repeated_for_each_text_alone(monkeypatch):
    """Only the text whose question cannot be answered is dropped."""
    real, vectors, config = pool_module.answer, make_vectors(3), DecodeConfig(steps=3)

    def picky(net, asks):
        if any(ask.sampling.temperature for ask in asks):
            raise RuntimeError("bug")
        return real(net, asks)

    pool = INVERTER.pool()
    one = pool.add(vectors[0], config)
    bad = pool.add(vectors[1], DecodeConfig(temperature=0.5))
    two = pool.add(vectors[2], config)
    monkeypatch.setattr(pool_module, "answer", picky)
    with pytest.raises(RuntimeError, match="bug"):
        pool.step()
    assert [ticket in pool for ticket in (one, bad, two)] == [True, False, True]
    steps = run(pool)
    agree(steps[one], list(INVERTER.stream(vectors[0], config)))
    agree(steps[two], list(INVERTER.stream(vectors[2], config)))


@pytest.mark.parametrize("extra", [{}, {"length": 5}, {"lengths": 2, "temperature": 0.8}, {"guidance": 1.5}])
def test_the_parts_of_n_best_give_what_invert_gives(extra):
    """All lengths and variants of two vectors in one pool, among others."""
    vectors, config = make_vectors(2), DecodeConfig(steps=4, n_best=3, **extra)
    pool = INVERTER.pool(capacity=100)
    pool.add(vectors[0])
    tickets = [[pool.add_part(part) for part in pool.parts(vector, config)] for vector in vectors]
    steps = run(pool)
    for mine, wanted in zip(tickets, INVERTER.invert(vectors, config), strict=True):
        found = best_of([steps[ticket][-1].inversion for ticket in mine], 3)
        assert same(found, wanted)
        assert [one.tokens for one in found.alternatives] == [one.tokens for one in wanted.alternatives]
        assert found.alternatives


def test_parts_need_places_too():
    pool = INVERTER.pool(capacity=1)
    first, second, *_ = pool.parts(make_vectors(1)[0], DecodeConfig(n_best=2))
    pool.add_part(first)
    with pytest.raises(PoolFull):
        pool.add_part(second)


@pytest.mark.parametrize("temperature", [1e-40, 1e-38, 9e-4])
def test_a_temperature_that_no_float_survives_is_refused(temperature):
    with pytest.raises(ConfigError, match=r"temperature is .*give 0"):
        DecodeConfig(temperature=temperature)


def test_a_draw_from_no_distribution_is_still_a_token():
    """NaN compares with nothing: the search would run past the end of the vocabulary."""
    from unembed.decode.head import _at_quantile

    assert _at_quantile(torch.full((2, 7), torch.nan), torch.tensor([0.0, 0.9]).double()).tolist() == [6, 6]


def test_the_lowest_temperature_is_nearly_none():
    vector = make_vectors(1)[0]
    drawn = INVERTER.invert(vector, temperature=1e-3)[0]
    assert drawn.tokens == INVERTER.invert(vector)[0].tokens
