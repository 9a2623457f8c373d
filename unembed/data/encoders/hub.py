"""A model's folder: one on this machine, or a snapshot of a hub repository."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from unembed.data.encoders.base import Spec
from unembed.errors import EncoderError, MissingExtraError

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def model_folder(spec: Spec, source: str, patterns: Sequence[str]) -> Path:
    """The folder `source`, or the files of the hub repository `source` that fit the patterns.

    Only these files are ever fetched, so that weights in pickle form (`.bin`, `.pt`) do not even arrive.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        if "revision" in spec.options:
            raise EncoderError(f"'{source}' is a folder, which has no revision: leave ?revision= out")
        return folder
    if not HUB_ID.fullmatch(source) or source.startswith("."):
        raise EncoderError(f"encoder '{spec.text}': '{source}' is neither a folder nor a hub id like org/model")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError("huggingface_hub", "encoders", "a model from the hub") from None
    try:
        path = snapshot_download(
            source,
            revision=spec.options.get("revision"),
            allow_patterns=list(patterns),
            ignore_patterns=["onnx/*", "openvino/*"],
        )
    except Exception as error:  # offline, no such repository, gated, no such revision
        reason = str(error).strip().splitlines()[0]
        raise EncoderError(f"cannot get '{source}' from the hub: {reason}") from error
    return Path(path)
