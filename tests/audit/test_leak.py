"""What came back of each vector, measured and estimated."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import unembed
from benchmarks.encode import sentences
from tests.audit.conftest import made_up_calibration
from tools import calibrate
from unembed.audit import calibration, leak, topics
from unembed.audit.calibration import Calibration
from unembed.data.shards import file_sha256
from unembed.decode import DecodeConfig
from unembed.errors import CheckpointError, ConfigError, DataError
from unembed.measure.metrics import cosine

TEXTS = [
    "The parcel will arrive on Tuesday morning.",
    "She was diagnosed with diabetes last spring.",
    "We study the flow of water around a cylinder.",
    "Mr Smith wants his money back, and he wants it now.",
    None,
    "word " * 60 + "end",
]


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode([text or "It was raining when we came home." for text in TEXTS])


@pytest.fixture(scope="module")
def shipped():
    found = Calibration.load(unembed.SHIPPED)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def some():
    return made_up_calibration()


@pytest.fixture(scope="module")
def recovered(inverter, vectors, encoder, some):
    return leak.recover(inverter, vectors, TEXTS, encoder=encoder, calibration=some)


def made_up(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of which the first tells the truth, with an error that grows."""
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((n, 3))
    truth = 0.4 + 0.12 * table[:, 0]
    return table, np.clip(truth + rng.standard_normal(n) * (0.02 + 0.1 * truth), 0, 1)


def test_every_vector_has_its_text_scores_and_interval(inverter, vectors, recovered, encoder):
    assert [one.text for one in recovered] == [one.text for one in inverter.invert(vectors)]
    again = encoder.encode([one.text for one in recovered])
    assert np.allclose([one.cosine for one in recovered], cosine(again, vectors), atol=1e-5)
    for one, text in zip(recovered, TEXTS, strict=True):
        assert 0 <= one.low <= one.estimate <= one.high <= 1
        assert (one.truth is None) == (text is None)
        if one.truth is not None:
            assert set(one.truth) == {"exact_match", "token_f1", "rouge_l", "cosine"}
    json.dumps([one.truth for one in recovered], allow_nan=False)


def test_a_long_text_is_scored_in_full(inverter, recovered):
    assert leak.longer_than_window(inverter, TEXTS) == 1
    # 61 tokens are stored and at most 32 can come back.
    assert recovered[-1].truth["token_f1"] <= 2 * 32 / (61 + 32)


def test_truth_is_of_the_text_as_the_tokenizer_writes_it(inverter, encoder):
    text = "The Parcel, it's HERE!"
    tokenizer = inverter.artifact.tokenizer
    same = replace(inverter.invert(encoder.encode([text]))[0], text="the parcel, it's here!")
    found = leak.truth(tokenizer, [text], [same], None, None)
    assert found == [{"exact_match": 1.0, "token_f1": 1.0, "rouge_l": 1.0}]
    other = leak.truth(tokenizer, [text], [replace(same, text="nothing alike")], None, None)[0]
    assert (other["exact_match"], other["token_f1"], other["rouge_l"]) == (0, 0, 0)


def test_without_encoder_and_without_calibration(inverter, vectors, some):
    alone = leak.recover(inverter, vectors[:2], TEXTS[:2], encoder=None, calibration=some)
    assert all(one.cosine is None and "cosine" not in one.truth and one.estimate is not None for one in alone)
    bare = leak.recover(inverter, vectors[:1], [None], encoder=None, calibration=None)[0]
    assert (bare.estimate, bare.low, bare.high, bare.truth) == (None, None, None, None)
    assert leak.recover(inverter, vectors[:0], [], encoder=None, calibration=None) == []
    with pytest.raises(DataError, match="2 texts for 1 vectors"):
        leak.recover(inverter, vectors[:1], TEXTS[:2], encoder=None, calibration=None)


def test_the_shipped_estimate_is_right_on_the_half_it_was_not_fitted_on(shipped):
    for fit in (shipped.alone, shipped.with_encoder):
        assert fit.checked >= 200
        assert 0.91 <= fit.coverage <= 0.985
        assert abs(fit.bias_of_mean) < 0.03
        assert fit.correlation > 0.5
        assert sum(point.n for point in fit.curve) == fit.checked
        # Of eight points, hardly one lies outside the interval of what was observed, and none is far off.
        assert all(abs(point.predicted - point.observed) < 0.08 for point in fit.curve)
    # The encoder tells more than the surrogate foresees; the interval, made of tails of 300 texts, need not be so.
    assert shipped.with_encoder.correlation > shipped.alone.correlation
    assert shipped.with_encoder.error < shipped.alone.error
    assert shipped.with_encoder.width < 1.05 * shipped.alone.width
    assert len(shipped.curve) == len(shipped.with_encoder.curve)
    assert (unembed.SHIPPED / calibration.FILE).stat().st_size < 12_000


def test_calibration_of_other_weights_or_of_another_format_is_refused(tmp_path, some):
    assert Calibration.load(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    some.save(tmp_path / calibration.FILE)
    with pytest.raises(CheckpointError, match=r"other weights.*tools/calibrate.py"):
        Calibration.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        Calibration.load(tmp_path)
    for content, message in (("{", "not JSON"), ("[]", "not a group"), ('{"weights": "x"}', "lacks the key")):
        (tmp_path / calibration.FILE).write_text(content)
        with pytest.raises(CheckpointError, match=message):
            Calibration.load(tmp_path)
    replace(some, format=99).save(tmp_path / calibration.FILE)
    with pytest.raises(CheckpointError, match="format 99"):
        Calibration.load(tmp_path)


@pytest.mark.parametrize("name", ["surrogate", "writer"])
def test_calibration_with_another_surrogate_or_writer_is_refused(tmp_path, some, name):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / f"{name}.safetensors").write_bytes(b"steers")
    made = replace(
        some,
        weights=file_sha256(tmp_path / "model.safetensors"),
        **calibration.beside(tmp_path),
    )
    made.save(tmp_path / calibration.FILE)
    assert getattr(Calibration.load(tmp_path), name) == getattr(made, name) != ""  # the numbers are rounded on disk
    for change in (lambda path: path.write_bytes(b"steers elsewhere"), Path.unlink):
        change(tmp_path / f"{name}.safetensors")
        with pytest.raises(CheckpointError, match="other weights"):
            Calibration.load(tmp_path)


def test_other_settings_of_decoding_are_refused(inverter, vectors, some):
    with pytest.raises(ConfigError, match="steps 4 instead of 8"):
        leak.recover(inverter, vectors, TEXTS, encoder=None, calibration=some, config=DecodeConfig(steps=4))
    some.check(DecodeConfig("writer", seed=5, precision="bf16"))


def test_a_setting_that_is_younger_than_the_calibration_was_at_its_default(some):
    older = replace(some, decode={key: value for key, value in some.decode.items() if key != "guidance"})
    older.check(DecodeConfig("writer"))
    with pytest.raises(ConfigError, match=r"guidance 2\.0 instead of 1\.0"):
        older.check(DecodeConfig("writer", guidance=2.0))
    newer = replace(some, decode={**some.decode, "drawn": 0})
    with pytest.raises(ConfigError, match=r"drawn \(no such setting\) instead of 0"):
        newer.check(DecodeConfig("writer"))


def test_what_was_saved_is_what_is_loaded(tmp_path, some):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    mine = replace(some, weights=file_sha256(tmp_path / "model.safetensors"))
    mine.save(tmp_path / calibration.FILE)
    assert asdict(Calibration.load(tmp_path)) == calibration.rounded(asdict(mine))


def test_the_interval_covers_what_it_says_and_widens_where_errors_are_larger():
    covered = []
    for seed in range(10):
        table, truth = made_up(seed=seed)
        fit = calibration.fit(table, truth, seed)
        covered.append(fit.coverage)
        assert fit.correlation > 0.8
    assert 0.93 < np.mean(covered) < 0.975
    value, low, high = fit.interval(np.array([[-2.0, 0, 0], [3.0, 0, 0]])).T
    assert value[0] < value[1]
    assert (high - low)[0] < (high - low)[1]


def test_features_that_tell_nothing_give_the_mean_and_a_wide_interval():
    rng = np.random.default_rng(0)
    fit = calibration.fit(rng.standard_normal((600, 3)), rng.uniform(0, 1, 600), 0)
    assert fit.width > 0.85
    assert abs(fit.correlation) < 0.2
    assert np.ptp(fit.estimate(rng.standard_normal((100, 3)))) < 0.25


def test_too_few_texts_are_refused():
    with pytest.raises(DataError, match="at least 160"):
        calibration.fit(*made_up(100), 0)


def test_an_empty_recovery_has_no_cosine_to_speak_of(encoder):
    found = leak.embed(encoder, ["", "some words"])
    assert not found[0].any()
    assert found[1].any()


def test_the_tool_says_what_is_missing(tmp_path, capsys):
    assert calibrate.main([str(tmp_path / "gone")]) == 2
    assert f"{tmp_path / 'gone'}" in capsys.readouterr().err
    (tmp_path / "few.txt").write_text("A single sentence is not enough for that.\n")
    assert calibrate.main([str(tmp_path / "few.txt")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_command_calibrates_new_weights(tiny, tmp_path, capsys):
    """From plain texts to a calibration that the audit takes, and not before."""
    home = shutil.copytree(tiny, tmp_path / "inverter")
    made_up_calibration().save(home / calibration.FILE)
    assert Calibration.fitting(home, DecodeConfig("confidence"))[0] is None
    command = [str(sentences(25_000, tmp_path)), "--inverter", str(home), "-n", "200"]
    assert calibrate.main([*command, "--results", str(tmp_path)]) == 0
    found, why = Calibration.fitting(home, DecodeConfig("confidence"))
    assert why is None
    assert (found.n, found.split, found.alone.checked) == (200, "validation", 100)
    shown = capsys.readouterr().out
    assert f"coverage {found.with_encoder.coverage:.3f}" in shown
    assert json.loads((tmp_path / "calibration.json").read_text())["weights"] == found.weights
    assert set(json.loads((tmp_path / "topics.json").read_text())["own"]) == set(topics.TOPICS)


def test_the_published_measurement_is_of_the_shipped_calibration(shipped):
    found = json.loads((calibrate.ROOT / "results" / "calibration.json").read_text("utf-8"))
    assert found["weights"] == shipped.weights
    assert found["with_encoder"]["coverage"] == shipped.with_encoder.coverage
    assert sum(one["n"] for one in found["alone"]["by_source"].values()) == shipped.alone.checked
