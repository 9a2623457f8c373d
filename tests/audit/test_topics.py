"""Topics straight from the vector."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.audit.conftest import build_topics
from tools.calibrate import auc, scored
from unembed.audit.topics import NEUTRAL, PRIOR, TOPICS, TopicModel, labelled, sentences
from unembed.errors import DataError

RESULTS = Path(__file__).parents[2] / "results" / "topics.json"


@pytest.fixture(scope="module")
def model(encoder):
    return build_topics(encoder)


@pytest.fixture(scope="module")
def checked(encoder, model):
    """Probabilities of the sentences that were not fitted on, and their topics."""
    texts, labels = labelled("check")
    return model.probabilities(encoder.encode(texts)), labels


def test_sentences_to_measure_on_are_not_fitted_on():
    fitted, checked = ({text.casefold() for text in labelled(part)[0]} for part in ("fit", "check"))
    assert not fitted & checked
    assert all(len(topic.fit) >= 18 and len(topic.check) >= 8 for topic in sentences().values())
    assert {"health", "finance", "legal", "employment", "politics", "religion", "sexuality", "minors"} <= set(TOPICS)
    assert NEUTRAL not in TOPICS


def test_unseen_sentences_of_each_topic_are_told_from_all_others(model, checked):
    p, labels = checked
    assert p.shape == (len(labels), len(TOPICS))
    for t, name in enumerate(model.names):
        assert auc(p[:, t], labels == name) > 0.95, name


def test_probabilities_are_calibrated_on_unseen_sentences(model, checked):
    p, labels = checked
    errors = [scored(p[:, t], labels == name)["calibration_error"] for t, name in enumerate(model.names)]
    assert max(errors) < 0.08
    neutral = p[labels == NEUTRAL]
    assert neutral.mean() < PRIOR
    assert (neutral > 0.5).mean() < 0.01


def test_length_of_the_vector_does_not_matter_and_its_dimension_does(encoder, model):
    vector = encoder.encode(["The doctor found a tumour."])
    assert np.allclose(model.probabilities(vector), model.probabilities(7 * vector))
    assert model.names[int(model.probabilities(vector)[0].argmax())] == "health"
    with pytest.raises(DataError, match="384 dimensions"):
        model.probabilities(vector[:, :100])


def test_vectors_of_no_text_are_on_no_topic(model):
    noise = np.random.default_rng(0).standard_normal((300, 384))
    assert (model.probabilities(noise) > 0.5).mean() < 0.01


def test_any_encoder_will_do(encoder):
    class Cut:
        """The first 128 dimensions, not of unit length."""

        name, dim, normalized, fingerprint = "cut", 128, False, ""

        def encode(self, texts):
            return 5 * encoder.encode(texts)[:, :128]

    model = TopicModel.build(Cut())
    texts, labels = labelled("check")
    p = model.probabilities(Cut().encode(texts))
    assert np.mean([auc(p[:, t], labels == name) for t, name in enumerate(model.names)]) > 0.93


def test_the_published_measurement_is_of_these_sentences():
    found = json.loads(RESULTS.read_text("utf-8"))
    assert set(found["own"]) == set(TOPICS)
    assert found["fitted_on"] == len(labelled("fit")[0])
    assert all(found["own"][name]["n"] == len(TOPICS[name].check) for name in TOPICS)
    assert found["prior"] == PRIOR
    assert all(one["auc"] > 0.95 for one in [*found["own"].values(), found["real"]["health"]])
