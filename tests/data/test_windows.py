from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unembed.data.text import decode
from unembed.data.windows import SPLITS, in_split, sentences, special_ids, split_of, text_hash, windows
from unembed.errors import DataError


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=12), min_size=1, max_size=6), st.data())
def test_case_and_space_never_move_a_text_to_another_split(words, data):
    text = " ".join(words)
    spaces = data.draw(st.sampled_from([" ", "  ", "\t", "\n", " \u00a0"]))
    # str.upper is not undone by casefold for a few letters (ŉ, İ); swapping ASCII case always is.
    other = "".join(c.swapcase() if c.isascii() else c for c in spaces.join(text.split(" ")))
    assert text_hash(other) == text_hash(text)
    assert split_of(text_hash(other)) == split_of(text_hash(text))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_in_split_is_split_of_for_many(hashes):
    array = np.array(hashes, dtype=np.uint64)
    for split in SPLITS:
        assert in_split(array, split).tolist() == [split_of(value) == split for value in hashes]
    assert in_split(array, "all").all()


def test_the_hash_is_the_same_for_ever():
    assert text_hash("Hello  World") == text_hash("hello world") == 0x50B1A332AA338687
    with pytest.raises(DataError, match="no split 'dev'"):
        in_split(np.zeros(1, dtype=np.uint64), "dev")


def test_sentences_end_at_punctuation():
    found = sentences('He said "go." Then he went! 你好。再见！')
    assert found == ['He said "go."', "Then he went!", "你好。", "再见！"]
    assert sentences("(It rained.) No end") == ["(It rained.)", "No end"]
    assert sentences("...") == ["..."]
    assert sentences(" ") == []


def test_a_window_is_what_its_tokens_decode_to(tokenizer):
    long = "The Parcel arrived - it's well-known. " + "word " * 50 + "."
    passages = [("a", long), ("b", "Ok."), ("b", "hi there you")]
    found = list(windows(passages, tokenizer, min_tokens=3, max_tokens=8))
    assert [window.source for window in found] == ["a", "a", "b"]
    for window in found:
        assert 3 <= len(window.tokens) <= 8
        assert window.text == decode(tokenizer, [window.tokens])[0]
        assert tuple(tokenizer.encode(window.text, add_special_tokens=False).ids) == window.tokens
        assert window.hash == text_hash(window.text)
        assert window.split == split_of(window.hash)


def test_special_tokens_are_not_text(tokenizer):
    assert special_ids(tokenizer) == {0, 100, 101, 102, 103}
    passages = [("a", "this is a [MASK] here."), ("a", "old persian 𐎠𐎡 is unknown."), ("a", "plain text is kept.")]
    assert [w.text for w in windows(passages, tokenizer, min_tokens=3, max_tokens=32)] == ["plain text is kept."]
