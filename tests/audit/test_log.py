"""The log of an audit: appended, never lost, never mixed with another one's."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from unembed.audit.log import NAME, Log, read, save
from unembed.errors import DataError

CONFIG = {"place": "store.parquet", "sample": 3, "seed": 0}
ROWS = [{"kind": "vector", "row": row, "text": "ä \u2028 <b>"} for row in range(3)]


def lines(folder):
    return (folder / NAME).read_bytes().split(b"\n")[:-1]


def test_appends_and_goes_on(tmp_path):
    folder = tmp_path / "new" / "audit"
    with Log(folder, CONFIG) as log:
        log.append(ROWS[:2])
        before = (folder / NAME).read_bytes()
    with Log(folder, CONFIG) as log:
        assert [record["kind"] for record in log.records] == ["config", "vector", "vector"]
        assert log.records[1] == ROWS[0]
        log.append([ROWS[2], {"kind": "done", "date": "today"}])
        assert log.stage("done") == {"kind": "done", "date": "today"}
        assert log.stage("controls") is None
    assert (folder / NAME).read_bytes().startswith(before)
    assert len(read(folder)) == 5


def test_only_its_owner_can_read_it(tmp_path):
    old = os.umask(0)
    try:
        Log(tmp_path / "audit", CONFIG).close()
    finally:
        os.umask(old)
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "audit" / NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "vector", "row": 1', b'{"kind": "vector", "text": "\xc3', b"\0" * 9])
def test_a_torn_last_line_is_dropped(tmp_path, torn):
    with Log(tmp_path, CONFIG) as log:
        log.append(ROWS[:1])
    with (tmp_path / NAME).open("ab") as file:
        file.write(torn)
    with Log(tmp_path, CONFIG) as log:
        assert len(log.records) == 2
        log.append(ROWS[1:2])
    assert [json.loads(line)["kind"] for line in lines(tmp_path)] == ["config", "vector", "vector"]


def test_a_torn_first_line_begins_anew(tmp_path):
    (tmp_path / NAME).write_bytes(b'{"kind": "con')
    with Log(tmp_path, CONFIG) as log:
        assert len(log.records) == 1
    assert json.loads(lines(tmp_path)[0])["sample"] == 3


def test_another_config_is_refused_and_the_log_stays(tmp_path):
    with Log(tmp_path, CONFIG) as log:
        log.append(ROWS)
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(DataError, match=r"another seed \(0, now 1\)"):
        Log(tmp_path, {**CONFIG, "seed": 1})
    assert (tmp_path / NAME).read_bytes() == before
    with Log(tmp_path, {**CONFIG, "seed": 1}, overwrite=True) as log:
        assert len(log.records) == 1


@pytest.mark.parametrize("line", [b"not json", b"[1, 2]", b'{"row": 1}', b'{"kind": 3}'])
def test_a_damaged_line_is_named(tmp_path, line):
    with Log(tmp_path, CONFIG) as log:
        log.append(ROWS[:1])
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes() + line + b'\n{"kind": "done"}\n')
    with pytest.raises(DataError, match="line 3"):
        Log(tmp_path, CONFIG)
    with pytest.raises(DataError, match="line 3"):
        read(tmp_path)


def test_only_a_finished_log_is_read(tmp_path):
    with pytest.raises(DataError, match="holds no audit"):
        read(tmp_path)
    with Log(tmp_path, CONFIG) as log:
        log.append(ROWS)
    with pytest.raises(DataError, match="3 vectors so far"):
        read(tmp_path)
    (tmp_path / NAME).write_text('{"kind": "config", "format": 99}\n{"kind": "done"}\n')
    with pytest.raises(DataError, match="of this version"):
        read(tmp_path)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    """Under a limit of 2,000 bytes a file, as a full disk would have it."""
    code = (
        "import resource, sys; from pathlib import Path; from unembed.audit.log import Log\n"
        "log = Log(Path(sys.argv[1]), {'sample': 3})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "for row in range(100): log.append([{'kind': 'vector', 'row': row, 'text': 'x' * 80}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "cannot be written (File too large)" in done.stderr
    assert "run the same command again" in done.stderr
    with Log(tmp_path, {"sample": 3}) as log:
        rows = [record["row"] for record in log.records[1:]]
        assert rows == list(range(len(rows)))
        assert len(rows) > 10
        log.append([{"kind": "vector", "row": len(rows)}])
    assert all(json.loads(line) for line in lines(tmp_path))


def test_files_are_written_whole(tmp_path):
    save(tmp_path / "a.json", "one")
    code = (
        "import resource, sys; from pathlib import Path; from unembed.audit.log import save\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "save(Path(sys.argv[1]), 'x' * 5000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.json")], capture_output=True, text=True)
    assert "a.json cannot be written (File too large)" in done.stderr
    assert (tmp_path / "a.json").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "audit").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        Log(tmp_path / "audit", CONFIG)
