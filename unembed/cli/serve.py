"""`unembed serve`: the live page and the HTTP API."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from unembed.cli import console
from unembed.errors import MissingExtraError

HOST = "127.0.0.1"

# In bf16 a CPU's products keep their code in two caches, of 1,024 shapes each unless they are told otherwise before
# the first product. Nearly every round of a server has other shapes: that came to 300 MB in twelve busy ones, and grew.
CACHES, SHAPES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "64"


def serve(
    *,
    inverter: str = "default",
    host: str = HOST,
    port: int = 8765,
    open_: Annotated[bool | None, Parameter(name="--open", negative="--no-open")] = None,
    encoder: str = "auto",
    queue: int = 64,
    share: int = 8,
    allow_host: tuple[str, ...] = (),
    allow_origin: tuple[str, ...] = (),
    json: bool = False,
) -> int:
    """Open a page that recovers texts from vectors live, and answer over HTTP.

    ```
    unembed serve
    unembed serve --inverter runs/mine --port 9000 --no-open
    unembed serve --host 0.0.0.0 --allow-host demo.example.org
    ```

    Only this machine can reach it, unless --host says otherwise. Texts and vectors are neither logged nor stored.

    Args:
        inverter: An inverter folder or hub id; `default` is the shipped one, for all-MiniLM-L6-v2.
        host: Address to listen on. 0.0.0.0 lets everyone who can reach this machine use it, without a password.
        port: Port to listen on; 0 takes any free one.
        open_: Open the page in a browser. Without a word: when a person sits at the terminal.
        encoder: Encoder for texts: `auto` is the inverter's own where it is installed, `none` does without.
        queue: Requests that may wait; the next one is told to come back later.
        share: Decodings that one client address may have waiting or running; behind a proxy all clients are one.
        allow_host: A name under which the server may be addressed, besides localhost and --host. Can be repeated.
        allow_origin: Another web page that may use the API, such as https://example.org. Can be repeated.
        json: Say in JSON where the server is.
    """
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("fastapi and uvicorn", "serve", "the server") from None
    for cache in CACHES:
        os.environ.setdefault(cache, SHAPES)
    from unembed.serve import run
    from unembed.serve.limits import Limits

    limits = Limits(queue=queue, share=share)
    with run.listen(host, port) as listener:
        url = run.address(listener)
        if not run.is_loopback(host):
            console.warn([f"--host {host}: everyone who can reach this machine can use the server, without a password"])

        from unembed.cli.invert import open_inverter
        from unembed.serve.app import create_app

        app, service = create_app(
            open_inverter(inverter),
            name="minilm" if inverter == "default" else Path(inverter).name,
            encoder=encoder,
            limits=limits,
            host=host,
            allow_hosts=(*allow_host, listener.getsockname()[0]),  # the printed URL, where --host is a name
            allow_origins=allow_origin,
        )

        def ready() -> None:
            if service.embedding.problem and encoder != "none":
                console.warn([f"no encoder: {service.embedding.problem}"])
            if json:
                console.print_json({"url": url, "model": service.name, "encoder": service.embedding.name})
            else:
                console.print_line(f"unembed is at {url} (Ctrl-C stops it)")
            sys.stdout.flush()
            if open_ or (open_ is None and console.is_terminal()):
                import webbrowser

                webbrowser.open(url)

        if not run.run(app, service, listener, ready):
            return 1  # the worker has logged why
    # SIGTERM. Everybody has been told, nothing is on its way to disk, and taking torch apart can need the seconds that
    # whoever sent the signal waits before the next one.
    sys.stdout.flush()
    os._exit(0)
