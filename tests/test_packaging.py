"""The repository as a whole: linters, types, rooms, README, pins, docs that name what exists."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
LONGEST_MODULE = 400


@pytest.mark.parametrize(
    "tool",
    [
        ["ruff", "check", "--no-cache", "."],
        ["ruff", "format", "--check", "--no-cache", "benchmarks", "tests", "tools", "unembed", "--exclude", "*.md"],
        ["mypy"],
        ["lint-imports", "--no-cache"],
    ],
    ids=lambda tool: " ".join(tool[:2]),
)
def test_linters(tool):
    """Run as tests, so that one command checks everything."""
    program = Path(sys.executable).parent / tool[0]
    found = str(program) if program.exists() else shutil.which(tool[0])
    assert found, f"{tool[0]} is not installed: pip install -e '.[test]'"
    done = subprocess.run([found, *tool[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_are_short():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "unembed").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > LONGEST_MODULE
    }
    assert not long


def test_ci_runs_the_test_command_of_the_readme():
    commands = re.findall(r"^python3 -m venv .*$", README, re.MULTILINE)
    assert len(commands) == 2, "the README promises two commands"
    first, second = commands
    assert ".venv/bin/unembed invert" in first
    assert second in (ROOT / ".ci" / "run").read_text().splitlines()
    for command in commands:
        assert "-c constraints.txt" in command


def test_readme_links_lead_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {name(line): line for line in lines if not line.startswith("#")}
    assert pins["torch"] == "torch==2.13.0", "an open torch pulls gigabytes; see docs"
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = {name(line) for group in (PROJECT["project"]["dependencies"], *extras.values()) for line in group}
    assert wanted - {"unembed"} <= pins.keys()
    assert all("==" in line for line in pins.values())


def name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_versions_agree():
    version = PROJECT["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:2] == ["Apache", "License"]
    assert "END OF TERMS AND CONDITIONS" in text


def test_typed_and_public_names():
    import unembed

    assert (ROOT / "unembed" / "py.typed").is_file()
    for public in unembed.__all__:
        assert getattr(unembed, public) is not None


def test_docs_name_what_exists():
    """docs/method.md maps equations to functions: every dotted name in the docs must lead to something."""
    found = set()
    for page in (ROOT / "docs").glob("*.md"):
        found |= set(re.findall(r"`(unembed(?:\.\w+)+)", page.read_text()))
    assert len(found) > 15
    for dotted in found - {"unembed.encoders", "unembed.strategies", "unembed.stores"}:  # entry point groups
        resolve(dotted)


def resolve(dotted: str) -> object:
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            thing: object = import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            assert hasattr(thing, part), f"{dotted} does not exist"
            thing = getattr(thing, part)
        return thing
    raise AssertionError(f"{dotted} does not exist")


def test_fields_named_in_the_docs_exist():
    from unembed.config import Config, to_dict

    known = {f"{section}.{field}" for section, fields in to_dict(Config()).items() for field in fields}
    text = (ROOT / "docs" / "method.md").read_text() + (ROOT / "docs" / "training.md").read_text()
    named = set(re.findall(r"(?<![.\w])((?:model|diffusion|train)\.[a-z_0-9]+)", text)) - {"model.safetensors"}
    assert len(named) > 8
    assert named <= known


def test_parameter_counts_in_the_docs():
    """The comparison with the paper's 78M is made of numbers; they must be those of the code."""
    import torch

    from unembed.config import paper
    from unembed.model.denoiser import Denoiser, parameter_counts

    text = (ROOT / "docs" / "method.md").read_text()
    row = r"^\| ([\d,]+) tokens, ([\d,]+) dimensions .*?\| ([\d.]+) M \| ([\d.]+) M \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert len(rows) == 3
    for tokens, dim, total, trainable in rows:
        vocabulary = int(tokens.replace(",", ""))
        model = dataclasses.replace(
            paper().model, vocab_size=vocabulary, mask_id=vocabulary - 1, vector_dim=int(dim.replace(",", ""))
        )
        with torch.device("meta"):
            counts = parameter_counts(Denoiser(model))
        assert [f"{count / 1e6:.1f}" for count in counts] == [total, trainable]
