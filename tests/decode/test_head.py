"""The vocabulary read in parts: what comes out is that of the whole distribution."""

from dataclasses import replace

import pytest
import torch

from tests.decode.conftest import MASK, make_net
from unembed.decode import head
from unembed.decode.head import Wishes, read

PLACES = 11


@pytest.fixture
def question():
    """Places of every kind: plain, guided, penalised, drawn, drawn from a nucleus, judged, with entropy."""
    net, random = make_net(), torch.Generator().manual_seed(0)
    net.forbid(list(range(14, 28)))  # two whole parts of seven words
    vocabulary, width = net.config.vocab_size, net.config.width + net.reader.size
    hidden = torch.randn(PLACES, width, generator=random)
    hidden[3:7, net.config.width :] = hidden[3, net.config.width :]  # four places of one text
    guidance = torch.tensor([1, 1, 2, 1, 1, 1, 0.5, 1, 3, 1, 1.0])
    free = torch.randn(int((guidance != 1).sum()), width, generator=random)
    around = torch.randint(28, vocabulary, (PLACES, 6), generator=random)
    around[:, 3] = around[:, 2]  # a word that stands there twice
    around[:, 5] = MASK
    given = torch.full((PLACES,), -1)
    given[torch.tensor([3, 8])] = torch.tensor([30, vocabulary - 1])
    wishes = Wishes(
        guidance=guidance,
        temperature=torch.tensor([0, 0, 0, 0, 1, 0.7, 1.5, 0, 0, 0, 0.5]),
        top_p=torch.tensor([1, 1, 1, 1, 1, 0.6, 1, 1, 1, 1, 0.9]),
        penalty=torch.tensor([0, 3, 1, 0, 2, 0, 1, 0, 2, 4, 0.0]),
        entropy=torch.arange(PLACES) % 3 == 0,
        steered=torch.zeros(PLACES, dtype=torch.bool),
        given=given,
        u=torch.rand(PLACES, generator=random).double(),
    )
    return net, hidden, free, wishes, around


def by_the_book(net, hidden, free, wishes, around):
    """From all logits at once, place by place."""
    found, twins = [], iter(net.logits(free))
    for place, logits in enumerate(net.logits(hidden)):
        if wishes.guidance[place] != 1:
            without = next(twins)
            logits = torch.where(net.forbidden, logits, without + wishes.guidance[place] * (logits - without))
        for word in around[place].tolist():
            if word != MASK:
                logits[word] -= wishes.penalty[place]
        log_p = logits.log_softmax(0)
        token = int(log_p.argmax())
        if wishes.temperature[place] > 0:
            p, order = (logits / wishes.temperature[place]).softmax(0).double(), torch.arange(len(logits))
            if wishes.top_p[place] < 1:
                p, order = p.sort(descending=True, stable=True)
                p = p * (p.cumsum(0) - p < wishes.top_p[place])
            token = int(order[(p.cumsum(0) > wishes.u[place] * p.sum()).nonzero()[0, 0]])
        if wishes.given[place] >= 0:
            token = int(wishes.given[place])
        p = log_p.exp()
        entropy = -(p[p > 0] * log_p[p > 0]).sum() if wishes.entropy[place] else torch.tensor(0.0)
        found.append((token, log_p[token], entropy))
    tokens, log_p, entropy = zip(*found, strict=True)
    return torch.tensor(tokens), torch.stack(log_p), torch.stack(entropy)


@pytest.mark.parametrize(("words", "places"), [(7, 4), (64, 5), (10, 256), (1000, 256)])
def test_parts_give_what_the_whole_gives(question, monkeypatch, words, places):
    monkeypatch.setattr(head, "WORDS", words)
    monkeypatch.setattr(head, "PLACES", places)
    with torch.inference_mode():
        tokens, log_p, entropy = read(*question)
        expected = by_the_book(*question)
    assert tokens.tolist() == expected[0].tolist()
    assert torch.allclose(log_p, expected[1], atol=1e-5)
    assert torch.allclose(entropy, expected[2], atol=1e-5)
    assert (entropy > 0).tolist() == question[3].entropy.tolist()


def test_of_equals_the_first_word_is_chosen_whatever_part_it_is_in(question, monkeypatch):
    net, hidden, free, wishes, around = question
    monkeypatch.setattr(head, "WORDS", 7)
    with torch.inference_mode():
        net.embed.weight.zero_()
        net.reader.words.weight.zero_()
        net.bias.zero_()
        net.bias[torch.tensor([33, 40, 41])] = 2.0
        plain = Wishes(
            *(torch.full_like(hidden[:, 0], x) for x in (1, 0, 1, 0)),
            *2 * (hidden[:, 0] > 1e9,),
            wishes.given,
            wishes.u,
        )
        tokens, _, _ = read(net, hidden, free[:0], plain, around)
    assert set(tokens[wishes.given < 0].tolist()) == {33}


def test_no_part_of_the_vocabulary_is_larger_than_it_may_be(question, monkeypatch):
    net, *rest = question
    monkeypatch.setattr(head, "WORDS", 9)
    monkeypatch.setattr(head, "PLACES", 4)
    sizes, real = [], net.place_logits

    def watch(hidden, words):
        sizes.append((len(hidden), words))
        return real(hidden, words)

    monkeypatch.setattr(net, "place_logits", watch)
    with torch.inference_mode():
        read(net, *rest)
    assert max(rows for rows, _ in sizes) == 4
    assert max(words.stop - words.start for _, words in sizes) == 9
    assert {words.stop for _, words in sizes} == {*range(9, 64, 9), 64}


def test_a_place_that_is_weighed_and_not_pushed_gives_what_it_gave(question):
    """Of so small a vocabulary every word is weighed. Draws fall on other words, as these are in another order then."""
    net, hidden, free, wishes, around = question
    plain = read(net, hidden, free, wishes, around)
    steered = (torch.arange(PLACES) != 1) & (wishes.given < 0) & (wishes.temperature == 0)
    seen = []

    def weigh(logits, words):
        seen.append(words)
        return logits

    found = read(net, hidden, free, replace(wishes, steered=steered), around, weigh)
    assert seen[0].shape == (int(steered.sum()), net.config.vocab_size)
    assert torch.equal(found[0], plain[0])
    assert all(torch.allclose(new, old, atol=1e-5) for new, old in zip(found[1:], plain[1:], strict=True))


@pytest.mark.parametrize(("words", "places", "kept", "folds"), [(7, 4, 5, 3), (64, 256, 64, 16), (1000, 3, 20, 4)])
def test_the_likeliest_words_of_a_place_are_those_of_the_whole(question, monkeypatch, words, places, kept, folds):
    net, hidden, free, wishes, around = question
    wishes = replace(wishes, steered=wishes.given < 0, guidance=torch.ones(PLACES), penalty=torch.zeros(PLACES))
    for name, value in (("WORDS", words), ("PLACES", places), ("KEPT", kept), ("FOLDS", folds)):
        monkeypatch.setattr(head, name, value)
    seen = []
    with torch.inference_mode():
        read(net, hidden, free[:0], wishes, around, lambda *weighed: seen.append(weighed) or weighed[0])
        expected = net.logits(hidden[wishes.steered]).topk(kept, dim=1)
    ((logits, ids),) = seen
    assert torch.allclose(logits, expected.values, atol=1e-5)
    allowed = logits > -torch.inf  # the order of what no text may contain is no matter
    assert torch.equal(ids[allowed], expected.indices[allowed])
    assert ids.max() < net.config.vocab_size
