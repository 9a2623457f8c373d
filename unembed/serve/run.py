"""Run the app under uvicorn: an own socket, own signals, and an orderly end."""

from __future__ import annotations

import gc
import ipaddress
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from unembed.errors import ConfigError
from unembed.serve.protocol import bounded
from unembed.serve.service import Service

if TYPE_CHECKING:
    from starlette.types import ASGIApp

# SIGTERM to exit: streams get Limits.stop_seconds, then connections this much; all of it stays under 5 s.
CLOSE_SECONDS = 2.5
JOIN_SECONDS = 0.5
BACKLOG = 2048
# Two hundred clients that come at once are let in over some turns of the event loop, and /health in between.
ACCEPTED_IN_A_TURN = 8


def listen(host: str, port: int) -> socket.socket:
    """Take the port before anything slow happens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would let two servers share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # a port that is only bound could still be taken by another
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(_reason(host, port, error)) from None
    return listener


def _reason(host: str, port: int, error: Exception) -> str:
    if isinstance(error, OverflowError):
        return f"port {port}: give a number from 0 to 65535"
    if isinstance(error, socket.gaierror):
        return f"host {host!r} is not known here: give an address of this machine, such as 127.0.0.1"
    if isinstance(error, PermissionError):
        return f"port {port} is not allowed for you: choose one above 1023 (--port 8765)"
    import errno

    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use: stop what uses it, or choose another (--port {port + 1 if port < 65535 else 8765})"
        )
    return f"cannot listen on {host} port {port} ({getattr(error, 'strerror', error)}): choose another --host or --port"


def address(listener: socket.socket) -> str:
    """The URL to open."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run(app: ASGIApp, service: Service, listener: socket.socket, when_ready: Callable[[], None]) -> bool:
    """Serve until SIGTERM (True), the decoder fails (False) or Ctrl-C (KeyboardInterrupt)."""
    server = make_server(app, service)
    # uvicorn raises the signal again when it has ended; for SIGTERM this end is what was asked for.
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_report, args=(service, server, when_ready), daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        service.worker.join(JOIN_SECONDS)  # longer only in the middle of a long pass; the thread ends with the process
    return not service.worker.failed


def make_server(app: ASGIApp, service: Service) -> uvicorn.Server:
    """The server, ready to run."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,  # it would name who asked what, and when
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,  # type: ignore[arg-type]
        backlog=ACCEPTED_IN_A_TURN,
        http=bounded(service.limits),
        proxy_headers=False,  # a header that anyone can send must not decide whose share is used
        loop="asyncio",
        lifespan="on",
        ws="none",
    )
    return _Server(config, service)


class _Server(uvicorn.Server):
    """Tells the worker first, so that streams end before their connections are closed."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio has set it to what it accepts in a turn

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.worker.stop(self._service.limits.stop_seconds)
        self._service.searches.stop()
        self._service.embedding.stop()
        await super().shutdown(sockets)


def _report(service: Service, server: uvicorn.Server, when_ready: Callable[[], None]) -> None:
    """Say when it is ready; end the server when the decoder fails, before or after."""
    while not (server.started and service.status == "ready"):
        if server.should_exit:
            return
        if service.worker.failed:
            server.should_exit = True
        time.sleep(0.02)
    # What is loaded stays. Looking through all of it for garbage would stop every thread for 0.1 s now and then.
    gc.collect()
    gc.freeze()
    when_ready()
    while not server.should_exit:
        server.should_exit = service.worker.failed
        time.sleep(0.2)
