"""Every error a user can cause. The message is one line: what is wrong, then what to do about it."""

from __future__ import annotations


class UnembedError(Exception):
    """Base of all expected errors; the command line prints it as one line and exits with 2."""


class DataError(UnembedError):
    """Bad input data: a broken file, a bad row, a vector that is not one."""


class EncoderError(UnembedError):
    """An encoder cannot be found, loaded or reached."""


class ConfigError(UnembedError):
    """An unknown or impossible setting."""


class CheckpointError(UnembedError):
    """An inverter folder or training checkpoint that cannot be used as asked."""


class MissingExtraError(UnembedError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'unembed[{extra}]'")
