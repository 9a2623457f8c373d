"""Encoder feedback with the shipped weights and MiniLM: gradients, guidance, swaps, and what they gain."""

import json

import numpy as np
import pytest
import torch

import unembed
from unembed.cli import main
from unembed.decode.engine import inference
from unembed.decode.feedback import FeedbackConfig
from unembed.decode.feedback.refill import Blank, Filler
from unembed.decode.feedback.whitebox import Differentiable, Slopes

TEXTS = ["The cat sleeps on the warm roof.", "Heavy rain is expected tonight."]


@pytest.fixture(scope="module")
def inverter():
    return unembed.load()


@pytest.fixture(scope="module")
def encoder():
    return unembed.encoder("minilm")


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode(TEXTS)


def embedded(encoder, texts):
    ids = [encoder.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    words = torch.nn.utils.rnn.pad_sequence([encoder.word_embeddings[row] for row in ids], batch_first=True)
    return words.float(), torch.tensor([len(row) for row in ids])


def test_the_cosine_of_the_gradient_is_that_of_the_encoder(encoder, vectors):
    others = ["A dog sleeps.", "It may rain tonight, or so they say in the news."]
    cosines, gradient = encoder.cosine_gradient(*embedded(encoder, others), torch.from_numpy(vectors))
    real = (encoder.encode(others) * vectors).sum(1)
    assert cosines.numpy() == pytest.approx(real, abs=1e-3 if encoder.dtype == torch.bfloat16 else 1e-5)
    assert gradient[0, 4:].abs().max() == 0  # nothing depends on the padding


def test_the_gradient_is_the_slope_of_the_cosine(encoder, vectors):
    if encoder.dtype == torch.bfloat16:
        pytest.skip("too coarse for differences")
    words, lengths = embedded(encoder, TEXTS[::-1])
    targets = torch.from_numpy(vectors)
    _, gradient = encoder.cosine_gradient(words, lengths, targets)
    step = 1e-2 * gradient / gradient.norm()
    there, _ = encoder.cosine_gradient(words + step, lengths, targets)
    back, _ = encoder.cosine_gradient(words - step, lengths, targets)
    assert ((there - back) / 2).sum().item() == pytest.approx((gradient * step).sum().item(), rel=0.02)


def test_a_token_of_the_inverter_is_the_same_word_for_the_encoder(inverter, encoder):
    assert isinstance(encoder, Differentiable)
    slopes = Slopes(encoder, inverter.artifact.tokenizer, 103)
    for word in ("cat", "##ing", "tonight"):
        mine, own = (t.token_to_id(word) for t in (inverter.artifact.tokenizer, encoder.tokenizer))
        assert torch.equal(slopes.words[mine], encoder.word_embeddings[own].float())


def test_the_gradient_knows_the_missing_word(inverter, encoder, vectors):
    """Of some words for the last place of a text, the one that belongs there is predicted to gain most."""
    tokenizer = inverter.artifact.tokenizer
    slopes = Slopes(encoder, tokenizer, 103)
    tokens = tokenizer.encode("the cat sleeps on the warm moon.", add_special_tokens=False).ids
    (slope,) = slopes.at_texts([tokens], torch.from_numpy(vectors[:1]))
    words = ["roof", "moon", "law", "sugar", "army"]
    gains = [float(slope[6] @ slopes.words[tokenizer.token_to_id(word)]) for word in words]
    assert np.argmax(gains) == 0


def test_guidance_brings_a_denoising_nearer_to_the_vector(inverter, encoder, vectors):
    net, tokenizer = inverter.artifact.net, inverter.artifact.tokenizer
    filler = Filler(net, 2.5, Slopes(encoder, tokenizer, 103))
    cosines = []
    for scale in (0.0, 100.0):
        with inference(net, "fp32"):
            c = net.condition(torch.from_numpy(vectors))
            blanks = [Blank([103] * 8, [0.0] * 8, one, torch.zeros(6, 8), 1.0) for one in c]
            for blank, vector in zip(blanks, vectors, strict=True):
                blank.guide, blank.target = scale, torch.from_numpy(vector)
            filler.fill(blanks, 6)
        assert [blank.gradients for blank in blanks] == [6 if scale else 0] * 2
        assert all(103 not in blank.tokens for blank in blanks)
        texts = [tokenizer.decode(blank.tokens) for blank in blanks]
        cosines.append(float((encoder.encode(texts) * vectors).sum(1).mean()))
    assert 1 - cosines[1] < 0.85 * (1 - cosines[0])


@pytest.mark.parametrize("gradients", ["off", "all"])
def test_feedback_pays_and_keeps_its_budget(inverter, encoder, vectors, gradients):
    plain = encoder.encode([one.text for one in inverter.invert(vectors)])
    found = inverter.invert(vectors, encoder=encoder, feedback=FeedbackConfig(budget=40, gradients=gradients))
    for one, vector, before in zip(found, vectors, plain, strict=True):
        assert one.queries + one.gradients <= 40
        met_at_once = float(before @ vector) > 1 - 1e-5  # steering alone finds some of these texts to the letter
        assert (one.gradients > 0) == (gradients == "all" and not met_at_once)
        assert one.cosine >= float(before @ vector) - 1e-5
    assert np.mean([one.cosine for one in found]) > float((plain * vectors).sum(1).mean()) + 0.02


def test_round_trip_with_feedback_on_the_command_line(capsys):
    assert main(["invert", TEXTS[0], "--feedback", "--budget", "12", "--gradients", "off", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["encoder_calls"] == told["inversion"]["queries"] <= 12
    assert told["encoder_calls"] == 12 or told["cosine"] > 1 - 1e-5  # found before that
    assert told["cosine"] == pytest.approx(told["inversion"]["cosine"], abs=1e-3)
    assert main(["invert", TEXTS[0], "--budget", "12"]) == 2
    assert "--feedback" in capsys.readouterr().err
