"""HTTP on one connection, bounded: how many there are, and how long one may take to say what it wants.

uvicorn closes a connection that is silent after an answer; one that is silent from the start it keeps for ever.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from unembed.serve.guard import client_key
from unembed.serve.limits import Limits


def bounded(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol class for a server with these limits."""

    class Bounded(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if self._too_many():
                transport.abort()
            else:
                self._start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._cancel()  # the head is there; the guard has an eye on the body
            elif self._deadline is None and not self.transport.is_closing():
                self._start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel()
            super().connection_lost(exc)

        def _too_many(self) -> bool:
            if len(self.connections) > limits.open_connections:
                return True
            mine = client_key(self.client[0]) if self.client else ""
            others = (other.client for other in self.connections if isinstance(other, H11Protocol))
            return sum(client_key(other[0]) == mine for other in others if other) > limits.connections_share

        def _start(self) -> None:
            self._deadline = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _cancel(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Bounded
