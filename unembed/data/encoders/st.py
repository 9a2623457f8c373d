"""Any sentence-transformers model, with its own pooling, Dense layers, prompts and normalisation.

Serves the specs `st:<hub id or folder>` and the models of `known.py`. Everything is loaded from one folder (a hub
repository is fetched first), so that what is hashed and checked is what runs. Pickled weights are never read,
and Python code that comes with a model runs only when the environment variable TRUST says so: a spec cannot ask
for it, because specs travel with inverters that others have made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.data.encoders.base import Spec, Vectors, are_unit, encode_checked, hash_model
from unembed.data.encoders.hub import model_folder
from unembed.data.encoders.known import DEFAULT_SIDE, KNOWN, Side
from unembed.errors import EncoderError, MissingExtraError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TRUST = "UNEMBED_TRUST_REMOTE_CODE"
FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.py", "*.jinja")
DTYPES = ("float32", "bfloat16", "float16")
BATCH = 64
PROBE = ["unembed", "A sentence of a few words."]


@dataclass(frozen=True)
class Settings:
    """What the caller may choose of a model's own ways."""

    prompt: str | None = None
    """Name of a prompt of the model; None is the model's default."""
    task: str | None = None
    """Task adapter, for models that take one."""
    dtype: str = "float32"
    """Of the weights in memory; half precision changes the vectors a little."""


def create(spec: Spec) -> SentenceTransformerEncoder:
    """Make the encoder of `st:<hub id or folder>[?prompt=&task=&revision=&dtype=]` or `<known name>[:<side>]`."""
    dtype = spec.options.get("dtype", "float32")
    if dtype not in DTYPES:
        raise EncoderError(f"dtype '{dtype}' in encoder '{spec.text}' is not one of {', '.join(DTYPES)}")
    if spec.kind in KNOWN:
        spec.allow("path", "revision", "dtype")
        side = _side(spec)
        settings = Settings(side.prompt, side.task, dtype)
        source = spec.options.get("path", KNOWN[spec.kind].hub_id)
        if KNOWN[spec.kind].remote_code and not _trusted():  # said before a gigabyte is fetched
            raise EncoderError(_code_refusal(source, "the repository's code"))
    else:
        spec.allow("prompt", "task", "revision", "dtype")
        settings = Settings(spec.options.get("prompt"), spec.options.get("task"), dtype)
        source = spec.argument
    return SentenceTransformerEncoder(model_folder(spec, source, FILES), settings, name=spec.text)


class SentenceTransformerEncoder:
    """A sentence-transformers model in a folder."""

    def __init__(self, folder: Path, settings: Settings | None = None, *, name: str) -> None:
        settings = settings or Settings()
        self.name = name
        self._model = _load(folder, settings.dtype)
        self._settings = settings
        prompt = _prompt_text(self._model, settings.prompt, name)
        if settings.task is not None and "task" not in self._model.get_model_kwargs():
            raise EncoderError(f"the model of encoder '{name}' takes no task: leave it out")
        self.fingerprint = hash_model(folder, _model_files(folder), prompt, settings.task or "")
        probe = self._vectors(PROBE)
        self.dim = probe.shape[1]
        self.normalized = are_unit(probe)

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts as the model's makers do."""
        return encode_checked(texts, self._vectors, self.dim, self.name)

    def _vectors(self, texts: list[str]) -> Vectors:
        task: dict[str, Any] = {} if self._settings.task is None else {"task": self._settings.task}
        vectors = self._model.encode(
            texts, prompt_name=self._settings.prompt, batch_size=BATCH, show_progress_bar=False, **task
        )
        return np.asarray(vectors, dtype=np.float32)


def _load(folder: Path, dtype: str) -> SentenceTransformer:
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "encoders", "a sentence-transformers model") from None
    trust = _trusted()
    _check_folder(folder, trust)
    try:
        with _no_progress_bar():
            model = SentenceTransformer(
                str(folder),
                trust_remote_code=trust,
                model_kwargs={"dtype": getattr(torch, dtype), "use_safetensors": True},
                # Code named in a model's config may lie in another repository: only then is the hub needed.
                local_files_only=not trust,
            )
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EncoderError(f"cannot load the sentence-transformers model in {folder}: {reason}") from error
    return model.eval()


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """The library is silent; transformers would draw a bar while it loads weights."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


def _check_folder(folder: Path, trust: bool) -> None:
    """Refuse a folder that is no such model, that would run code unasked, or that holds its weights in pickles."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        own = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
        configs = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("config.json")]
    except FileNotFoundError:
        raise EncoderError(f"{folder} has no modules.json: it is not a sentence-transformers model") from None
    except (ValueError, KeyError, TypeError):
        raise EncoderError(f"a config file of the model in {folder} is damaged: fetch the model again") from None
    own += ["auto_map" for config in configs if "auto_map" in config]
    if own and not trust:
        raise EncoderError(_code_refusal(str(folder), own[0]))
    for pickled in sorted([*folder.rglob("pytorch_model*.bin"), *folder.rglob("*.pt")]):
        if not any(pickled.parent.glob("*.safetensors")):
            raise EncoderError(f"{pickled} is a pickle, which is never read: save the model as safetensors")


def _trusted() -> bool:
    return os.environ.get(TRUST, "").lower() in ("1", "true", "yes")


def _code_refusal(source: str, code: str) -> str:
    return f"the model {source} needs Python code of its own ({code}): read that, then set {TRUST}=1 to let it run"


def _model_files(folder: Path) -> list[Path]:
    """The files that decide the vectors."""
    found = [path for pattern in FILES for path in folder.rglob(pattern)]
    return [path for path in found if not any(map(_aside, path.relative_to(folder).parts))]


def _aside(part: str) -> bool:
    """Whether a file or folder of this name belongs to caches or to other forms of the same model."""
    return part.startswith(".") or part in ("onnx", "openvino")


def _prompt_text(model: SentenceTransformer, prompt: str | None, name: str) -> str:
    """The text that is put before each input."""
    chosen = prompt if prompt is not None else model.default_prompt_name
    if chosen is None:
        return ""
    if chosen not in model.prompts:
        raise EncoderError(f"encoder '{name}': the model has no prompt '{chosen}', only: {', '.join(model.prompts)}")
    return model.prompts[chosen] or ""


def _side(spec: Spec) -> Side:
    sides = KNOWN[spec.kind].sides
    if (side := spec.argument or DEFAULT_SIDE) in sides:
        return sides[side]
    choices = " or ".join(f"{spec.kind}:{name}" for name in sides)
    raise EncoderError(f"encoder '{spec.kind}' has no side '{side}': write {choices}")
