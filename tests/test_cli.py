"""The command line as a stranger meets it: help, results, pipes, terminals, mistakes."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import resource
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unembed.cli import COMMANDS, live, main, make_app
from unembed.cli.invert import kind_of
from unembed.errors import UnembedError

ROOT = Path(__file__).parents[1]
TEXT = "The cat sees a red house today."


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """What `unembed encode` makes of a few hundred short sentences."""
    folder = tmp_path_factory.mktemp("cli")
    write_sentences(folder / "sentences.txt")
    assert main(["encode", str(folder / "sentences.txt"), "-o", str(folder / "data"), "--max-tokens", "16"]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def inverter(dataset) -> Path:
    """What `unembed train` makes of that: it works, and knows nothing."""
    run = dataset.parent / "run"
    assert main(["train", str(dataset), "-o", str(run), "--preset", "tiny", "--steps", "4"]) == 0
    return run


@pytest.fixture(scope="module")
def vectors(dataset) -> Path:
    path = dataset.parent / "vectors.npy"
    rows = np.random.default_rng(0).normal(size=(40, 384)).astype(np.float32)
    np.save(path, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return path


def write_sentences(path: Path) -> None:
    rng = random.Random(0)
    who = ["the cat", "a nurse", "my brother", "the old king", "every student", "one engineer", "the committee"]
    does = ["sees", "buys", "forgets", "repairs", "describes", "carries", "paints", "sells"]
    what = ["a red house", "the blue car", "two letters", "an open door", "some bread", "the last train", "a map"]
    when = ["today", "in the morning", "at night", "every week", "after lunch", "on tuesday", "again"]
    lines = {" ".join([rng.choice(part) for part in (who, does, what, when)]) + "." for _ in range(900)}
    path.write_text("\n".join(sorted(lines)) + "\n")


def unembed(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=ROOT, timeout=300, **options)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "unembed", *map(str, arguments)]


# --- help ---------------------------------------------------------------------------------------------------------


def test_help_is_fast():
    """Under half a second of computing; the clock on the wall also depends on what else the machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = unembed("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from unembed.cli import main; code = main(sys.argv[1:]); "
        "print('HEAVY', [m for m in ('torch', 'numpy', 'pyarrow', 'tokenizers') if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_and_json(name, capsys):
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^ *unembed {name} ", shown, re.MULTILINE), "no example"
    assert "--json" in shown
    function = getattr(import_module(f"unembed.cli.{name}"), name)
    assert function.__doc__.splitlines()[0] == COMMANDS[name], "the overview and the command say different things"


def test_commands_in_help_and_docs_parse():
    """An example that does not work is worse than none."""
    found = 0
    texts = [getattr(import_module(f"unembed.cli.{name}"), name).__doc__ for name in COMMANDS]
    texts += [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    for text in texts:
        for line in re.findall(r"^\s*(?:torchrun .* -m |.*\| |.*bin/)?unembed (\w+ .*)$", text, re.MULTILINE):
            words = shlex.split(line, comments=True)
            if words[0] in COMMANDS:
                parses(words)
                found += 1
    assert found >= 20


def parses(words: list[str]) -> None:
    words = ["/dev/stdin" if word == "-" else word for word in words]
    words = words[: words.index(">")] if ">" in words else words
    make_app().parse_args(words)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.match(r"\d", capsys.readouterr().out)


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], "train"),
        (["train", "--layers", "3"], "--layers"),
        (["train"], "unembed train DATASET -o RUN"),
        (["train", "--preset", "huge", "--dry-run"], "paper"),
        (["train", "--dry-run", "--set", "model.layer=3"], "did you mean 'layers'"),
        (["train", "--dry-run", "--set", "layers"], "section.field=value"),
        (["train", "--dry-run", "--steps", "many"], "--steps"),
        (["train", "no-such-folder", "-o", "run"], "unembed encode"),
        (["encode", "-o", "data"], "at least one source"),
        (["encode", "no-such-file.txt", "-o", "data"], "no-such-file.txt"),
        (["encode", "a.txt", "-o", "data", "--stage", "vectors"], "leave the sources out"),
        (["encode", "a.txt", "-o", "data", "--pairs"], "--encoder-name"),
        (["encode", "a.txt", "-o", "data", "--weight", "a"], "name=number"),
        (["encode", "a.txt", "-o", "data", "--part", "0/4"], "i/n"),
        (["encode", "-o", "data", "--stage", "vectors", "--part", "5/4"], "i/n"),
        (["encode", "a.txt"], "--output"),
        (["invert"], "argument"),
        (["invert", ""], "empty"),
        (["invert", "no-such-file.npy"], "--text"),
        (["invert", "tests"], "folder"),
        (["invert", "x", "--text", "--vectors"], "exclude"),
        (["invert", "some text", "-o", "out.jsonl"], "-o is for a file"),
        (["invert", "some text", "--steps", "0"], "steps is 0"),
        (["invert", "some text", "--fast", "--best"], "exclude"),
        (["invert", "some text", "--price", "0.02"], "add --feedback"),
        (["invert", "some text", "--strategy", "magic"], "sequential"),
        (["invert", "some text", "--device", "gpu"], "auto, cpu, cuda or mps"),
        (["invert", "some text", "--device", "cuda:99"], "use auto or cpu"),
        (["invert", "some text", "--inverter", "no/such/folder"], "no/such/folder"),
        (["evaluate", "no/such/folder", "data", "-o", "r.json"], "no/such/folder"),
        (["evaluate", "x", "data", "-o", "r.json", "-n", "0"], "-n is 0"),
        (["evaluate", "x", "data", "-o", "r.json", "--strategies", "magic"], "magic"),
        (["evaluate", "x", "data", "-o", "r.json", "--baselines", "magic"], "nearest"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_2(arguments, says, capsys, tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "a.txt").write_text("A line.\n")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("unembed: ")
    assert shown.err.count("\n") == 1
    assert says in shown.err


def test_bad_vectors_and_wrong_dimension(inverter, tmp_path, capsys):
    np.save(tmp_path / "nan.npy", np.full((3, 384), np.nan, dtype=np.float32))
    np.save(tmp_path / "narrow.npy", np.ones((3, 7), dtype=np.float32))
    (tmp_path / "notes.md").write_text("not vectors")
    for name, says in (("nan.npy", "row 0"), ("narrow.npy", "384"), ("notes.md", ".npy")):
        assert main(["invert", str(tmp_path / name), "--inverter", str(inverter)]) == 2
        assert says in capsys.readouterr().err


def test_output_that_cannot_be_written(inverter, vectors, tmp_path, capsys):
    assert main(["invert", str(vectors), "-o", str(tmp_path / "no" / "out.jsonl"), "--inverter", str(inverter)]) == 2
    assert str(tmp_path / "no") in capsys.readouterr().err


# --- text or file -------------------------------------------------------------------------------------------------


@given(st.text(min_size=1))
def test_ordinary_text_is_text(text):
    if text.lower().endswith((".npy", ".npz", ".parquet", ".pq", ".jsonl", ".ndjson")) or text in ("/dev/stdin", "/"):
        return
    with suppress(OSError, ValueError):
        if Path(text).exists():  # "." or, among the strings that Hypothesis finds in our own modules, "README.md"
            return
    assert kind_of(text, text=False, vectors=False) == "text"


def test_text_or_file(tmp_path):
    file = tmp_path / "odd name"
    file.write_bytes(b"")
    assert kind_of(str(file), text=False, vectors=False) == "vectors"
    assert kind_of(str(file), text=True, vectors=False) == "text"
    assert kind_of("gone.npy", text=True, vectors=False) == "text"
    assert kind_of("hello", text=False, vectors=True) == "vectors"
    assert kind_of("a" * 5000, text=False, vectors=False) == "text"
    assert kind_of("a\0b", text=False, vectors=False) == "text"
    with pytest.raises(UnembedError, match="--text"):
        kind_of("gone.NPY", text=False, vectors=False)


# --- results ------------------------------------------------------------------------------------------------------


def test_round_trip_in_a_pipe_is_the_text_alone_and_offline(inverter):
    """No socket may be opened, not even a look-up; nothing but the recovered text comes out."""
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): raise SystemExit('network!')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse\n"
        "from unembed.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    arguments = [sys.executable, "-c", code, "invert", TEXT, "--inverter", str(inverter)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.stdout.strip()
    assert "\x1b" not in done.stdout


def test_round_trip_json(inverter, capsys):
    assert main(["invert", TEXT, "--inverter", str(inverter), "--json", "--steps", "3", "--n-best", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["original"] == TEXT
    assert shown["recovered"] == shown["inversion"]["text"]
    assert -1 <= shown["cosine"] <= 1
    assert shown["encoder_calls"] == 0
    assert shown["decoding"]["steps"] == 3
    assert len(shown["inversion"]["alternatives"]) == 1


def test_fast_and_best_are_the_ends_and_settings_of_your_own_go_before_them(inverter, capsys):
    def decoding(*arguments):
        assert main(["invert", TEXT, "--inverter", str(inverter), "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)["decoding"]

    passes = [decoding(*end)["steps"] * (decoding(*end)["lengths"] or 3) for end in (["--fast"], [], ["--best"])]
    assert passes == sorted(set(passes))
    assert decoding("--best", "--steps", "3") == {**decoding("--best"), "steps": 3}
    assert decoding("--fast", "--lengths", "2") == {**decoding("--fast"), "lengths": 2}


def test_round_trip_on_a_terminal_shows_the_denoising(inverter):
    code, shown = on_terminal(command("invert", TEXT, "--inverter", inverter))
    assert code == 0
    assert live.MASK in shown, "no masks were drawn"
    for word in ("original", "recovered", TEXT, "cosine", "steps", " ms", "encoder asked 0 times"):
        assert word in shown
    last = shown[shown.rindex("recovered") :]
    assert live.MASK not in last


def on_terminal(arguments: list[str], seconds: float = 300) -> tuple[int, str]:
    """Run a command as a person sees it: a terminal of 100 columns; colours are left out."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(arguments, stdin=child, stdout=child, stderr=child, cwd=ROOT, env=environment)
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    return process.wait(timeout=seconds), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def test_vectors_to_standard_output(inverter, vectors, capsys):
    assert main(["invert", str(vectors), "--inverter", str(inverter), "--steps", "2"]) == 0
    plain = capsys.readouterr().out.splitlines()
    assert len(plain) == 40
    assert main(["invert", str(vectors), "--inverter", str(inverter), "--steps", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["row"] for row in rows] == list(range(40))
    assert [row["text"] for row in rows] == plain


def test_vectors_from_standard_input(inverter, vectors):
    lines = "".join(json.dumps(row.tolist()) + "\n" for row in np.load(vectors)[:3])
    done = unembed("invert", "-", "--inverter", inverter, input=lines)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_a_reader_that_leaves_early_is_no_error(inverter, vectors):
    line = f"{shlex.join(command('invert', vectors, '--inverter', inverter, '--json'))} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_notes_reach_a_pipe(inverter, tmp_path, capsys):
    np.save(tmp_path / "long.npy", np.full((2, 384), 2.0, dtype=np.float32))
    assert main(["invert", str(tmp_path / "long.npy"), "--inverter", str(inverter), "--steps", "1"]) == 0
    assert "2 vectors were not of unit length" in capsys.readouterr().err


def test_encode_says_nothing_in_a_pipe_and_json_when_asked(dataset, capsys):
    again = ["encode", str(dataset.parent / "sentences.txt"), "-o", str(dataset), "--max-tokens", "16"]
    assert main(again) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*again, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["texts"]["train"] > 500
    assert shown["encoder"] == "minilm"


def test_encode_pairs(tmp_path, capsys):
    lines = [{"text": f"number {i} is here", "vector": [float(i + 1), 1.0, 0.5]} for i in range(20)]
    lines.append({"text": "", "vector": [1.0, 2.0, 3.0]})
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["encode", str(pairs), "-o", str(tmp_path / "data"), "--pairs", "--encoder-name", "mine"]
    assert main(arguments) == 2
    assert "row 21" in capsys.readouterr().err
    assert main([*arguments, "--skip-bad"]) == 0
    assert capsys.readouterr() == ("", "unembed: note: left out: 1 (empty text)\n")
    assert main([*arguments, "--skip-bad", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sum(shown["texts"].values()) == 20
    assert sum(shown["left_out"].values()) == 1


def test_dry_run_counts_parameters(capsys):
    assert main(["train", "--preset", "paper", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"]["layers"] == 8
    assert shown["parameters"] > shown["trainable"] > 70_000_000
    assert main(["train", "--dry-run", "--set", "model.layers=2", "--steps", "7"]) == 0
    plain = capsys.readouterr().out
    assert "model.layers = 2\n" in plain
    assert "train.steps = 7\n" in plain


def test_evaluate(inverter, dataset, tmp_path, capsys):
    arguments = ["evaluate", str(inverter), str(dataset), "-o", str(tmp_path / "r.json"), "-n3", "--resamples", "10"]
    assert main([*arguments, "--strategies", "confidence,sequential", "--baselines", "random,nearest"]) == 0
    table = capsys.readouterr().out
    assert [name for name in ("confidence", "sequential", "random", "nearest", "unconditional") if name in table] == [
        "confidence", "sequential", "random", "nearest",
    ]  # fmt: skip
    results = json.loads((tmp_path / "r.json").read_text())
    assert results["n"] == 3
    assert len(results["weights"]) == 64
    assert main([*arguments, "--baselines", "none", "--no-cosine", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "cosine" not in shown["systems"][0]["overall"]
