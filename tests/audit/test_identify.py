"""Which encoder, in which form: real MiniLM vectors of real sentences, and vectors of others that must stay unknown."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import unembed
from tests.audit.conftest import load_encoder, load_inverter
from tools import fingerprints as tool
from unembed.audit import fingerprint, forms
from unembed.audit.identify import Identity, identify, usable
from unembed.audit.stores.base import Loss, Sample
from unembed.cli import main
from unembed.errors import DataError, EncoderError
from unembed.inverter import Inverter
from unembed.measure.metrics import cosine

ROOT = Path(__file__).parents[2]
ROWS = 64


def pieces(step: int = 18) -> list[str]:
    """18 words each of the licence: a kind of text that the fingerprints were not made of, and that stays as it is."""
    words = (ROOT / "LICENSE").read_text().split()
    return [" ".join(words[start : start + 18]) for start in range(0, len(words) - 18, step)]


class Remembering:
    """MiniLM, which need not embed a text twice."""

    def __init__(self) -> None:
        self._real, self._seen = load_encoder("minilm"), {}

    def __getattr__(self, name):
        return getattr(self._real, name)

    def encode(self, texts):
        new = [text for text in dict.fromkeys(texts) if text not in self._seen]
        self._seen.update(zip(new, self._real.encode(new), strict=True))
        return np.stack([self._seen[text] for text in texts])


class RememberingInverter:
    """The shipped weights, which need not invert a vector twice: what round trips are compared with comes again."""

    def __init__(self) -> None:
        self._real, self._seen = load_inverter(None), {}

    def __getattr__(self, name):
        return getattr(self._real, name)

    def invert(self, vectors, **settings):
        keys = [(row.tobytes(), *sorted(settings.items())) for row in vectors]
        new = {key: row for row, key in enumerate(keys) if key not in self._seen}
        if new:
            self._seen.update(zip(new, self._real.invert(vectors[list(new.values())], **settings), strict=True))
        return [self._seen[key] for key in keys]


@pytest.fixture(scope="module")
def encoder():
    return Remembering()


@pytest.fixture(scope="module")
def inverter():
    return RememberingInverter()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [str(text) for text in np.random.default_rng(0).choice(pieces(), ROWS, replace=False)]


@pytest.fixture(scope="module")
def vectors(encoder, texts):
    return encoder.encode(texts)


def sample(vectors, texts=None) -> Sample:
    rows = np.asarray(vectors, dtype=np.float32)
    texts = list(texts) if texts is not None else [None] * len(rows)
    return Sample([str(i) for i in range(len(rows))], rows, texts, "float32", True, {}, None, ())


def absent(spec: str):
    raise EncoderError(f"no {spec} here")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def by_range(v):
    """As sentence-transformers quantises to uint8: each dimension from its smallest to its largest value."""
    low, high = v.min(0), v.max(0)
    return np.rint((v - low) / np.maximum((high - low) / 255, 1e-30)).clip(0, 255)


FORMS = {
    # what the store does to the vectors, then: dtype, dimensions, unit length, truncated
    "float32": (lambda v: v, "float32", 384, True, False),
    "float16": (lambda v: v.astype(np.float16), "float16", 384, True, False),
    "bfloat16": (lambda v: torch.from_numpy(v).bfloat16().float().numpy(), "bfloat16", 384, True, False),
    "raw": (lambda v: v * np.linspace(2, 9, len(v))[:, None], "float32", 384, False, False),
    "int8, one scale": (lambda v: np.rint(v / np.abs(v).max() * 127), "int8", 384, False, False),
    "int8 by vector": (lambda v: np.rint(v / np.abs(v).max(1)[:, None] * 127), "int8", 384, False, False),
    "int8 by dimension": (
        lambda v: np.rint(v / np.maximum(np.abs(v).max(0), 1e-30) * 127), "int8", 384, False, False,
    ),
    "int8 by range": (lambda v: by_range(v) - 128, "int8", 384, False, False),
    "uint8 by range": (by_range, "int8", 384, False, False),
    "bits 0 1": (lambda v: v > 0, "binary", 384, False, False),
    "bits -1 1": (lambda v: np.where(v > 0, 1, -1), "binary", 384, False, False),
    "packed bits": (lambda v: np.packbits(v > 0, axis=1), "binary", 384, False, False),
    "packed bits as int8": (lambda v: np.packbits(v > 0, axis=1).astype(int) - 128, "binary", 384, False, False),
    "cut to 256": (lambda v: unit(v[:, :256]), "float32", 256, True, True),
    "cut to 128, not scaled": (lambda v: v[:, :128], "float32", 128, False, True),
    "cut to 256, bits": (lambda v: v[:, :256] > 0, "binary", 256, False, True),
}  # fmt: skip


# Of fewer dimensions more vectors are needed: 8 were enough in 14 to 100 of 100 samples, 32 in 86 to 100.
SIZES = [(name, rows) for name in FORMS for rows in (8, 32, 64) if not FORMS[name][4] or rows >= 32]


@pytest.mark.parametrize(("name", "rows"), SIZES)
def test_the_fingerprint_knows_every_form(name, rows, vectors):
    store, dtype, dim, is_unit, truncated = FORMS[name]
    found = identify(sample(store(vectors[:rows])), encoder=absent)
    assert (found.encoder, found.sure, found.how) == ("minilm", "likely", "fingerprint")
    assert (found.form.dtype, found.form.dim, found.form.unit) == (dtype, dim, is_unit)
    assert found.form.truncated is truncated
    assert 0.5 < found.confidence < 1
    assert found.candidates[0][0] == "minilm"
    json.dumps(dataclasses.asdict(found))  # what the audit's log does with it


def static(encoder, texts):
    """Another encoder of 384 dimensions, and a near one: the mean of MiniLM's token embeddings."""
    table = encoder.weights["embeddings.word_embeddings.weight"].float().numpy()
    return unit(np.stack([table[encoder.tokenizer.encode(text).ids].mean(0) for text in texts]))


def strangers(encoder, texts, vectors) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    turn, _ = np.linalg.qr(rng.normal(size=(384, 384)))
    return {
        "static": static(encoder, texts),
        "random": unit(rng.normal(size=vectors.shape)),
        "rotated": vectors @ turn,
        "permuted": vectors[:, rng.permutation(384)],
        "mirrored": -vectors,
        "other dimensions": unit(rng.normal(size=(ROWS, 1536))),
    }


@pytest.mark.parametrize("rows", [32, 64])
def test_vectors_of_others_stay_unknown(rows, encoder, texts, vectors):
    for name, other in strangers(encoder, texts, vectors).items():
        for form in ("float32", "int8 by vector"):
            found = identify(sample(FORMS[form][0](other[:rows])), encoder=absent)
            assert (found.encoder, found.sure, found.how) == (None, "unknown", "none"), (name, form)
            assert found.confidence == 0
            assert "unembed train" in (found.advice or "")
            assert found.form.truncated is None


@pytest.mark.parametrize("name", FORMS)
def test_stored_text_makes_it_certain(name, vectors, texts, encoder):
    found = identify(sample(FORMS[name][0](vectors), texts), encoder=lambda _: encoder)
    assert (found.encoder, found.sure, found.how) == ("minilm", "certain", "text")
    assert "16 of 16 stored texts" in found.why[0]
    assert float(re.search(r"cosine (\S+);", found.why[0])[1]) > 0.98
    assert found.form.truncated is FORMS[name][4]


def test_few_vectors_with_text_are_enough(vectors, texts, encoder):
    assert identify(sample(vectors[:1], texts[:1]), encoder=lambda _: encoder).sure == "certain"
    found = identify(sample(vectors[:1]), encoder=lambda _: encoder)
    assert (found.encoder, found.candidates) == (None, ())
    assert "A fingerprint needs 8 different vectors." in found.why


def test_a_prefix_that_the_store_left_out_is_found(texts, encoder):
    stored = encoder.encode([f"passage: {text}" for text in texts[:20]])
    found = identify(sample(stored, texts[:20]), encoder=lambda _: encoder)
    assert found.sure == "certain"
    assert "behind 'passage: '" in found.why[0]


def test_texts_that_were_cut_make_it_likely_and_not_certain(vectors, texts, encoder):
    cut = [" ".join(text.split()[: math.ceil(len(text.split()) / 2)]) for text in texts]
    found = identify(sample(vectors[:7], cut[:7]), encoder=lambda _: encoder)  # too few for the fingerprint
    assert (found.encoder, found.sure, found.how) == ("minilm", "likely", "text")
    assert "longer or had a prefix" in found.why[0]
    some = [*cut[:32], *texts[32:]]
    found = identify(sample(vectors, some), encoder=lambda _: encoder)
    assert found.sure == "certain"
    assert "another part" in found.why[0]


def test_texts_of_other_documents_leave_it_to_the_fingerprint(vectors, texts, encoder):
    found = identify(sample(vectors[:32], texts[32:]), encoder=lambda _: encoder)
    assert (found.encoder, found.sure, found.how) == ("minilm", "likely", "fingerprint")
    assert any("do not give the vectors" in reason for reason in found.why)


def test_texts_in_another_order_are_noticed(vectors, texts, encoder):
    found = identify(sample(vectors, [*texts[1:], texts[0]]), encoder=lambda _: encoder)
    assert found.sure == "certain"
    assert "not in the same order" in found.why[0]


def test_text_beside_vectors_of_another_encoder_does_not_fool_it(vectors, texts, encoder):
    for name, other in strangers(encoder, texts, vectors).items():
        found = identify(sample(other, texts), encoder=lambda _: encoder)
        assert (found.encoder, found.sure) == (None, "unknown"), name


def test_what_the_stores_quantiser_lost_is_allowed_for(vectors, texts, encoder):
    step = 2 * np.abs(vectors).max() / 15  # four bits a number
    stored = sample(np.rint(vectors / step) * step, texts)
    kept = float(cosine(stored.vectors, vectors).mean())
    assert 0.95 < kept < 0.995
    assert identify(stored, encoder=lambda _: encoder).sure == "likely"
    told = dataclasses.replace(stored, loss=Loss(kept, exact=False, how="widths of the steps"))
    assert identify(told, encoder=lambda _: encoder).sure == "certain"


def test_an_encoder_that_cannot_be_loaded_is_named(vectors, texts):
    found = identify(sample(vectors, texts), encoder=absent)
    assert (found.encoder, found.how) == ("minilm", "fingerprint")
    assert "minilm could not be tried: no minilm here." in found.why


def test_what_the_owner_says_is_checked(vectors, texts, encoder):
    right = identify(sample(vectors, texts), told="minilm", encoder=lambda _: encoder)
    assert (right.encoder, right.sure, right.how) == ("minilm", "certain", "told")
    same = identify(sample(vectors, texts), told="sentence-transformers/all-MiniLM-L6-v2", encoder=lambda _: encoder)
    assert same == right
    wrong = identify(sample(static(encoder, texts), texts), told="minilm", encoder=lambda _: encoder)
    assert (wrong.encoder, wrong.sure, wrong.how) == ("minilm", "unknown", "told")
    assert wrong.confidence == 0
    unchecked = identify(sample(vectors, texts), told="openai:some-model", encoder=absent)
    assert (unchecked.encoder, unchecked.sure, unchecked.how) == ("openai:some-model", "likely", "told")
    assert "Nothing could be checked." in unchecked.why
    with pytest.raises(DataError, match="1536 dimensions, more than 'minilm' gives"):
        identify(sample(np.ones((9, 1536)) / 2), told="minilm")


def test_at_last_a_round_trip_tells(vectors, texts, encoder, inverter):
    found = identify(sample(vectors[:4]), inverter=inverter, encoder=lambda _: encoder)  # too few for a fingerprint
    assert (found.encoder, found.sure, found.how) == ("minilm", "likely", "round trip")
    assert "random vectors" in found.why[-1]
    found = identify(sample(static(encoder, texts[:4])), inverter=inverter, encoder=lambda _: encoder)
    assert (found.encoder, found.sure) == (None, "unknown")
    assert f"{inverter.artifact.info['data']['train texts']:,} pairs" in (found.advice or "")


@pytest.fixture(scope="module")
def relative(texts):
    """Vectors of MiniLM's first three layers: the axes are the same, and what they mean is not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unembed.data.encoders.minilm.LAYERS", 3)
        return unembed.encoder("minilm").encode(texts)


@pytest.mark.parametrize("name", ["int8 by range", "bits 0 1"])
def test_a_relative_that_shares_the_axes_is_told_by_the_round_trip(name, relative, vectors, encoder, inverter, tiny):
    store, here = FORMS[name][0], {"encoder": lambda _: encoder}
    assert identify(sample(store(relative)), **here).encoder == "minilm", "the fingerprint alone cannot tell"
    found = identify(sample(store(relative)), inverter=inverter, **here)
    assert (found.encoder, found.sure) == (None, "unknown")
    assert "another encoder that shares its axes" in " ".join(found.why)
    own = identify(sample(store(vectors)), inverter=inverter, **here)
    assert (own.encoder, own.sure, own.how) == ("minilm", "likely", "fingerprint")
    assert "come back with cosine" in " ".join(own.why)
    # One that brings nothing back cannot tell.
    untrained = identify(sample(store(vectors)), inverter=unembed.load(tiny), **here)
    assert (untrained.encoder, untrained.sure) == ("minilm", "likely")


def test_stored_texts_are_not_sent_to_a_service_unasked(vectors, texts, encoder, inverter):
    asked = []

    def make(spec):
        asked.append(spec)
        return encoder

    info = dataclasses.replace(inverter.encoder, spec="openai:some-model")
    other = Inverter(dataclasses.replace(inverter.artifact, encoder=info))
    found = identify(sample(vectors[:8] @ np.eye(384)[::-1], texts[:8]), inverter=other, encoder=make)
    assert asked == ["minilm"]
    assert "openai:some-model could not be tried" in " ".join(found.why)
    identify(sample(vectors[:8], texts[:8]), told="openai:some-model", encoder=make)
    assert asked == ["minilm", "openai:some-model"]


def known_as(name: str, vectors) -> tuple[np.ndarray, Identity]:
    stored = np.asarray(FORMS[name][0](vectors), dtype=np.float32)
    return stored, identify(sample(stored), encoder=absent)


@pytest.mark.parametrize(
    ("name", "least", "note"),
    [
        ("float16", 0.9999, None),
        ("raw", 0.9999, "unit length"),
        ("int8, one scale", 0.999, "divided by their norm"),
        ("int8 by vector", 0.999, "divided by their norm"),
        ("int8 by dimension", 0.985, "scaled by dimension"),
        ("uint8 by range", 0.82, "scaled by dimension"),
        ("bits 0 1", 0.77, "only the signs"),
        ("packed bits as int8", 0.77, "only the signs"),
        ("cut to 256", 0.82, "cut off"),
        ("cut to 256, bits", 0.66, "cut off"),
    ],
)
def test_what_is_stored_becomes_what_the_inverter_reads(name, least, note, vectors):
    ready, notes = usable(*known_as(name, vectors), 384)
    assert ready.shape == vectors.shape
    assert np.allclose(np.linalg.norm(ready, axis=1), 1, atol=1e-2)
    assert cosine(ready, vectors).mean() > least
    assert (note or "") in " ".join(notes)
    assert bool(notes) == (note is not None)


def test_completing_is_nearer_than_zeros(vectors):
    stored, identity = known_as("cut to 256", vectors)
    zeros = np.pad(stored, ((0, 0), (0, 128)))
    assert cosine(usable(stored, identity, 384)[0], vectors).mean() > cosine(zeros, vectors).mean() + 0.02


def test_what_cannot_be_inverted_is_refused_with_a_way_out(vectors):
    stored, identity = known_as("cut to 256", vectors)
    with pytest.raises(DataError, match="train an inverter for 256"):
        usable(stored, identity, 512)  # an inverter of another encoder
    with pytest.raises(DataError, match="choose"):
        usable(stored, identity, 128)
    few = dataclasses.replace(identity, form=dataclasses.replace(identity.form, dim=32))
    with pytest.raises(DataError, match="embed the texts again"):
        usable(stored[:, :32], few, 384)


def test_the_advice_is_a_command_that_works(vectors, texts, tmp_path, monkeypatch, capsys):
    advice = identify(sample(np.eye(40)), encoder=absent).advice
    assert advice is not None
    assert f"{100_000:,} pairs" in advice
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"text": texts, "vector": list(vectors)}), "pairs.parquet")
    encode, train = (shlex.split(part) for part in advice.split("vector: ")[1].split(" && "))
    assert main(encode[1:]) == 0
    assert main([*train[1:], "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["vector_dim"] == 384


def test_the_tool_makes_a_fingerprint_and_keeps_the_others(vectors, tmp_path, encoder, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "docs.txt").write_text("\n".join(pieces(9) * tool.EVERY))
    monkeypatch.setattr(tool.encoders, "load", lambda _: encoder)
    place = tmp_path / "fingerprints.json"
    place.write_text('{"encoders": [{"spec": "other"}]}')
    assert tool.main([str(tmp_path / "corpus"), "minilm"], place, texts=130) == 0
    other, entry = json.loads(place.read_text())["encoders"]
    assert other == {"spec": "other"}
    assert (entry["spec"], entry["texts"], entry["fingerprint"]) == ("minilm", 130, encoder.fingerprint)
    monkeypatch.setattr(fingerprint, "FILE", place)
    assert tool.main([]) == 2
    place.write_text(json.dumps({"encoders": [entry]}))
    made = fingerprint.known.__wrapped__()[0]
    assert fingerprint.match(vectors, made).score > 0.3
    assert fingerprint.match(np.random.default_rng(0).normal(size=(64, 384)).astype(np.float32), made).score < 0.1


def test_the_shipped_fingerprints_are_of_the_encoders_that_are_shipped(encoder):
    entries = {entry["spec"]: entry for entry in json.loads(fingerprint.FILE.read_text())["encoders"]}
    assert set(entries) == {"minilm", "all-mpnet-base-v2"}
    assert entries["minilm"]["fingerprint"] == encoder.fingerprint
    assert {len(entry["mean"]) for entry in entries.values()} == {384, 768}
    assert fingerprint.find("minilm").dead.nonzero()[0].tolist() == [127, 223, 319]
    for entry in entries.values():
        assert min(entry["unseen"].values()) > 0.2


def test_numbers_in_a_byte_and_bits_in_a_byte_are_told_apart_without_a_fingerprint():
    rng = np.random.default_rng(0)
    numbers = np.rint(rng.normal(scale=36, size=(200, 64))).clip(-128, 127).astype(np.float32)
    bits = np.packbits(rng.random((200, 512)) > 0.5, axis=1).astype(np.float32)
    assert [form.dtype for form in forms.readings(numbers)] == ["int8", "binary"]
    assert [(form.dtype, form.dim) for form in forms.readings(bits)] == [("binary", 512), ("int8", 64)]
