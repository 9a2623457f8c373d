"""One contract for all strategies: built-in ones, and those that others add."""

import itertools
from importlib.metadata import EntryPoint

import pytest
import torch

from tests.decode.conftest import MASK, SPECIAL, make_vectors, result_of, same
from unembed.decode import DecodeConfig, engine, strategies
from unembed.decode.strategies.base import Canvas, Prediction, highest, lowest, quota, surest_claims
from unembed.errors import ConfigError

ALL = strategies.BUILT_IN
VARIED = {"temperature": 0.9, "top_p": 0.9, "guidance": 1.7, "n_best": 2, "lengths": 2}


class Oracle:
    """Predicts token 10 + position; it is the surer the further right, and counts what it was asked."""

    mask_id = MASK

    def __init__(self, n, length):
        self.shape = (n, length)
        self.passes = torch.zeros(n, dtype=torch.long)
        self.asked = []
        self._generator = torch.Generator().manual_seed(0)

    def uniform(self):
        return torch.rand(self.shape, generator=self._generator)

    def predict(self, tokens, at, *, entropy=False):
        assert (tokens[at] == MASK).all(), "only masked positions are predicted"
        self.passes += at.any(1)
        self.asked.append(at.clone())
        yield from ()  # it needs no forward pass
        places = torch.arange(self.shape[1]).expand(self.shape)
        sure = (places + 1) / (self.shape[1] + 1)
        return Prediction(10 + places, sure, 1 - sure)


def last_of(strategy, n, length, **settings):
    batch = Oracle(n, length)
    config = DecodeConfig(strategy=strategy, **settings)
    return batch, list(strategies.load(strategy)(batch, config))


@pytest.mark.parametrize("strategy", ALL)
def test_no_mask_is_left_behind_for_any_steps_and_length(strategy):
    for steps in range(1, 41):
        for length in {1, 32, steps * 7 % 32 + 1}:
            _, states = last_of(strategy, 2, length, steps=steps)
            assert 1 <= len(states) <= steps
            assert [state.step for state in states] == list(range(1, len(states) + 1))
            assert torch.equal(states[-1].tokens, (10 + torch.arange(length)).expand(2, length))
            for state in states:
                masked = state.tokens == MASK
                assert (state.confidence[masked] == 0).all()
                assert ((state.confidence[~masked] > 0) & (state.confidence <= 1)[~masked]).all()


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("settings", [{"remask_share": 1.0, "refine_share": 1.0}, {"remask_share": 0.0},
                                      {"remask_threshold": 1.0}, {"remask_threshold": 0.0, "entropy_bound": 0.0},
                                      {"refine_share": 0.0, "entropy_bound": 1e9}])  # fmt: skip
def test_extreme_settings_leave_no_mask_either(strategy, settings):
    for steps, length in itertools.product((1, 2, 3, 7), (1, 5)):
        _, states = last_of(strategy, 1, length, steps=steps, **settings)
        assert not (states[-1].tokens == MASK).any()


def test_sequential_goes_left_to_right_and_asks_for_nothing_else():
    batch, states = last_of("sequential", 1, 5, steps=32)
    assert [at[0].nonzero().tolist() for at in batch.asked] == [[[i]] for i in range(5)]
    assert [int((state.tokens == MASK).sum()) for state in states] == [4, 3, 2, 1, 0]


def test_confidence_takes_the_most_certain_first():
    _, states = last_of("confidence", 1, 6, steps=3)
    assert (states[0].tokens[0] != MASK).tolist() == [False] * 4 + [True] * 2


def test_one_step_reveals_a_token_where_it_is_surest():
    """Positions 0 to 2 all want token 7; position 3 wants another, less surely."""
    tokens, sure = torch.tensor([[7, 7, 7, 9]]), torch.tensor([[0.5, 0.9, 0.8, 0.1]])
    prediction = Prediction(tokens, sure, 1 - sure)
    allowed = torch.tensor([[True, True, True, True]])
    assert surest_claims(prediction, allowed).tolist() == [[False, True, False, True]]
    allowed[0, 1] = False
    assert surest_claims(prediction, allowed).tolist() == [[False, False, True, True]]

    class Stubborn(Oracle):
        def predict(self, tokens, at, *, entropy=False):
            yield from super().predict(tokens, at)
            return prediction

    for distinct, first in ((True, [MASK, 7, MASK, 9]), (False, [MASK, 7, 7, MASK])):
        states = strategies.load("confidence")(Stubborn(1, 4), DecodeConfig(steps=2, distinct=distinct))
        assert next(states).tokens.tolist() == [first]


def test_entropy_takes_as_many_as_the_bound_allows():
    _, all_at_once = last_of("entropy", 1, 8, steps=8, entropy_bound=100.0)
    _, one_by_one = last_of("entropy", 1, 8, steps=8, entropy_bound=0.0)
    _, between = last_of("entropy", 1, 8, steps=8, entropy_bound=1.0)
    assert (len(all_at_once), len(one_by_one)) == (1, 8)
    # Entropies from the right: 1/9, 2/9, ...; the sum without the largest is 0, 1/9, 3/9, 6/9, 10/9.
    assert int((between[0].tokens != MASK).sum()) == 4


def test_euler_reveals_about_an_equal_share_each_step():
    _, states = last_of("euler", 400, 16, steps=4)
    shares = [float((state.tokens != MASK).float().mean()) for state in states]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1.0], abs=0.03)


def test_remask_takes_back_the_least_confident_share_or_those_below_the_threshold():
    batch = Oracle(1, 20)
    canvas = Canvas(batch)
    everywhere = torch.ones(1, 20, dtype=torch.bool)
    canvas.reveal(everywhere, result_of(batch.predict(canvas.tokens, everywhere)))
    from unembed.decode.strategies.remask import doubtful

    assert doubtful(canvas, DecodeConfig(strategy="remask")).nonzero()[:, 1].tolist() == [0]  # 5 % of 20
    assert doubtful(canvas, DecodeConfig(remask_share=0.2)).nonzero()[:, 1].tolist() == [0, 1, 2, 3]
    assert doubtful(canvas, DecodeConfig(remask_threshold=3.5 / 21)).nonzero()[:, 1].tolist() == [0, 1, 2]


def test_two_stage_decodes_its_least_confident_part_anew():
    batch, _ = last_of("two-stage", 1, 10, steps=15, refine_share=0.3)
    again = torch.stack(batch.asked[10:]).any(0)[0]
    assert len(batch.asked) > 10
    assert again.nonzero()[:, 0].tolist() == [0, 1, 2]


def test_highest_and_lowest_take_from_the_allowed_and_prefer_the_left_in_ties():
    values = torch.tensor([[3.0, 1.0, 3.0, 2.0]])
    allowed = torch.tensor([[True, True, True, False]])
    assert highest(values, allowed, torch.tensor([1])).tolist() == [[True, False, False, False]]
    assert lowest(values, allowed, torch.tensor([2])).tolist() == [[True, True, False, False]]
    assert highest(values, allowed, torch.tensor([9])).tolist() == allowed.tolist()
    assert quota(torch.ones(1, 7, dtype=torch.bool), 3).tolist() == [3]


# The same contract with the real network behind it.


def all_same(found, expected):
    pairs = zip(found, expected, strict=True)
    return all(same(a, b) for some, others in pairs for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("strategy", ALL)
def test_results_do_not_depend_on_batch_size_or_order(net, strategy):
    vectors = make_vectors(17)
    for settings in ({}, VARIED):
        config = DecodeConfig(strategy=strategy, steps=4, **settings)
        expected = list(engine.decode(net, vectors, config, batch_size=64))
        for batch_size in (1, 3, 16):
            assert all_same(engine.decode(net, vectors, config, batch_size=batch_size), expected)
        order = torch.randperm(17, generator=torch.Generator().manual_seed(1)).numpy()
        assert all_same(engine.decode(net, vectors[order], config, batch_size=5), [expected[i] for i in order])
        assert all_same(engine.decode(net, vectors[6:7], config), expected[6:7])


@pytest.mark.parametrize("strategy", ALL)
def test_no_special_token_and_proper_confidences(net, strategy):
    config = DecodeConfig(strategy=strategy, temperature=3.0, steps=5, lengths=4, n_best=4, guidance=2.0)
    for candidates in engine.decode(net, make_vectors(5), config):
        for candidate in candidates:
            assert not set(candidate.tokens) & set(SPECIAL)
            assert len(candidate.tokens) == len(candidate.confidence)
            assert all(0 < p <= 1 for p in candidate.confidence)


@pytest.mark.parametrize("strategy", ALL)
def test_the_seed_decides_draws_and_nothing_else(net, strategy):
    vectors = make_vectors(6)

    def texts(**settings):
        config = DecodeConfig(strategy=strategy, steps=4, **settings)
        return [[c.tokens for c in candidates] for candidates in engine.decode(net, vectors, config)]

    assert texts(seed=1) == texts(seed=2)
    assert texts(temperature=2.0, seed=1) == texts(temperature=2.0, seed=1)
    assert texts(temperature=2.0, seed=1) != texts(temperature=2.0, seed=2)


# The registry.


def test_names_are_known_and_unknown_ones_refused():
    assert set(ALL) == {"sequential", "euler", "remask", "two-stage", "confidence", "entropy"}
    with pytest.raises(ConfigError, match="choose one of auto, writer, sequential"):
        DecodeConfig(strategy="beam")
    with pytest.raises(ConfigError, match="no strategy named 'beam'"):
        strategies.load("beam")


def decode(batch, config):
    """A strategy of a third party: everything at once."""
    canvas = Canvas(batch)
    canvas.reveal(canvas.masked, (yield from batch.predict(canvas.tokens, canvas.masked)))
    yield canvas.state(1)


def test_third_parties_add_a_strategy_by_an_entry_point(net, monkeypatch):
    point = EntryPoint("at-once", f"{__name__}:decode", strategies.GROUP)
    monkeypatch.setattr(strategies, "entry_points", lambda group: [point] if group == strategies.GROUP else [])
    strategies._third_party.cache_clear()
    try:
        config = DecodeConfig(strategy="at-once", lengths=1)
        assert [c[0].steps for c in engine.decode(net, make_vectors(3), config)] == [1, 1, 1]
    finally:
        strategies._third_party.cache_clear()
