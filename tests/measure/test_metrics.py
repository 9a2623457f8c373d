from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from unembed.measure.metrics import (
    Bleu,
    bleu_of,
    cosine,
    exact_match,
    length_error,
    mean_of,
    perplexity_of,
    rouge_l,
    score_texts,
    token_accuracy,
    token_f1,
    words,
)

ids = st.lists(st.integers(0, 9), max_size=12)
some_words = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ".", ",", "dog", "ran"])
sentence = st.lists(some_words, max_size=9).map(" ".join)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 9, 4], 3 / 4),
        ([1, 2, 3, 4], [1, 2], 2 / 4),  # a missing end costs
        ([1, 2], [1, 2, 3, 4, 5], 2 / 5),  # and so does a surplus
        ([1, 2, 3], [9, 1, 2, 3], 0.0),  # positional: shifted by one, nothing is right
        ([], [1], 0.0),
        ([], [], 1.0),
    ],
)
def test_token_accuracy(a: list[int], b: list[int], expected: float) -> None:
    assert token_accuracy(a, b) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([1, 2, 3], [3, 2, 1], 1.0),
        ([1, 1, 2], [1, 2, 2], 2 / 3),  # overlap {1, 2}
        ([1, 2, 3, 4], [1, 1, 1, 1], 1 / 4),  # repetition is not rewarded
        ([1, 2, 3, 4], [1, 2], 2 * 1.0 * 0.5 / 1.5),
        ([1], [2], 0.0),
        ([], [], 1.0),
        ([1], [], 0.0),
    ],
)
def test_token_f1(a: list[int], b: list[int], expected: float) -> None:
    assert token_f1(a, b) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("police killed the gunman", "police kill the gunman", 3 / 4),  # Lin 2004, its first example
        ("police killed the gunman", "the gunman kill police", 2 / 4),
        ("The cat, sat.", "the cat sat", 1.0),  # case and punctuation do not count
        ("a b c d", "a d", 2 * 1.0 * 0.5 / 1.5),
        ("a", "", 0.0),
        ("!", "!", 1.0),
        ("!", "?", 1.0),
    ],
)
def test_rouge_l(a: str, b: str, expected: float) -> None:
    assert rouge_l(a, b) == pytest.approx(expected)


def test_words_of_other_scripts() -> None:
    assert words("Größe: 3_000 тест") == ["größe", "3", "000", "тест"]


def test_length_error() -> None:
    assert length_error([1, 2, 3], [1]) == length_error([1], [1, 2, 3]) == 2.0


def test_exact_match_is_of_the_text_to_the_letter() -> None:
    assert exact_match("the cat.", "the cat.") == 1.0
    assert exact_match("the cat.", "the cat .") == 0.0


def test_cosine() -> None:
    a = np.array([[1, 0], [1, 1], [0, 0], [3, 4]], dtype=np.float16)
    b = np.array([[0, 2], [1, 0], [1, 0], [6, 8]], dtype=np.float32)
    assert cosine(a, b) == pytest.approx([0, 0.5**0.5, 0, 1])


@settings(deadline=None)
@given(ids, ids)
def test_token_metrics_are_symmetric_shares_and_1_only_for_equals(a: list[int], b: list[int]) -> None:
    for metric in (token_accuracy, token_f1):
        assert 0 <= metric(a, b) == metric(b, a) <= 1
        assert metric(a, a) == 1
    assert (token_accuracy(a, b) == 1) == (a == b)
    assert (token_f1(a, b) == 1) == (sorted(a) == sorted(b))
    assert token_accuracy(a, b) <= token_f1(a, b) + 1e-12  # order can only cost


@settings(deadline=None)
@given(sentence, sentence)
def test_rouge_l_is_a_share(a: str, b: str) -> None:
    assert 0 <= rouge_l(a, b) == rouge_l(b, a) <= 1
    assert rouge_l(a, a) == 1


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=8))
def test_bleu_of_summed_counts_is_the_corpus_bleu_of_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    references, recovered = [list(side) for side in zip(*pairs, strict=True)]
    ours = bleu_of(Bleu().counts(references, recovered).sum(0))
    assert float(ours) == pytest.approx(BLEU().corpus_score(recovered, [references]).score, abs=1e-9)


def test_bleu_of_a_known_pair_and_its_signature() -> None:
    # 1-grams 5/6, 2-grams 3/5, 3-grams 2/4, 4-grams 1/3, no brevity penalty.
    bleu = Bleu()
    counts = bleu.counts(["the cat sat on the mat"], ["the cat sat on a mat"])
    assert counts[0].tolist() == [6, 6, 5, 3, 2, 1, 6, 5, 4, 3]
    assert float(bleu_of(counts[0])) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert "nrefs:1" in bleu.signature
    assert "tok:13a" in bleu.signature
    assert "smooth:exp" in bleu.signature
    assert "version:" in bleu.signature


def test_bleu_is_vectorised_over_leading_axes() -> None:
    counts = Bleu().counts(["a b c d e", "x y z w", "a"], ["a b c d", "x y z w v", "b"])
    together = bleu_of(counts[:, None])
    assert together.shape == (3, 1)
    assert together[:, 0] == pytest.approx([float(bleu_of(row)) for row in counts])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(sentence, sentence), min_size=1, max_size=8), st.randoms())
def test_the_order_of_texts_changes_nothing(pairs: list[tuple[str, str]], random: object) -> None:
    bleu = Bleu()
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def totals(some: list[tuple[str, str]]) -> dict[str, list[float]]:
        a, b = [list(side) for side in zip(*some, strict=True)]
        tokens = [[ord(c) for c in text] for text in a], [[ord(c) for c in text] for text in b]
        return {name: column.sum(0).tolist() for name, column in score_texts(a, b, *tokens, bleu).items()}

    before, after = totals(pairs), totals(shuffled)
    assert before.keys() == {
        "token_accuracy",
        "exact_match",
        "token_f1",
        "rouge_l",
        "bleu",
        "bleu_text",
        "length_error",
    }
    for name, sums in before.items():
        assert sums == pytest.approx(after[name])


def test_perfect_recovery_scores_perfectly() -> None:
    texts = ["the cat sat on the mat", "a dog ran under the road"]
    tokens = [[1, 2, 3, 4, 1, 5], [6, 7, 8, 9, 1, 2]]
    columns = score_texts(texts, texts, tokens, tokens, Bleu())
    assert float(bleu_of(columns.pop("bleu").sum(0))) == pytest.approx(100)
    assert mean_of(columns.pop("bleu_text").sum(0)) == pytest.approx(100)
    assert mean_of(columns.pop("length_error").sum(0)) == 0
    assert all(mean_of(column.sum(0)) == 1 for column in columns.values())


def test_bleu_by_text_is_the_mean_of_what_sacrebleu_says_of_each_text() -> None:
    from sacrebleu.metrics.bleu import BLEU

    references = [
        "the cat sat on the mat today",
        "a dog ran under the old road",
        "too short",
        "nothing of this is there",
    ]
    recovered = ["the cat sat on a mat today", "the old dog ran under a road", "too short", "quite other words instead"]
    own = [
        BLEU().corpus_score([text], [[reference]]).score for text, reference in zip(recovered, references, strict=True)
    ]
    tokens: list[list[int]] = [[1]] * 4
    found = mean_of(score_texts(references, recovered, tokens, tokens, Bleu())["bleu_text"].sum(0))
    assert found == pytest.approx(np.mean(own))
    assert own[0] > own[1] > own[2] == own[3] == 0


def test_perplexity_weighs_by_tokens_and_means_of_nothing_are_undefined() -> None:
    sums = np.array([[2 * np.log(3) + 1 * np.log(5), 3.0], [0.0, 0.0]])
    assert perplexity_of(sums)[0] == pytest.approx((9 * 5) ** (1 / 3))
    assert np.isnan(perplexity_of(sums)[1])
