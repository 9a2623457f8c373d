"""`unembed report`: the report of an audit, made again from its log."""

from __future__ import annotations

from pathlib import Path


def report(folder: Path, /, *, json: bool = False) -> None:
    """Make the report of an audit again, from its log.

    ```
    unembed report audit
    unembed report audit --json
    ```

    Reads audit.jsonl and writes audit.json and report.html. Neither the store nor the encoder is asked. Personal data
    that the audit covered up is not in the log, and stays covered.

    Args:
        folder: The folder of an audit.
        json: Print the numbers as JSON instead of a summary.
    """
    from unembed.audit import run
    from unembed.cli.audit import show

    show(run.rebuild(folder), folder / run.REPORT, json=json)
