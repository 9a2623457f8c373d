"""No credential in any message, log or repr; specs; copies; missing clients."""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
import traceback
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.audit.stores.conftest import fill_parquet, good_rows
from unembed.audit.stores import MEMBERS, StoreOptions, available, kind_of, open_store, shown
from unembed.audit.stores.safe import Copy, Secrets, guarded
from unembed.errors import DataError, MissingExtraError, UnembedError

# Long enough to be in no message by chance, with what breaks a URL.
PASSWORDS = st.text(st.sampled_from("aZ9%@:/?#[]&=+ \\'\"\n\tü漢"), min_size=8, max_size=20)
TRIES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def told(error: BaseException) -> str:
    """All that a log, a traceback or a debugger's first look would show."""
    seen, chain = [], error
    while chain is not None:
        seen += [str(chain), repr(chain), *map(str, chain.args), "".join(traceback.format_exception_only(chain))]
        chain = chain.__cause__ or chain.__context__
    return "\n".join(seen)


def refused(spec: str) -> str:
    with pytest.raises(UnembedError) as caught:
        open_store(spec)
    assert len(str(caught.value).splitlines()) == 1
    return told(caught.value)


def holds(text: str, password: str) -> bool:
    """The password, or a piece of it that is long enough to matter."""
    pieces = {password, quote(password, safe=""), quote(password), password.strip(), repr(password)[1:-1]}
    pieces |= {piece for mark in "@:/?#" for piece in password.split(mark) if len(piece) >= 6}
    return any(piece and piece in text for piece in pieces)


@TRIES
@given(password=PASSWORDS)
def test_postgres_password_is_never_told(password, caplog):
    pytest.importorskip("psycopg")
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    text = quote(password, safe="")
    for dsn in (
        f"postgresql://me:{text}@127.0.0.1:1/db",
        f"postgresql://me:{password}@127.0.0.1:1/db",  # not encoded: may be read as a host, a port or a path
        f"postgresql://me@127.0.0.1:1/db?password={text}",
        f"postgresql://me@127.0.0.1:1/db?sslpassword={password}",
        f"postgres//me:{password}@127.0.0.1:1/db",  # mistyped: taken for a path
        f"host=127.0.0.1 password={password}",
        f"mysql://me:{password}@127.0.0.1/db",
    ):
        assert not holds(refused(dsn), password), dsn
        assert not holds(shown(dsn), password)
    assert not holds(caplog.text, password)


@TRIES
@given(password=PASSWORDS)
def test_qdrant_key_is_never_told(password, caplog):
    pytest.importorskip("qdrant_client")
    caplog.set_level(logging.DEBUG)
    caplog.clear()
    text = quote(password, safe="")
    for spec in (f"qdrant:http://:{text}@127.0.0.1:1", f"qdrant:http://me:{password}@127.0.0.1:1/x"):
        with _quiet():
            assert not holds(refused(spec), password), spec
    assert not holds(caplog.text, password)


def _quiet():
    import warnings

    return warnings.catch_warnings(action="ignore")


def test_qdrant_key_of_the_environment_is_never_told(monkeypatch):
    pytest.importorskip("qdrant_client")
    monkeypatch.setenv("QDRANT_API_KEY", "sk-very-secret-key")
    with _quiet():
        assert "sk-very-secret-key" not in refused("qdrant:http://127.0.0.1:1")


@given(secret=PASSWORDS, before=st.text(max_size=5))
def test_a_driver_that_repeats_the_secret_is_not_repeated(secret, before):
    def fail():
        raise RuntimeError(f"{before}cannot connect with {secret}, sorry")

    with pytest.raises(DataError) as caught:
        guarded(fail, "no connection", "check it", Secrets([secret]))
    assert secret not in told(caught.value)
    assert str(caught.value) == "no connection: check it"
    assert secret not in repr(Secrets([secret]))


def test_shown_keeps_what_is_no_secret(tmp_path):
    odd = tmp_path / "a@b=c.parquet"
    odd.touch()
    assert shown(str(odd)) == str(odd)
    assert shown("monkey/vectors.parquet") == "monkey/vectors.parquet"
    assert shown("postgresql://me:pw@host/db") == "postgresql:***"
    assert shown("qdrant:https://key@host") == "qdrant:https://***"


@pytest.mark.parametrize("spec", ["ftp://host/a", "", "nothing", "a\0b", "x" * 5000, "postgresql:", "qdrant:"])
def test_specs_that_are_none(spec):
    refused(spec)


def test_kind_is_found_by_content(tmp_path):
    assert kind_of("postgres://host/db") == ("postgresql", "postgres://host/db")
    assert kind_of("qdrant:http://h:1") == ("qdrant", "http://h:1")
    (tmp_path / "index").write_bytes(b"IxF2 and more")
    assert kind_of(str(tmp_path / "index"))[0] == "faiss"
    (tmp_path / "other").write_bytes(b"hello, this is no store")
    with pytest.raises(DataError, match="no store that is known"):
        kind_of(str(tmp_path / "other"))
    with pytest.raises(DataError, match="holds no store"):
        kind_of(str(tmp_path))


def test_third_party_store(monkeypatch):
    """An entry point is a kind."""
    from importlib import metadata

    point = metadata.EntryPoint("mine", "tests.audit.stores.test_safe:open_mine", "unembed.stores")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "unembed.stores" else [])
    assert "mine" in available()
    assert open_store("mine:somewhere", StoreOptions(table="t")) == ("somewhere", "t")


def open_mine(place, options):
    return place, options.table


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        ("faiss", "faiss", "faiss"),
        ("postgresql", "psycopg", "postgres"),
        ("qdrant", "qdrant_client", "qdrant"),
        ("chroma", "chromadb", "chroma"),
        ("lancedb", "lancedb", "lancedb"),
        ("milvus", "pymilvus", "milvus"),
    ],
)
def test_missing_client_gives_its_command(kind, module, extra, tmp_path, monkeypatch):
    def absent(name, *args, **kwargs):
        if name == module:
            raise ModuleNotFoundError(f"No module named {name}")
        return real(name, *args, **kwargs)

    real = importlib.import_module
    monkeypatch.setattr("unembed.audit.stores.base.import_module", absent)
    (tmp_path / "meta.json").touch()
    (tmp_path / "chroma.sqlite3").touch()
    place = {"postgresql": "postgresql://h/db", "faiss": f"faiss:{tmp_path}/meta.json"}.get(kind, f"{kind}:{tmp_path}")
    with pytest.raises(MissingExtraError, match=rf"pip install 'unembed\[{extra}\]'"):
        open_store(place)


def test_no_client_is_imported_before_it_is_needed(tmp_path):
    place = fill_parquet(tmp_path, good_rows(5))
    clients = ["faiss", "psycopg", "qdrant_client", "chromadb", "lancedb", "pymilvus", "torch"]
    code = (
        "import sys; from unembed.audit.stores import open_store; open_store(sys.argv[1]).sample(2, 0); "
        f"print([name for name in {clients} if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code, place.spec], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
    assert set(MEMBERS) <= set(available())


class TestCopy:
    def test_a_source_that_changes(self, tmp_path, monkeypatch):
        source = tmp_path / "store"
        source.mkdir()
        (source / "a").write_text("1")
        original = Copy._try

        def writes(self, path, skip):
            (source / "a").write_text((source / "a").read_text() + "1")
            return original(self, path, skip)

        monkeypatch.setattr(Copy, "_try", writes)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        with pytest.raises(DataError, match="changes while it is read"):
            Copy(source)
        assert not list((tmp_path / "temporary").iterdir())

    def test_a_full_disk(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_bytes(bytes(1000))
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
        with pytest.raises(DataError, match="TMPDIR"):
            Copy(tmp_path)

    def test_a_disk_that_fills_up(self, tmp_path, monkeypatch):
        (tmp_path / "a").write_bytes(bytes(1000))

        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("shutil.copyfile", full)
        with pytest.raises(DataError, match="No space left on device"):
            Copy(tmp_path / "a")


def test_memory_does_not_grow_with_the_store(tmp_path):
    """A thousand rows of a file of 300 MB that mostly is a hole on the disk."""
    rows, dim = 400_000, 192
    path = tmp_path / "large.npy"
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        np.lib.format.write_array_header_1_0(file, header)
        begin = file.tell()
        file.truncate(begin + rows * dim * 4)
        for row in range(0, rows, 1000):
            file.seek(begin + row * dim * 4)
            file.write(np.ones(dim, np.float32).tobytes())
    import tracemalloc

    with open_store(str(path)) as store:
        tracemalloc.start()
        sample = store.sample(5000, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sample.left_out["with a zero vector"] > 4900
    assert peak < 40 << 20
    assert sample.ids
