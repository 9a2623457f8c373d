"""A file of vectors to a file of texts, killed at the worst moments."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tests.decode.conftest import make_vectors
from unembed.decode import DecodeConfig, bulk
from unembed.decode.result import Inversion
from unembed.decode.vectors import VectorReader
from unembed.errors import DataError


def echo(vectors):
    """A text for each vector that depends on it alone."""
    return [Inversion(f"tëxt {v[0]:.6f}", (5, 6), (0.5, 1.0), -0.25, 2, 2) for v in vectors]


def run(source, output, invert=echo, chunk=4, settings=None, **options):
    reader = VectorReader(source, dim=16, chunk=chunk)
    return list(bulk.invert_rows(reader, invert, output, settings=settings or {"a": 1}, **options))


@pytest.fixture
def source(tmp_path):
    np.save(tmp_path / "v.npy", make_vectors(11))
    return tmp_path / "v.npy"


@pytest.fixture
def whole(tmp_path, source):
    run(source, tmp_path / "whole.jsonl")
    return (tmp_path / "whole.jsonl").read_bytes()


class Killed(BaseException):
    pass


def stop_after(rows):
    """An `invert` that dies once it has seen so many rows."""
    left = [rows]

    def invert(vectors):
        left[0] -= len(vectors)
        if left[0] < 0:
            raise Killed
        return echo(vectors)

    return invert


def test_lines_and_progress(tmp_path, source):
    progress = run(source, tmp_path / "out.jsonl", with_tokens=True)
    assert [(p.done, p.total, p.resumed) for p in progress] == [(4, 11, 0), (8, 11, 0), (11, 11, 0)]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines] == list(range(11))
    first = {"row": 0, "text": lines[0]["text"], "score": -0.25, "confidence": 0.75}
    assert lines[0] == {**first, "tokens": [5, 6], "token_confidence": [0.5, 1.0]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "v.npy"]


def test_alternatives_are_written(tmp_path, source):
    def invert(vectors):
        other = Inversion("other", (7,), (0.5,), -1.0, 1, 1)
        return [Inversion("best", (5,), (1.0,), 0.0, 1, 1, (other,)) for _ in vectors]

    run(source, tmp_path / "out.jsonl", invert)
    line = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[3])
    assert line["alternatives"] == [{"text": "other", "score": -1.0, "confidence": 0.5}]


@pytest.mark.parametrize("chunk", [3, 5, 100])
def test_interrupted_and_resumed_is_the_same_file(tmp_path, source, whole, chunk):
    output = tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        run(source, output, stop_after(8))
    assert not output.exists()
    assert Path(f"{output}.part").exists()
    progress = run(source, output, stop_after(3), chunk=chunk)  # only the missing three are inverted
    assert progress[-1].resumed == 8
    assert output.read_bytes() == whole


@pytest.mark.parametrize("torn", [b'{"row": 8, "te', b'{"row": 8}\n{"row": 9}\n', b"\x00\x00"])
def test_a_torn_tail_is_cut(tmp_path, source, whole, torn):
    output = tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        run(source, output, stop_after(8))
    with Path(f"{output}.part").open("ab") as file:
        file.write(torn)
    run(source, output)
    assert output.read_bytes() == whole


def test_a_part_without_its_sidecar_is_begun_anew(tmp_path, source, whole):
    output = tmp_path / "out.jsonl"
    Path(f"{output}.part").write_bytes(b'{"row": 0, "text": "half a fi')
    run(source, output)
    assert output.read_bytes() == whole


def test_another_input_other_settings_or_a_damaged_part_are_refused(tmp_path, source):
    output = tmp_path / "out.jsonl"
    with pytest.raises(Killed):
        run(source, output, stop_after(8))
    with pytest.raises(DataError, match="other settings"):
        run(source, output, settings={"a": 2})
    with pytest.raises(DataError, match="was made from other vectors"):
        run(make_vectors(11, seed=5), output)
    with pytest.raises(DataError, match="has 8 rows, the array only 4"):
        run(make_vectors(11)[:4], output)
    Path(f"{output}.part").write_bytes(b"")
    with pytest.raises(DataError, match="shorter than it was"):
        run(source, output)
    Path(f"{output}.part.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read: delete it"):
        run(source, output)
    run(source, output, overwrite=True)
    assert len(output.read_text().splitlines()) == 11


def test_outputs_that_cannot_be_written(tmp_path, source, whole):
    with pytest.raises(DataError, match="is there already"):
        run(source, tmp_path / "whole.jsonl")
    with pytest.raises(DataError, match="no folder"):
        run(source, tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(DataError, match="has no vectors"):
        run(np.zeros((0, 16), np.float32), tmp_path / "empty.jsonl")


def test_a_bad_row_keeps_what_is_done(tmp_path, whole):
    vectors = make_vectors(11)
    vectors[9] = 0
    output = tmp_path / "out.jsonl"
    with pytest.raises(DataError, match="row 9"):
        run(vectors, output)
    run(make_vectors(11), output, stop_after(3))  # eight were done; the row is mended
    assert output.read_bytes() == whole


def test_notes_tell_of_all_rows_after_a_resume(tmp_path):
    vectors = make_vectors(11) * 2
    with pytest.raises(Killed):
        run(vectors, tmp_path / "out.jsonl", stop_after(8))
    assert run(vectors, tmp_path / "out.jsonl")[-1].notes[0].startswith("11 vectors were not of unit length")


def test_kill_nine_with_the_real_inverter(tmp_path, inverter):
    """The process is killed for real, in the middle of the work, until it gets through."""
    np.save(tmp_path / "v.npy", make_vectors(20))
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, sys
            from tests.decode.conftest import make_inverter
            from unembed import DecodeConfig, inverter as home
            home.CHUNK = 4
            inverter = make_inverter()
            config = DecodeConfig(strategy="euler", temperature=1.0, steps=2)
            decode, left = inverter._invert, [int(sys.argv[2])]
            def dying(*arguments):
                left[0] -= 1
                if left[0] < 0:
                    with open(sys.argv[1] + ".part", "ab") as file:
                        file.write(b'{"row": 4')
                    os.kill(os.getpid(), signal.SIGKILL)
                return decode(*arguments)
            inverter._invert = dying
            for progress in inverter.invert_file("v.npy", sys.argv[1], config):
                pass
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), "out.jsonl"]
    killed = subprocess.run([*command, "3"], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out.jsonl").exists()
    subprocess.run([*command, "99"], cwd=tmp_path, env=environment, check=True)
    config = DecodeConfig(strategy="euler", temperature=1.0, steps=2)
    list(inverter.invert_file(tmp_path / "v.npy", tmp_path / "whole.jsonl", config))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
