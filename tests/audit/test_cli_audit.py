"""`unembed audit` and `unembed report` as a stranger meets them, on real stores with planted personal data."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import signal
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.audit.conftest import PLANTED, REAL, TEXTS, made_up_calibration, without_times
from tests.audit.stores.conftest import Rows, fill, fill_faiss, hashes, pg_execute, pg_uri  # noqa: F401 (a fixture)
from unembed.audit.calibration import Calibration
from unembed.audit.log import NAME, Log
from unembed.audit.run import REPORT, SUMMARY
from unembed.audit.stores import open_store
from unembed.cli import main
from unembed.data.shards import file_sha256

pytestmark = pytest.mark.usefixtures("warm")
KINDS = ("faiss-flat", "qdrant", "chroma", "lancedb", "milvus", "pg-vector")


def write_parquet(path, vectors, texts=TEXTS):
    columns = {"id": list(range(len(vectors))), "vector": [list(map(float, row)) for row in vectors]}
    pq.write_table(pa.table(columns | ({"text": texts} if texts else {})), path)
    return path


@pytest.fixture(scope="module")
def parquet(vectors, tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("parquet") / "store.parquet", vectors)


@pytest.fixture(scope="module")
def shipped(parquet, tmp_path_factory):
    """An audit with the shipped weights: its folder, and what was printed."""
    folder, shown = tmp_path_factory.mktemp("shipped") / "audit", io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(["audit", str(parquet), "-o", str(folder)]) == 0
    return folder, shown.getvalue()


def texts_of(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


# --- what a person gets -------------------------------------------------------------------------------------------


def test_the_whole_audit(shipped):
    folder, shown = shipped
    summary = json.loads((folder / SUMMARY).read_text())
    verdict = summary["verdict"]
    assert re.match(r"From a vector alone, \d+ % \[\d+, \d+\] of the words of a text came back\.\n", shown)
    assert verdict["sentence"] in shown
    assert "minilm, for certain" in shown
    assert shown.splitlines()[-1].endswith(str(folder / REPORT))
    # What the shipped weights reach on easy sentences, and what they reach on wrong pairs.
    assert verdict["token_f1"]["value"] > 0.25 > verdict["chance"]
    assert summary["recovery"]["vector_cosine"]["value"] > 0.5 > summary["controls"]["shuffled"]["cosine"]
    assert summary["personal"]["kinds"]["EMAIL"]["stored"] == 1
    assert summary["encoder"]["how"] == "text"
    assert len(summary["examples"]) == 8


def test_personal_data_is_covered_everywhere(shipped):
    folder, shown = shipped
    for name, text in {**texts_of(folder), "terminal": shown}.items():
        for value in PLANTED.values():
            assert value not in text, name
        assert "anna" not in text.lower(), name
    assert "[EMAIL]" in (folder / REPORT).read_text()


def test_reveal_shows_it_and_warns(parquet, tiny, tmp_path, capsys):
    assert main(["audit", str(parquet), "-o", str(tmp_path / "a"), "--inverter", tiny, "--reveal"]) == 0
    assert "personal data as it is" in capsys.readouterr().err
    page = (tmp_path / "a" / REPORT).read_text()
    assert any(value in page for value in PLANTED.values())
    assert "made with <code>--reveal</code>" in page
    assert " --reveal" in json.loads((tmp_path / "a" / SUMMARY).read_text())["command"]


def test_report_is_made_again_from_the_log(shipped, tmp_path, capsys):
    folder, shown = shipped
    (tmp_path / NAME).write_bytes((folder / NAME).read_bytes())
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == shown.splitlines()[0]
    for name in (SUMMARY, REPORT):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((folder / SUMMARY).read_text())


def test_feedback_is_measured_on_the_same_rows(parquet, tiny, tmp_path, capsys):
    command = ["audit", str(parquet), "-o", str(tmp_path / "a"), "--inverter", tiny, "--sample", "3", "--feedback", "1"]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "a" / SUMMARY).read_text())["feedback"]
    assert found["n"] == 1
    assert 0 < found["queries"] <= 320
    assert found["cosine"]["value"] > found["cosine_without"]["value"]
    assert f"With the encoder asked up to {found['queries']} times a vector, on 1 rows" in shown
    assert f"up to {found['queries']} times" in (tmp_path / "a" / REPORT).read_text()


@pytest.mark.parametrize(("limit", "code"), [("0", 1), ("1", 0)])
def test_fail_above_sets_the_exit_code(parquet, tmp_path, capsys, limit, code):
    command = ["audit", str(parquet), "-o", str(tmp_path / "a"), "--sample", "2", "--json"]
    assert main([*command, "--fail-above", limit]) == code
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    assert summary == json.loads((tmp_path / "a" / SUMMARY).read_text())
    assert ("above the 0 of --fail-above" in shown.err) == bool(code)
    assert summary["store"]["sampled"] == 2


# --- every store --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(encoder):
    """Real texts, half of them of unseen sources, with planted personal data."""
    texts = TEXTS[: len(PLANTED)] + REAL
    return Rows(list(encoder.encode(texts)), texts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_store_is_audited_and_not_changed(kind, real, tiny, tmp_path, capsys, request):
    (tmp_path / "store").mkdir()
    rows = real
    place = fill(kind, tmp_path / "store", rows, lambda: request.getfixturevalue("pg_uri"))
    before = hashes(place.path) if place.path else {}
    options = [("--table", place.options.table), ("--column", place.options.column), ("--texts", place.options.texts)]
    given = [str(word) for option, value in options if value is not None for word in (option, value)]
    assert main(["audit", place.spec, *given, "-o", str(tmp_path / "a"), "--inverter", tiny, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["store"]["sampled"] == summary["store"]["with_text"] == len(real.texts)
    assert summary["encoder"]["encoder"] == "minilm"
    assert summary["encoder"]["sure"] == "certain"
    assert {kind: summary["personal"]["kinds"][kind]["stored"] for kind in PLANTED} == dict.fromkeys(PLANTED, 1)
    assert summary["recovery"]["kind"] == "measured"
    assert before == (hashes(place.path) if place.path else {})


@pytest.mark.parametrize(("kind", "kept"), [("HNSW16", None), ("IVF2,Flat", None), ("SQ8", 0.999), ("PQ48x2", 0.5)])
def test_what_quantisation_lost_is_measured_and_said(kind, kept, real, tiny, tmp_path, capsys):
    place = fill_faiss(kind)(tmp_path, real)
    command = ["audit", place.spec, "--texts", str(place.options.texts), "--inverter", tiny, "--sample", "12"]
    assert main([*command, "-o", str(tmp_path / "a"), "--encoder", "minilm", "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["store"]["loss"]
    page = unescape((tmp_path / "a" / REPORT).read_text())
    assert ("The store keeps quantised vectors" in page) == (kept is not None)
    if kept is None:
        assert loss is None
        return
    with open_store(place.spec) as store:
        sample = store.sample(12, 0)
    true = np.stack([real.vectors[int(name)] for name in sample.ids])
    cosine = float(((true * sample.vectors).sum(1) / np.linalg.norm(sample.vectors, axis=1)).mean())
    assert loss["cosine"] == pytest.approx(cosine, abs=0.03)
    assert kept < loss["cosine"] < 1
    assert f"cosine {loss['cosine']:.3f} to the originals" in page


def test_without_text_it_is_identified_and_estimated(vectors, tmp_path, capsys):
    path = write_parquet(tmp_path / "v.parquet", vectors, texts=None)
    assert main(["audit", str(path), "-o", str(tmp_path / "a"), "--encoder", "minilm", "--json", "--sample", "3"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["recovery"]["kind"] == "estimated"
    assert summary["recovery"]["recovered"] == 3
    assert all(example["original"] is None for example in summary["examples"])


def calibrations(tiny):
    """What may lie beside weights that it was not made for, and what is said of it."""
    other = made_up_calibration()
    mine = replace(other, weights=file_sha256(Path(tiny) / "model.safetensors"))
    return {
        "none": (None, "has no calibration.json"),
        "other weights": (other, "other weights"),
        "other settings": (replace(mine, decode={**mine.decode, "steps": 3}), "steps 8 instead of 3"),
        "of a newer version": (replace(mine, decode={**mine.decode, "drawn": 0}), "drawn (no such setting)"),
        "damaged": ("{", "not JSON"),
    }


@pytest.mark.parametrize("case", ["none", "other weights", "other settings", "of a newer version", "damaged"])
@pytest.mark.parametrize("texts", [TEXTS, None], ids=["texts", "no texts"])
def test_without_a_fitting_calibration_it_goes_on_and_says_so(case, texts, vectors, tiny, tmp_path, capsys):
    made, says = calibrations(tiny)[case]
    home = shutil.copytree(tiny, tmp_path / "inverter")
    if isinstance(made, Calibration):
        made.save(home / "calibration.json")
    elif made:
        (home / "calibration.json").write_text(made)
    store = write_parquet(tmp_path / "v.parquet", vectors, texts)
    command = ["audit", str(store), "-o", str(tmp_path / "a"), "--encoder", "minilm", "--inverter", str(home)]
    assert main([*command, "--sample", "3", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("unembed: note: Token F1 was not estimated: ")
    assert says in shown.err
    recovery = json.loads(shown.out)["recovery"]
    assert (recovery["kind"], recovery["estimate"]) == ("measured" if texts else "none", None)
    page = unescape((tmp_path / "a" / REPORT).read_text())
    assert re.search(r"<li>Token F1 was not estimated: [^\n]*" + re.escape(says), page)


# --- bad input ----------------------------------------------------------------------------------------------------


def one_line(capsys, says):
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("unembed: ")
    assert shown.err.count("\n") == 1
    assert says in shown.err
    return shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["audit"], "argument"),
        (["audit", "gone.parquet"], "no store gone.parquet"),
        (["audit", "v.parquet", "--sample", "0"], "at least 1"),
        (["audit", "v.parquet", "--fail-above", "30"], "between 0 and 1"),
        (["audit", "v.parquet", "--column", "gone"], "gone"),
        (["audit", "v.parquet", "--column", "text"], "text"),
        (["audit", "v.parquet", "--text", "gone"], "no field 'gone'"),
        (["audit", "v.parquet", "--texts", "gone.txt"], "gone.txt"),
        (["audit", "v.parquet", "--inverter", "no/such/folder"], "no/such/folder"),
        (["audit", "empty.npy"], "is empty"),
        (["audit", "zero.npy"], "zero vector"),
        (["audit", "notes.md"], "is no store"),
        (["audit", "v.parquet", "-o", "notes.md"], "notes.md"),
        (["report", "gone"], "holds no audit"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_2(arguments, says, vectors, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_parquet(tmp_path / "v.parquet", vectors)
    np.save("empty.npy", np.zeros((0, 8), np.float32))
    np.save("zero.npy", np.zeros((5, 8), np.float32))
    (tmp_path / "notes.md").write_text("no vectors")
    assert main(arguments) == 2
    one_line(capsys, says)
    assert not (tmp_path / "unembed-audit").exists(), "nothing is left behind"


def test_mixed_dimensions_are_said(vectors, tiny, tmp_path, capsys):
    lines = [{"embedding": [float(x) for x in row], "text": text} for row, text in zip(vectors, TEXTS, strict=True)]
    lines[3]["embedding"] = [1.0, 2.0]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["audit", str(tmp_path / "v.jsonl"), "-o", str(tmp_path / "a"), "--inverter", tiny]) == 0
    assert "1 with 2 dimensions instead of 384" in " ".join(capsys.readouterr().out.split())
    assert "1 with 2 dimensions instead of 384" in (tmp_path / "a" / REPORT).read_text()


def test_a_store_that_changes_while_it_is_read(parquet, vectors, tmp_path, capsys, monkeypatch):
    """The file is replaced after it was opened and before rows are drawn."""
    from unembed.audit.stores.base import Store

    path = tmp_path / "v.parquet"
    path.write_bytes(parquet.read_bytes())
    draw = Store.sample

    def late(store, n, seed):
        write_parquet(path, vectors[:5], TEXTS[:5])
        return draw(store, n, seed)

    monkeypatch.setattr(Store, "sample", late)
    assert main(["audit", str(path), "-o", str(tmp_path / "a")]) == 2
    one_line(capsys, "changed")


def test_postgres_mistakes_and_credentials(pg_uri, vectors, tiny, tmp_path, capsys):  # noqa: F811
    secret = "s3cr3t-pa55word"
    assert main(["audit", f"postgresql://me:{secret}@127.0.0.1:1/none", "-o", str(tmp_path / "a")]) == 2
    assert secret not in one_line(capsys, "no connection")
    pg_execute(pg_uri, "CREATE TABLE plain (id int, body text)", "INSERT INTO plain VALUES (1, 'x')")
    assert main(["audit", pg_uri, "--table", "gone", "-o", str(tmp_path / "a")]) == 2
    one_line(capsys, "gone")
    assert main(["audit", pg_uri, "--table", "plain", "--column", "body", "-o", str(tmp_path / "a")]) == 2
    one_line(capsys, "body")
    pg_execute(pg_uri, f"CREATE ROLE auditor LOGIN SUPERUSER PASSWORD '{secret}'")
    fill("pg-vector", tmp_path, Rows(list(vectors), TEXTS), lambda: pg_uri)
    table = f"t_{tmp_path.name}".lower().replace("-", "_")[:50]
    source = pg_uri.replace("postgres:", "auditor:", 1).replace("//auditor:@", f"//auditor:{secret}@")
    source = source if secret in source else re.sub(r"//[^@/]*@", f"//auditor:{secret}@", pg_uri)
    assert secret in source
    assert main(["audit", source, "--table", table, "-o", str(tmp_path / "a"), "--inverter", tiny]) == 0
    shown = capsys.readouterr()
    for name, text in {**texts_of(tmp_path / "a"), "out": shown.out, "err": shown.err}.items():
        assert secret not in text, name


def test_an_encoder_with_a_key_in_its_address_is_not_written_down(parquet, tiny, tmp_path, capsys):
    key = "sk-verysecret"
    encoder = f"openai:m@http://user:{key}@127.0.0.1:1"
    main(["audit", str(parquet), "-o", str(tmp_path / "a"), "--inverter", tiny, "--encoder", encoder])
    shown = capsys.readouterr()
    found = texts_of(tmp_path / "a") if (tmp_path / "a").exists() else {}
    for name, text in {**found, "out": shown.out, "err": shown.err}.items():
        assert key not in text, name


# --- stopped on the way -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory, mine):
    """A command for an audit of more than one batch."""
    folder = tmp_path_factory.mktemp("many")
    np.save(folder / "v.npy", np.random.default_rng(1).normal(size=(70, 24)).astype(np.float32))
    (folder / "t.txt").write_text("".join(f"{TEXTS[row % len(TEXTS)]}\n" for row in range(70)))
    texts = str(folder / "t.txt")
    return ["audit", str(folder / "v.npy"), "--texts", texts, "--encoder", "mine", "--inverter", mine, "-o"]


@pytest.fixture(scope="module")
def undisturbed(many, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "a"
    assert main([*many, str(folder)]) == 0
    return without_times(folder)


def test_ctrl_c_loses_nothing(many, undisturbed, tmp_path, capsys, monkeypatch):
    folder, append = tmp_path / "a", Log.append

    def interrupted(log, records):
        records = list(records)
        append(log, records)
        if any(record["kind"] == "vector" for record in records):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background was told to ignore it
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Log, "append", interrupted)
            assert main([*many, str(folder)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    one_line(capsys, "run the same command again")
    assert not (folder / REPORT).exists()
    assert main([*many, str(folder), "--resume"]) == 0
    assert without_times(folder) == undisturbed


def test_a_full_disk_loses_nothing(many, undisturbed, tmp_path, capsys):
    """No file may grow beyond that size, as if the disk were full."""
    folder, (soft, hard) = tmp_path / "a", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert main([*many, str(folder)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one_line(capsys, "cannot be written (File too large)")
    assert main([*many, str(folder)]) == 0
    assert without_times(folder) == undisturbed


def test_another_audit_is_not_mixed_in(many, parquet, tmp_path, capsys):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / NAME).write_text('{"kind": "config", "format": 1, "place": "elsewhere"}\n')
    assert main([*many, str(folder)]) == 2
    one_line(capsys, "was begun with another")
    assert main([*many, str(folder), "--overwrite"]) == 0
    capsys.readouterr()
    assert main([*many, str(folder)]) == 2
    one_line(capsys, "holds a finished audit")
