"""The writer's beams: what they find, that the batch does not matter, and who is asked when no strategy is given."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.conftest import MAX_TOKENS, SPECIAL, make_inverter, make_net, make_vectors, make_writer, same
from unembed.decode import DecodeConfig, config, engine, write
from unembed.errors import ConfigError


@pytest.fixture(scope="module")
def inverter():
    return make_inverter(writes=True)


def judged(writer, vector, text):
    """The score of a text, computed from one whole pass; its words are among all words."""
    vectors = torch.from_numpy(vector[None])
    tokens = torch.tensor([text])
    told, heard, _ = writer.listen(vectors)
    log_p = writer.logits(writer(tokens, told), heard)[0].log_softmax(1)
    words = log_p[torch.arange(len(text)), tokens[0]]
    end = log_p[len(text), -1] if len(text) < MAX_TOKENS else 0.0
    said = writer.meanings[tokens[0]].sum(0)
    cosine = torch.cosine_similarity(said, vectors[0], dim=0)
    length = writer.base.length_logits(told.c)[0].log_softmax(0)[len(text)]
    return float(
        (words.sum() + end) / len(text) ** write.POWER + write.FORESIGHT * cosine + write.LENGTH * length
    ), words.exp()


@torch.inference_mode()
def test_a_text_has_the_score_and_confidence_that_one_whole_pass_gives_it():
    net = make_net().eval()
    writer, vectors = make_writer(net), make_vectors(5)
    for vector, texts in zip(vectors, write.write(writer, torch.from_numpy(vectors), 3, 4), strict=True):
        assert len(texts) == 4
        assert sorted(texts, key=lambda one: -one.score) == texts
        assert len({one.tokens for one in texts}) == 4
        for one in texts:
            score, words = judged(writer, vector, one.tokens)
            assert one.score == pytest.approx(score, abs=1e-4)
            assert np.allclose(one.confidence, words, atol=1e-4)
            assert not set(one.tokens) & set(SPECIAL)


@torch.inference_mode()
def test_beams_that_leave_nothing_out_find_the_best_of_all_texts(monkeypatch):
    """Of six words and at most three places every text can be tried."""
    net = make_net(2).eval()
    writer, vectors = make_writer(net), make_vectors(3)
    monkeypatch.setattr(write, "SHORTLIST", 6)
    monkeypatch.setattr(write, "PATIENCE", 99)
    writer.config = replace(writer.config, max_tokens=3)
    found = write.write(writer, torch.from_numpy(vectors), 6**3, 1)
    for vector, (best,) in zip(vectors, found, strict=True):
        given = torch.from_numpy(vector[None])
        told, heard, _ = writer.listen(given)
        words = net.logits(heard)[0].topk(6).indices.tolist()
        scores = {}
        for length in (1, 2, 3):
            for text in itertools.product(words, repeat=length):
                tokens = torch.tensor([text])
                logits = writer.logits(writer(tokens, told), heard)[0][:, [*words, -1]]
                log_p = logits.log_softmax(1)
                total = sum(log_p[k, words.index(word)] for k, word in enumerate(text))
                total += log_p[length, -1] if length < 3 else 0.0
                cosine = torch.cosine_similarity(writer.meanings[tokens[0]].sum(0), given[0], dim=0)
                chance = net.length_logits(told.c)[0].log_softmax(0)[length]
                scores[text] = float(total / length**write.POWER + write.FORESIGHT * cosine + write.LENGTH * chance)
        assert best.tokens == max(scores, key=scores.__getitem__)
        assert best.score == pytest.approx(max(scores.values()), abs=1e-4)


def test_neither_the_batch_nor_its_order_matters(inverter):
    vectors = make_vectors(9)
    together = inverter.invert(vectors, n_best=2)
    backwards = inverter.invert(vectors[::-1].copy(), n_best=2, batch_size=4)[::-1]
    alone = [inverter.invert(vector, n_best=2, batch_size=1)[0] for vector in vectors]
    for some in (backwards, alone):
        assert all(same(a, b) for a, b in zip(some, together, strict=True))
        assert all(same(a.alternatives[0], b.alternatives[0]) for a, b in zip(some, together, strict=True))


def test_who_watches_sees_words_come_from_the_left_and_gets_the_same_text(inverter):
    (vector,) = make_vectors(1, seed=4)
    *steps, last = inverter.stream(vector)
    for number, step in enumerate(steps, 1):
        assert step.step == number
        assert step.masked == tuple(range(number, len(step.tokens)))
        assert all(p > 0 for p in step.confidence[:number])
    assert last.masked == ()
    assert last.inversion == inverter.invert(vector)[0]


def test_in_a_pool_it_is_the_same_text_beside_those_that_are_denoised(inverter):
    vectors, pool = make_vectors(3, seed=5), inverter.pool(8)
    tickets = {pool.add(vector): vector for vector in vectors}
    denoised = pool.add(vectors[0], DecodeConfig(strategy="confidence"))
    found = {}
    while len(pool):
        found |= {ticket: step.inversion for ticket, step in pool.step() if step.inversion is not None}
    for ticket, vector in tickets.items():
        assert found[ticket] == inverter.invert(vector)[0]
    assert same(found[denoised], inverter.invert(vectors[0], strategy="confidence", lengths=1)[0])
    (part,) = pool.parts(vectors[0], DecodeConfig(n_best=3))
    pool.add_part(part)
    (step,) = [step for _, step in pool.step() if step.inversion is not None]
    assert step.inversion == inverter.invert(vectors[0], n_best=3)[0]


def test_the_likeliest_beam_alone_is_a_greedy_text(inverter, monkeypatch):
    monkeypatch.setattr(write, "STEER", 0.0)
    writer, vectors = inverter.artifact.writer, make_vectors(4, seed=6)
    for vector, (found, *_) in zip(vectors, write.write(writer, torch.from_numpy(vectors), 1, 1), strict=True):
        given = torch.from_numpy(vector[None])
        with torch.inference_mode():
            told, heard, _ = writer.listen(given)
            for place, token in enumerate(found.tokens):
                hidden = writer(torch.tensor([found.tokens[:place]], dtype=torch.long), told)
                assert int(writer.logits(hidden, heard)[0, -1, :-1].argmax()) == token


def test_without_a_strategy_the_writer_is_asked_where_there_is_one(inverter):
    (vector,), plain = make_vectors(1, seed=7), make_inverter()
    assert inverter.decoding().strategy == "writer"
    assert plain.decoding().strategy == "confidence"
    assert inverter.invert(vector) == inverter.invert(vector, strategy="writer")
    assert inverter.invert(vector) != inverter.invert(vector, strategy="confidence")
    assert plain.invert(vector) == plain.invert(vector, strategy="confidence")
    # Whoever gives a setting of the denoiser wants the denoiser.
    assert inverter.invert(vector, steps=4) == inverter.invert(vector, strategy="confidence", steps=4)
    assert len(inverter.invert(vector, length=5)[0].tokens) == 5
    with pytest.raises(ConfigError, match="steps"):
        inverter.invert(vector, strategy="writer", steps=4)
    with pytest.raises(ConfigError, match="--writer-of"):
        plain.invert(vector, strategy="writer")
    with pytest.raises(ConfigError, match="beams is 0"):
        DecodeConfig(beams=0)


def test_every_setting_is_either_the_writers_or_the_denoisers():
    shared = {"strategy", "beams", "echo", "imagine", "n_best", "seed", "precision", "lengths"}
    assert set(DecodeConfig.__dataclass_fields__) == {*config.OF_DENOISER, *shared}


def test_fast_and_best_are_those_of_the_net_that_decodes():
    assert config.fast(writer=True).resolved(True).strategy == "writer"
    assert config.best(writer=True).beams > DecodeConfig().beams > config.fast(writer=True).beams
    assert config.best(writer=True, echo=True).imagine > 0
    assert config.fast(writer=False).resolved(False).steps < DecodeConfig().steps


def test_memory_of_one_vector_more_is_that_of_one_vector(inverter):
    """Batches are cut: many vectors are not written at once."""
    seen = []
    writer = inverter.artifact.writer
    heard, writer.hear = writer.hear, lambda vectors: (seen.append(len(vectors)), heard(vectors))[1]
    try:
        list(engine.decode(writer.base, make_vectors(70), DecodeConfig(), writer=writer, batch_size=64))
    finally:
        writer.hear = heard
    assert max(seen) <= engine.WRITER_BATCH
    assert sum(seen) == 70


@pytest.fixture(scope="module")
def hearing():
    return make_inverter(hears=True)


EXACT = DecodeConfig(precision="fp32")


def test_an_echo_puts_its_cosine_in_the_place_of_the_surrogates(hearing):
    model, vectors = hearing.artifact, make_vectors(5)
    changed = 0
    for vector in vectors:
        count = DecodeConfig().beams // write.HEARD
        plain = hearing.invert(vector, EXACT, echo=False, n_best=count)[0]
        scores = {}
        for one in (plain, *plain.alternatives):
            tokens = torch.tensor([one.tokens])
            with torch.inference_mode():
                heard = float(model.echo(tokens)[0] @ torch.from_numpy(vector))
                said = torch.cosine_similarity(model.writer.meanings[tokens[0]].sum(0), torch.from_numpy(vector), dim=0)
            scores[one.tokens] = one.score + write.ECHO * heard - write.FORESIGHT * float(said)
        found = hearing.invert(vector, EXACT)[0]
        assert found.tokens == max(scores, key=scores.__getitem__)
        assert found.score == pytest.approx(max(scores.values()), abs=1e-3)
        changed += found.tokens != plain.tokens
    assert changed  # else nothing was judged


def test_with_an_echo_neither_the_batch_nor_its_order_nor_who_watches_matters(hearing):
    vectors, pool = make_vectors(9), hearing.pool(8)
    together = hearing.invert(vectors, EXACT, n_best=3)
    backwards = hearing.invert(vectors[::-1].copy(), EXACT, n_best=3, batch_size=4)[::-1]
    for a, b in zip(backwards, together, strict=True):
        assert same(a, b)
        assert all(same(*pair) for pair in zip(a.alternatives, b.alternatives, strict=True))
    *_, last = hearing.stream(vectors[0], EXACT)
    ticket = pool.add(vectors[0], EXACT)
    ((_, pooled),) = [(t, s.inversion) for t, s in pool.step() if s.inversion is not None and t == ticket]
    for other in (last.inversion, pooled):
        assert same(other, hearing.invert(vectors[0], EXACT)[0])


def test_texts_that_never_ended_are_no_candidates(hearing):
    """More texts are to be judged than there can be: what is kept is real."""
    found = hearing.invert(make_vectors(3), beams=1, n_best=50)
    for one in found:
        texts = [one, *one.alternatives]
        assert all(text.tokens for text in texts)
        assert len({text.tokens for text in texts}) == len(texts) <= MAX_TOKENS
