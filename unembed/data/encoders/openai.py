"""Any OpenAI-compatible `/v1/embeddings` endpoint: OpenAI, vLLM, TEI, Ollama, LiteLLM, ...

The key comes from the environment alone, is read anew for each request and kept nowhere, so that no spec,
log, error or repr can hold it. A spec can come with somebody else's inverter, so OPENAI_API_KEY goes only to
hosts which the user chose (see `_key`), never to any address that a spec names.
"""

from __future__ import annotations

import base64
import binascii
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from unembed.data.encoders.base import Spec, Vectors, are_unit, check_texts, check_vectors
from unembed.errors import EncoderError, MissingExtraError

try:
    import httpx2
except ImportError:
    raise MissingExtraError("httpx2", "api", "an encoder behind an API") from None

DEFAULT_URL = "https://api.openai.com/v1"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
RETRIED = (408, 429)  # and everything from 500
EXCERPT = 200  # characters of a server's message that an error shows


@dataclass(frozen=True)
class Policy:
    """How requests are cut, and how long to be patient."""

    batch: int = 128
    """Texts in a request."""
    timeout: float = 60.0
    """Seconds without an answer after which a request has failed."""
    attempts: int = 7
    """Tries of one request, the first included."""
    wait: float = 0.5
    """Seconds before the second try; doubled with each further one."""
    longest_wait: float = 60.0
    """Seconds at which the doubling ends."""
    patience: float = 300.0
    """The longest Retry-After, in seconds, that is waited for."""


def create(spec: Spec) -> ApiEncoder:
    """Make the encoder of a spec `openai:<model>[@<base url>][?dimensions=<n>]`."""
    spec.allow("dimensions")
    dimensions = spec.options.get("dimensions")
    if dimensions is not None and not dimensions.isdecimal():
        raise EncoderError(f"dimensions must be a whole number, not '{dimensions}', in encoder '{spec.text}'")
    match = re.fullmatch(r"(?P<model>@?[^@]+)(@(?P<url>https?://.+))?", spec.argument)
    if match is None:
        raise EncoderError(f"cannot read encoder '{_without_login(spec.text)}': write openai:<model>@https://host/v1")
    return ApiEncoder(
        match["model"], match["url"] or DEFAULT_URL, int(dimensions) if dimensions else None, name=spec.text
    )


class ApiEncoder:
    """Vectors of a model behind an HTTP endpoint; `dim` and `normalized` cost one request if asked for first."""

    def __init__(
        self,
        model: str,
        base_url: str = DEFAULT_URL,
        dimensions: int | None = None,
        *,
        name: str,
        policy: Policy | None = None,
    ) -> None:
        url = httpx2.URL(base_url)
        if not url.host:
            raise EncoderError(f"the base url '{_without_login(base_url)}' has no host: write https://host/v1")
        if url.userinfo or url.query:
            raise EncoderError(f"no login or key may stand in a base url ({url.host}): set UNEMBED_API_KEY instead")
        self.name = name
        self.model = model
        self.policy = policy or Policy()
        self.fingerprint = f"{model}@{url.netloc.decode()}" + (f"?dimensions={dimensions}" if dimensions else "")
        self._url = url.copy_with(path=url.path.rstrip("/").removesuffix("/embeddings") + "/embeddings")
        self._client = httpx2.Client(timeout=self.policy.timeout)
        self._dimensions = dimensions
        self._batch = self.policy.batch  # made smaller when the server finds it too large
        self._format = "base64"  # a fourth of the bytes; "float" when the server does not know it
        self._dim: int | None = None
        self._normalized = False

    def __repr__(self) -> str:
        """Show the spec."""
        return f"ApiEncoder({self.name!r})"

    @property
    def dim(self) -> int:
        """Length of a vector, learned from the first answer."""
        if self._dim is None:
            self.encode(["unembed"])
        assert self._dim is not None
        return self._dim

    @property
    def normalized(self) -> bool:
        """Whether the vectors of the first answer had length 1."""
        return self.dim > 0 and self._normalized

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts, batch by batch."""
        check_texts(texts)
        parts: list[Vectors] = []
        done = 0
        while done < len(texts):
            batch = texts[done : done + self._batch]
            vectors = self._embed(batch)
            if vectors is None:  # too large for the server: the same texts again in smaller batches
                self._batch = len(batch) // 2
                continue
            parts.append(vectors)
            done += len(batch)
        return np.concatenate(parts) if parts else np.empty((0, self.dim), dtype=np.float32)

    def _embed(self, texts: list[str]) -> Vectors | None:
        """Vectors of one batch, or None if the server refuses so large a one."""
        response = self._post(texts)
        if response.status_code in (400, 422) and self._format == "base64":
            self._format = "float"
            response = self._post(texts)
        if response.status_code in (413, 422) and len(texts) > 1:
            return None
        if response.status_code != 200:
            raise EncoderError(self._refusal(response))
        vectors = check_vectors(self._read(response, len(texts)), len(texts), self._dim, self.name)
        if self._dim is None:
            self._dim, self._normalized = vectors.shape[1], are_unit(vectors)
        return vectors

    def _post(self, texts: list[str]) -> httpx2.Response:
        """Send one request; again, with growing pauses, while the server is busy, broken or silent."""
        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": self._format}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        problem = ""
        for pause in self._pauses():
            asked = 0.0
            try:
                response = self._client.post(self._url, json=body, headers=self._headers())
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.status_code not in RETRIED and response.status_code < 500:
                    return response
                problem = f"{response.status_code} {_message(response)}"
                if "insufficient_quota" in response.text:  # a 429 that no waiting cures
                    break
                asked = _retry_after(response)
                if asked > self.policy.patience:
                    problem += f" (asks to wait {asked:.0f} s)"
                    break
            if pause is not None:
                time.sleep(max(pause, asked))
        raise EncoderError(_scrub(f"no vectors from {self._url}: {problem.strip()}; try again later"))

    def _pauses(self) -> Iterator[float | None]:
        """Seconds to wait after each failed try, None after the last; jitter keeps many clients apart."""
        for attempt in range(self.policy.attempts - 1):
            longest = min(self.policy.longest_wait, self.policy.wait * 2**attempt)
            yield longest * random.uniform(0.5, 1.0)
        yield None

    def _headers(self) -> dict[str, str]:
        key = _key(self._url.host)
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _read(self, response: httpx2.Response, count: int) -> Vectors:
        """The vectors of an answer in the order of the texts."""
        try:
            items = response.json()["data"]
            rows = [(int(item.get("index", place)), _vector(item["embedding"])) for place, item in enumerate(items)]
        except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
            raise EncoderError(
                f"{self._url} does not answer like an embeddings endpoint: check the base url (it often ends in /v1)"
            ) from None
        rows.sort(key=lambda row: row[0])
        if [index for index, _ in rows] != list(range(count)):
            raise EncoderError(f"{self._url} gave {len(rows)} vectors for {count} texts, or indices that fit no text")
        lengths = sorted({len(vector) for _, vector in rows})
        if len(lengths) > 1:
            raise EncoderError(f"{self._url} gave vectors of {lengths[0]} and {lengths[-1]} dimensions in one answer")
        return np.stack([vector for _, vector in rows])

    def _refusal(self, response: httpx2.Response) -> str:
        status = response.status_code
        if status in (401, 403):
            return (
                f"{self._url} refuses the key ({status}): set UNEMBED_API_KEY "
                "(OPENAI_API_KEY is sent only to api.openai.com, to the host of OPENAI_BASE_URL and to this machine)"
            )
        if status == 404:
            return f"{self._url} knows no model '{self.model}', or the base url is wrong (404): check both"
        return _scrub(f"{self._url} refuses the request ({status}): {_message(response)}")


def _key(host: str) -> str:
    """UNEMBED_API_KEY for any host; OPENAI_API_KEY only for OpenAI, OPENAI_BASE_URL's host and this machine."""
    if key := os.environ.get("UNEMBED_API_KEY", "").strip():
        return key
    own = httpx2.URL(os.environ.get("OPENAI_BASE_URL", DEFAULT_URL)).host
    trusted = (httpx2.URL(DEFAULT_URL).host, own, *LOCAL_HOSTS)
    return os.environ.get("OPENAI_API_KEY", "").strip() if host in trusted else ""


def _scrub(text: str) -> str:
    """Servers sometimes repeat the key in their message."""
    for name in ("UNEMBED_API_KEY", "OPENAI_API_KEY"):
        if key := os.environ.get(name, "").strip():
            text = text.replace(key, "***")
    return text


def _without_login(text: str) -> str:
    return re.sub(r"//[^/]*@", "//", text)


def _message(response: httpx2.Response) -> str:
    """What the server says, on one line."""
    try:
        body = response.json()
        error = body.get("error", body) if isinstance(body, dict) else body
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except ValueError:
        text = response.text
    # Scrubbed before it is cut: the start of a key must not stay behind.
    return _scrub(" ".join(text.split()))[:EXCERPT]


def _retry_after(response: httpx2.Response) -> float:
    """Seconds that the server asks to wait: given as a number or as a date."""
    value = response.headers.get("retry-after", "").strip()
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, (date - datetime.now(UTC if date.tzinfo else None)).total_seconds())


def _vector(embedding: str | list[float]) -> Vectors:
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding, validate=True), dtype="<f4").astype(np.float32)
    vector = np.array(embedding, dtype=np.float32)
    if vector.ndim != 1 or not len(vector):
        raise ValueError
    return vector
