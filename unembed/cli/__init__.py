"""The command line. One file per command, imported only when that command runs.

This room is thin: it reads arguments, calls the library, and draws. It is the only one that prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import unembed
from unembed.errors import UnembedError

if TYPE_CHECKING:
    from cyclopts import App

# name: what the overview says of it. The function is unembed.cli.<name>:<name>.
COMMANDS = {
    "invert": "Recover the text behind a vector, or make the round trip from a text of yours.",
    "encode": "Turn texts into a dataset of token windows and their vectors.",
    "train": "Train an inverter on a dataset.",
    "evaluate": "Measure an inverter end to end on unseen text.",
    "audit": "Find out what the vectors of a store give away, and write a report.",
    "report": "Make the report of an audit again, from its log.",
    "serve": "Open a page that recovers texts from vectors live, and answer over HTTP.",
}
STDIN = "/dev/stdin"
HELP = "Recover text from embedding vectors, and measure how much they leak."
EPILOGUE = """
Start here: `unembed invert "The parcel will arrive on Tuesday morning."`

Each command shows an example with `--help`.
"""


def make_app(chosen: str = "") -> App:
    """The commands by name; no module of a command is imported unless it is the chosen one, so `--help` stays fast."""
    from cyclopts import App, Parameter

    app = App(
        name="unembed",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="markdown",
        default_parameter=Parameter(negative=(), show_default=_default),
        version=lambda: str(unembed.__version__),
        # main() turns errors into one line and an exit code
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for place, (name, summary) in enumerate(COMMANDS.items()):
        # The chosen command speaks for itself, with its docstring and examples.
        help_ = None if name == chosen else summary
        app.command(f"unembed.cli.{name}:{name}", name=name, help=help_, help_epilogue="", sort_key=place)
    return app


def _default(value: object) -> object:
    """What help shows as the default: nothing for what is simply off."""
    return None if value is False or value == () else value


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 or what the command says when it worked, 2 for bad input, 130 when interrupted."""
    # Nothing but an explicit `openai:` endpoint or a hub id may use the network; usage reports never do.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from cyclopts import CycloptsError

    given = list(sys.argv[1:] if argv is None else argv)
    # A lone dash means standard input; the parser would take it for an option.
    arguments = [STDIN if argument == "-" else argument for argument in given]
    try:
        code = make_app(chosen=next(iter(arguments), ""))(arguments)
        sys.stdout.flush()
    except UnembedError as error:
        return _refuse(str(error))
    except CycloptsError as error:
        command = " ".join(["unembed", *(error.command_chain or ())])
        return _refuse(f"{error} Try: {command} --help")
    except KeyboardInterrupt as interrupt:
        _say(f"unembed: stopped. {interrupt}".rstrip())
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has gone: not an error. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        return _refuse(f"{error.filename}: {error.strerror}")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    _say("unembed: " + " ".join(message.split()))
    return 2


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201
