"""What keeps a store and its credentials safe: specs without secrets, errors without secrets, copies of folders."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from unembed.errors import DataError, UnembedError

T = TypeVar("T")


def shown(spec: str) -> str:
    """A spec for a message, a log or a report.

    It may be mistyped, so nothing is taken apart: whatever could hold a secret is cut down to its scheme.
    A file that is there is shown whole.
    """
    if _is_path(spec) or not re.search(r"[@=]|//", spec):
        return spec
    scheme = re.match(r"[a-z]{2,12}:((https?|grpc)://)?", spec)
    return f"{scheme.group()}***" if scheme else "***"


def _is_path(spec: str) -> bool:
    try:
        return any(Path(path).exists() for path in (spec, spec.partition(":")[2]) if path)
    except (OSError, ValueError):  # too long, or a zero byte
        return False


def _forms(secret: str) -> tuple[str, ...]:
    """How a driver may write it."""
    return secret, quote(secret), quote(secret, safe=""), repr(secret)[1:-1], secret.strip()


class Secrets:
    """Strings that must not be told; `first_line` of an error that holds one of them is empty."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        self._forms = {form for secret in secrets if secret for form in _forms(secret)}

    def first_line(self, error: BaseException) -> str:
        """What a driver said, in brackets, if it can be repeated."""
        text = str(error).strip() or type(error).__name__
        if any(form and form in text for form in self._forms):
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return f" ({lines[0][:300]})" if lines else ""

    def __repr__(self) -> str:
        return "Secrets(***)"


NO_SECRETS = Secrets(())


def guarded(call: Callable[[], T], what: str, then: str, secrets: Secrets = NO_SECRETS) -> T:
    """Run a driver's call; its error becomes one line, and the error itself (with its DSN) is not kept.

    Args:
        call: what to do.
        what: what went wrong, if it does.
        then: what the user can do about it.
        secrets: an error that holds one of these is not repeated.
    """
    try:
        return call()
    except UnembedError:
        raise
    except Exception as error:
        failure = f"{what}{secrets.first_line(error)}: {then}"
    # Outside of the except block, so that no traceback and no __context__ leads to the driver's error.
    raise DataError(failure)


def split_url(url: str, where: str) -> tuple[str, list[str]]:
    """(the URL without user, password, query and fragment; what was taken out, as given and decoded)."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = parts.hostname or ""
        secrets = [*parts.netloc.rpartition("@")[0].split(":"), parts.query, parts.fragment]
    except ValueError:
        host, port, parts, secrets = "", "", urlsplit(""), []
    if not host or "@" in parts.path + parts.query + parts.fragment:  # a password cut in two by its own / ? or #
        raise DataError(f"the {where} URL cannot be read: percent-encode special characters in it")
    bracketed = f"[{host}]" if ":" in host else host
    bare = f"{parts.scheme}://{bracketed}{port}{parts.path.rstrip('/')}"
    return bare, [form for secret in secrets if secret for form in (secret, unquote(secret))]


class Copy:
    """A copy of a file or folder in the temporary folder, for clients that write when they open."""

    def __init__(self, source: Path, skip: Callable[[str], bool] = lambda name: False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="unembed-audit-"))
        try:
            self.path = self._folder / source.name
            self._copy(source, skip)
        except BaseException:
            self.remove()
            raise

    def _copy(self, source: Path, skip: Callable[[str], bool]) -> None:
        need, free = sum(size for _, size, _ in _state(source)), shutil.disk_usage(self._folder).free
        if need > 0.95 * free:
            raise DataError(
                f"{source} is read through a copy of {need >> 20} MB, and {self._folder.parent} has {free >> 20} MB "
                "left: set TMPDIR to a larger disk"
            )
        for _ in range(3):
            before = _state(source)
            failure = self._try(source, skip)
            if failure is None and _state(source) == before:
                return
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.unlink(missing_ok=True)
            if isinstance(failure, PermissionError):
                break
        reason = "it changes while it is read: stop what writes to it, or audit a snapshot"
        raise DataError(f"{source} cannot be copied: {_told(failure) if failure else reason}")

    def _try(self, source: Path, skip: Callable[[str], bool]) -> OSError | None:
        try:
            if source.is_dir():
                shutil.copytree(source, self.path, ignore=lambda _, names: [name for name in names if skip(name)])
            else:
                shutil.copyfile(source, self.path)
        except shutil.Error as error:  # several files; an OSError whose argument is a list
            return PermissionError("no permission") if "Permission" in str(error) else OSError("files vanish from it")
        except OSError as error:
            return error
        return None

    def remove(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _told(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read it: ask its owner"
    return f"{error.strerror or error}: check the disk and that nothing writes to it"


def _state(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of every file."""
    files = sorted(source.rglob("*")) if source.is_dir() else [source]
    state = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        if file.is_file():
            state.append((str(file), stat.st_size, stat.st_mtime_ns))
    return state
