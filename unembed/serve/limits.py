"""Every bound of the server in one place, and what a refusal looks like."""

from __future__ import annotations

from dataclasses import dataclass

from unembed.errors import ConfigError

# Of one request; the OpenAPI description names them.
MAX_STEPS = 128
MAX_GUIDANCE = 20.0
MAX_TEMPERATURE = 5.0
MAX_SEED = 2**53 - 1  # the largest whole number that JavaScript keeps exactly
MAX_N_BEST = 5
MAX_DIM = 8192
MAX_VECTORS = 1024  # whatever `Limits.vectors` says
MAX_FIELDS = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes on."""

    queue: int = 64
    """Requests that may wait; the next one is refused."""
    capacity: int = 32
    """Texts that are decoded together, in one forward pass."""
    share: int = 8
    """Decodings that one client may have waiting or running; the page's comparison needs 6."""
    vectors: int = 128
    """Vectors in one request."""
    text_chars: int = 2_000
    """Length of a text to embed."""
    encodings: int = 64
    """Texts that may wait for the encoder."""
    encodings_share: int = 16
    """Of these, texts of one client."""
    searches: int = 4
    """Searches with encoder feedback that may wait or run; one runs at a time."""
    searches_share: int = 2
    """Of these, searches of one client."""
    search_budget: int = 100
    """Texts and gradients that one of them may ask the encoder about."""
    body_bytes: int = 2_000_000
    """Size of a request; 128 vectors of 384 dimensions are about half of it."""
    body_seconds: float = 10.0
    """A request that does not arrive in this time is dropped."""
    stream_seconds: float = 60.0
    """From the request to the last event."""
    connections: int = 512
    """Requests under way, of any kind."""
    connections_share: int = 128
    """Of these, requests of one client; and connections that it may have open."""
    open_connections: int = 768
    """Connections, with or without a request; the next one is closed at once."""
    header_seconds: float = 10.0
    """A connection that has not sent a whole request head in this time is closed."""
    stop_seconds: float = 2.0
    """What running streams get to end after SIGTERM."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give a number above 0")
        if self.vectors > MAX_VECTORS:
            raise ConfigError(f"vectors is {self.vectors}: give a number up to {MAX_VECTORS}")


class Refusal(Exception):
    """An answer that is an error: a status, a slug for programs, a sentence for people."""

    def __init__(self, status: int, error: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.error, self.message, self.retry_after = status, error, message, retry_after


# Made anew each time: an exception keeps the frames that raised it, and with them what somebody sent.
def stopping() -> Refusal:
    """After SIGTERM."""
    return Refusal(503, "stopping", "the server is stopping: try again in a minute", 60)


def too_long() -> Refusal:
    """After `stream_seconds`."""
    return Refusal(503, "took_too_long", "the time for one request is over: ask for less, or try again later", 10)


def failed() -> Refusal:
    """After the decoder's thread has died."""
    return Refusal(503, "failed", "the decoder of this server has failed: start the server again")


def too_many(what: str, retry_after: int = 1) -> Refusal:
    """A client's share is used up."""
    return Refusal(429, "too_many_requests", f"{what}: wait for one to end", retry_after)


def internal() -> Refusal:
    """A fault of ours."""
    return Refusal(500, "internal", "the server failed at this request: its log names the place")
