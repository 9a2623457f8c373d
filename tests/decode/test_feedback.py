"""Encoder feedback: its mechanics, on a small encoder that counts and fails. `test_feedback_real.py` has MiniLM."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.conftest import DIM, MASK, MAX_TOKENS, VOCABULARY, make_inverter, make_vectors
from unembed.cli import search as cli
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig
from unembed.decode.feedback.propose import CORRECTIONS, FLIPS, KINDS, Hypothesis, change, merge
from unembed.decode.feedback.search import Proposal, Search
from unembed.errors import CheckpointError, ConfigError, EncoderError

BUDGET = 30


class Small:
    """A real encoder of the small kind: every word has a vector, turned by its place in the text."""

    name, dim, normalized, fingerprint = "small", DIM, True, ""

    def __init__(self):
        self.calls: list[list[str]] = []

    def encode(self, texts):
        self.calls.append(list(texts))
        return np.stack([self.one(text) for text in texts])

    def one(self, text):
        total = np.full(DIM, 1e-3)
        for place, word in enumerate(text.split()):
            seed = sum(ord(letter) * 31**k for k, letter in enumerate(word))
            total += np.random.default_rng(seed).normal(size=DIM) * (1 + 0.1 * np.sin(place + np.arange(DIM)))
        return (total / np.linalg.norm(total)).astype(np.float32)

    @property
    def asked(self):
        return [text for call in self.calls for text in call]


class Failing(Small):
    """Fails at its nth call, in its own way."""

    def __init__(self, at, how):
        super().__init__()
        self.at, self.how = at, how

    def encode(self, texts):
        rows = super().encode(texts)
        if len(self.calls) < self.at:
            return rows
        if isinstance(self.how, BaseException):
            raise self.how
        return self.how(rows)


@pytest.fixture(scope="module")
def inverter():
    return make_inverter()


def invert(inverter, vectors, encoder, config=None, **settings):
    return inverter.invert(vectors, config, encoder=encoder, feedback=FeedbackConfig(**{"budget": BUDGET, **settings}))


def cosines(encoder, texts, vectors):
    return [float(encoder.one(text) @ vector) for text, vector in zip(texts, vectors, strict=True)]


def test_feedback_finds_nearer_texts_and_never_worse_ones(inverter):
    vectors, encoder = make_vectors(8), Small()
    plain = cosines(encoder, [one.text for one in inverter.invert(vectors)], vectors)
    found = invert(inverter, vectors, encoder)
    now = cosines(encoder, [one.text for one in found], vectors)
    assert [one.cosine for one in found] == pytest.approx(now, abs=1e-6)
    assert all(a >= b - 1e-6 for a, b in zip(now, plain, strict=True))
    assert np.mean(now) > np.mean(plain) + 0.1
    # However much likely words count, the cosine does not fall below that of the answer without feedback.
    prefers = invert(inverter, vectors, Small(), likelihood_weight=1e3)
    assert all(one.cosine >= b - 1e-6 for one, b in zip(prefers, plain, strict=True))


@pytest.mark.parametrize("budget", [1, 2, 3, 30])
def test_the_budget_is_kept_exactly_and_no_text_is_asked_twice(inverter, budget):
    vectors, encoder = make_vectors(3), Small()
    found = invert(inverter, vectors, encoder, budget=budget)
    assert [one.queries for one in found] == [budget] * 3
    assert [one.gradients for one in found] == [0] * 3
    assert len(encoder.asked) == len(set(encoder.asked)) <= 3 * budget


def test_all_vectors_of_a_batch_share_the_calls(inverter):
    vectors, together, alone = make_vectors(3), Small(), [Small() for _ in range(3)]
    invert(inverter, vectors, together)
    for vector, encoder in zip(vectors, alone, strict=True):
        invert(inverter, vector, encoder)
    calls = [len(encoder.calls) for encoder in alone]
    # In a batch of another shape the last bits differ and a search may take another turn: so not to the call.
    assert max(calls) - 3 <= len(together.calls) <= max(calls) + 3
    assert len(together.calls) < 0.6 * sum(calls)


def test_the_same_seed_gives_the_same_texts_and_another_one_others(inverter):
    vectors = make_vectors(4)
    first, again = (invert(inverter, vectors, Small(), seed=1) for _ in range(2))
    assert first == again
    assert [one.text for one in invert(inverter, vectors, Small(), seed=2)] != [one.text for one in first]


def test_the_order_of_the_vectors_does_not_matter(inverter):
    vectors = make_vectors(4)
    texts = [one.text for one in invert(inverter, vectors, Small())]
    assert [one.text for one in invert(inverter, vectors[::-1], Small())] == texts[::-1]


def test_it_stops_as_soon_as_the_vector_is_met(inverter):
    encoder = Small()
    (answer,) = inverter.invert(make_vectors(1))
    vector = make_vectors(1)

    class Agrees(Small):
        """The answer without feedback is the text of this vector."""

        def one(self, text):
            return vector[0] if text == answer.text else encoder.one(text)

    (found,) = invert(inverter, vector, Agrees())
    assert (found.text, found.queries) == (answer.text, 1)
    assert found.cosine == pytest.approx(1)


def nan(rows):
    return np.full_like(rows, np.nan)


def narrow(rows):
    return rows[:, :3]


@pytest.mark.parametrize(
    "how", [EncoderError("quota used up"), RuntimeError("connection lost"), TimeoutError(), nan, narrow]
)
@pytest.mark.parametrize("batch", [64, 2])
def test_an_encoder_that_fails_half_way_loses_nothing_that_was_found(inverter, how, batch, caplog):
    vectors = make_vectors(5)
    failing = Failing(5, how)
    found = invert(inverter, vectors, failing, batch=batch)
    heard = [text for call in failing.calls[:4] for text in call]
    assert len(found) == 5
    assert "ended early" in caplog.text
    for vector, one in zip(vectors, found, strict=True):
        assert one.note or one.queries == BUDGET
        if one.cosine is not None:  # the best text for which there was an answer
            best = max(heard, key=lambda text: float(failing.one(text) @ vector))
            assert one.cosine <= float(failing.one(best) @ vector) + 1e-6
            assert one.text in heard
    begun = [one for one in found if one.cosine is not None]
    assert len(begun) == (5 if batch == 64 else 2)
    assert all(one.text for one in found)
    assert "note" in found[-1].to_dict()


def test_single_texts_without_a_usable_vector_are_passed_over(inverter):
    def some(rows):
        rows[1::2] = np.nan  # never all of a call: that ends a search
        return rows

    found = invert(inverter, make_vectors(3), Failing(2, some))
    assert all(np.isfinite(one.cosine) and one.queries == BUDGET and not one.note for one in found)


def test_a_first_text_without_a_usable_vector_ends_its_search_alone(inverter):
    def first(rows):
        if len(rows) == 3:
            rows[0] = np.nan
        return rows

    alone, *others = invert(inverter, make_vectors(3), Failing(1, first))
    assert alone.text == inverter.invert(make_vectors(3))[0].text
    assert (alone.cosine, alone.queries) == (None, 1)
    assert "no usable vector" in alone.note
    assert all(one.queries == BUDGET and not one.note for one in others)


def test_better_answers_are_told_on_the_way(inverter):
    told = {0: [], 1: []}
    feedback = FeedbackConfig(budget=BUDGET, likelihood_weight=0.0)
    found = dict(
        inverter.search(
            make_vectors(2), Small(), feedback=feedback, improved=lambda row, better: told[row].append(better)
        )
    )
    for row, answers in told.items():
        assert [one.cosine for one in answers] == sorted(one.cosine for one in answers)
        assert (answers[0].queries, answers[-1].text) == (1, found[row].text)
        assert len({one.text for one in answers}) == len(answers) > 1


def test_no_vectors_give_no_texts(inverter):
    assert invert(inverter, np.empty((0, DIM), np.float32), Small()) == []


def test_an_encoder_that_never_answers_is_an_error(inverter):
    with pytest.raises(EncoderError, match="quota"):
        invert(inverter, make_vectors(2), Failing(1, EncoderError("quota used up")))


def test_an_interrupt_hands_out_the_best_so_far_and_then_is_raised(inverter):
    vectors, found = make_vectors(3), {}
    plain = invert(inverter, vectors, Small(), budget=1)
    stopped = inverter.search(vectors, Failing(4, KeyboardInterrupt()), feedback=FeedbackConfig(budget=BUDGET))
    with pytest.raises(KeyboardInterrupt):
        found.update(stopped)
    assert sorted(found) == [0, 1, 2]
    assert all(found[row].cosine >= plain[row].cosine and "interrupted" in found[row].note for row in found)


def test_results_come_as_they_are_done_with_progress(inverter):
    told = []
    feedback = FeedbackConfig(budget=BUDGET, batch=2)
    rows = []
    for row, _ in inverter.search(
        make_vectors(4), Small(), feedback=feedback, progress=lambda *spent: told.append(spent)
    ):
        rows.append((row, told[-1][0]))
    assert sorted(row for row, _ in rows) == [0, 1, 2, 3]
    assert rows[0][1] <= 2 * BUDGET < rows[-1][1] == 4 * BUDGET
    assert {total for _, total in told} == {4 * BUDGET}
    assert [spent for spent, _ in told] == sorted(spent for spent, _ in told)


def test_alternatives_are_the_next_best_and_the_dictionary_has_new_keys_only_with_feedback(inverter):
    found = inverter.invert(make_vectors(1), encoder=Small(), budget=BUDGET, n_best=3)[0]
    ranked = [found, *found.alternatives]
    assert len({one.text for one in ranked}) == len(ranked) == 3
    assert {"cosine", "queries", "gradients"} <= found.to_dict().keys()
    assert not {"cosine", "queries", "gradients", "note"} & inverter.invert(make_vectors(1))[0].to_dict().keys()


def test_settings_that_make_no_sense_are_refused(inverter):
    vectors = make_vectors(1)
    with pytest.raises(ConfigError, match="encoder"):
        inverter.invert(vectors, budget=10)
    for bad in ({"budget": 0}, {"temperature": 0.0}, {"gradients": "some"}, {"overshoot": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            FeedbackConfig(**bad)
    with pytest.raises(ConfigError, match="has none"):
        invert(inverter, vectors, Small(), gradients="all")
    other = Small()
    other.dim = DIM + 1
    with pytest.raises(CheckpointError, match="dimensions"):
        invert(inverter, vectors, other)


def test_a_file_of_vectors_with_feedback_goes_on_after_a_failure(inverter, tmp_path):
    vectors, feedback = make_vectors(6), FeedbackConfig(budget=10, batch=2)
    np.save(tmp_path / "v.npy", vectors)

    def write(name, encoder):
        for _ in inverter.invert_file(tmp_path / "v.npy", tmp_path / name, encoder=encoder, feedback=feedback):
            pass
        return (tmp_path / name).read_text()

    with pytest.raises(EncoderError):
        write("a.jsonl", Failing(6, RuntimeError("gone")))
    again = Small()
    assert write("a.jsonl", again) == write("b.jsonl", Small())
    assert len(again.asked) == 4 * 10  # the first two rows were kept


def hypothesis_of(tokens):
    vector = np.eye(DIM, dtype=np.float32)[0]
    return Hypothesis(tuple(tokens), tuple(0.5 for _ in tokens), " ".join(map(str, tokens)), vector, 0.5, "start")


@given(
    tokens=st.lists(st.integers(5, VOCABULARY - 1), min_size=1, max_size=MAX_TOKENS),
    kind=st.sampled_from(sorted({**KINDS, **CORRECTIONS, **FLIPS})),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_a_change_is_a_text_that_can_be_written(tokens, kind, seed):
    parent = hypothesis_of(tokens)
    if seed % 2:  # with a gradient, which chooses among orders
        parent.fit = np.random.default_rng(seed).normal(size=(len(tokens), len(tokens)))
    draft = change(parent, kind, MASK, MAX_TOKENS, np.random.default_rng(seed))
    assert 1 <= len(draft.tokens) == len(draft.origin) <= MAX_TOKENS
    for token, origin in zip(draft.tokens, draft.origin, strict=True):
        assert token == MASK if origin < 0 else token in (MASK, tokens[origin])
    assert all(0 <= place < len(tokens) for place in draft.aligned)
    if kind in ("move", "swap") and len(tokens) > 2:
        assert sorted(draft.tokens) == sorted(tokens)


def test_a_gradient_chooses_the_order_that_fits_better():
    parent, rng = hypothesis_of([7, 6, 8, 9]), np.random.default_rng(0)
    parent.fit = np.eye(4)[[1, 0, 2, 3]]  # the second token belongs to the first place, and the first to the second
    assert change(parent, "swap", MASK, MAX_TOKENS, rng).tokens == [6, 7, 8, 9]


def test_a_flip_takes_what_promises_most_and_without_a_gradient_it_is_a_mask():
    parent, rng = hypothesis_of([7, 6, 8]), np.random.default_rng(0)
    promise = np.full((3, 2), -50.0, dtype=np.float32)
    promise[1, 1] = 50
    parent.flips = (np.array([20, 21]), promise)
    assert change(parent, "flip", MASK, MAX_TOKENS, rng).tokens == [7, 21, 8]
    parent.flips = None
    assert change(parent, "flip", MASK, MAX_TOKENS, rng).tokens.count(MASK) == 1


def test_good_changes_at_different_places_are_merged():
    parent = hypothesis_of([5, 6, 7, 8])
    children = [hypothesis_of(tokens) for tokens in ([5, 9, 7, 8], [5, 6, 7, 10], [5, 11, 7, 8], [5, 6, 7])]
    for child, cosine in zip(children, (0.7, 0.6, 0.65, 0.9), strict=True):
        child.cosine = cosine
    assert merge(parent, children)[0] == [5, 9, 7, 10]  # of two at one place the better; other lengths cannot be
    assert merge(parent, children[:1]) is None
    assert parent.tokens == (5, 6, 7, 8)


@given(
    rounds=st.lists(st.lists(st.floats(-1, 0.999), max_size=8), min_size=1, max_size=6),
    place=st.integers(0, 40),
    sure=st.floats(1e-9, 1),
    weight=st.floats(0, 10),
    size=st.integers(1, 4),
)
@settings(max_examples=100, deadline=None)
def test_the_true_text_once_asked_about_is_never_dropped(rounds, place, sure, weight, size):
    """Whatever else is proposed, before or after, and however unlikely the words of the true text are."""
    target = np.eye(DIM, dtype=np.float32)[0]
    search = Search(target, 1000, np.random.default_rng(0), 1e-6, size, weight, DIM)
    vectors, proposals = {"true": target}, []
    for number, some in enumerate(rounds):
        proposals.append([])
        for k, cosine in enumerate(some):
            text = f"{number} {k}"
            vectors[text] = np.float32([cosine, np.sqrt(1 - cosine**2), *[0] * (DIM - 2)])
            proposals[-1].append(Proposal((number, k), (1.0, 1.0), text, "few"))
    here = proposals[place % len(proposals)]
    here.insert(place % (len(here) + 1), Proposal((9,), (sure,), "true", "few"))
    for some in proposals:
        search.take(search.admit(some), vectors)
    assert search.best()[0].text == "true"
    assert search.met
    assert search.done


def test_decoding_settings_reach_the_search(inverter):
    (found,) = inverter.invert(make_vectors(1), DecodeConfig(length=3), encoder=Small(), budget=1)
    assert len(found.tokens) == 3


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_the_command_line_prints_results_as_they_are_done_and_keeps_them_when_interrupted(inverter, tmp_path, capsys):
    np.save(tmp_path / "v.npy", make_vectors(5))
    feedback = FeedbackConfig(budget=BUDGET, batch=2)

    def print_all(encoder, json):
        cli.every(inverter, encoder, str(tmp_path / "v.npy"), None, DecodeConfig(), feedback, 64, json)

    print_all(Small(), False)
    texts = lines(capsys)
    print_all(Small(), True)
    rows = [json.loads(line) for line in lines(capsys)]
    assert [one["text"] for one in sorted(rows, key=lambda one: one["row"])] == texts
    with pytest.raises(KeyboardInterrupt):
        print_all(Failing(3, KeyboardInterrupt()), False)
    assert len(lines(capsys)) == 2  # the batch at work, as it stood
    found, error = cli.one(inverter, Failing(3, RuntimeError("gone")), make_vectors(1), DecodeConfig(), feedback)
    assert found.cosine is not None
    assert "gone" in str(error)


def test_what_an_api_will_be_sent_is_said_before(capsys):
    api = Small()
    cli.announce(api, 320, 10, 32)
    assert not capsys.readouterr().err  # a local encoder costs nothing
    api.name = "openai:small"
    cli.announce(api, 320, 10, 32)
    cli.announce(api, 320, None, 32, price=0.13)
    told = capsys.readouterr().err.splitlines()
    assert "3,200" in told[0]
    assert "102,400" in told[1]
    assert "--price" in told[1]
    assert "320 for each vector" in told[2]
    assert "0.0013 at 0.13 a million" in told[3]  # 10,240 tokens
