"""The tables in README.md and docs/ are those of the results files."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.measure.doubles import make_results
from unembed.measure import results as disk
from unembed.measure.table import markdown_table

ROOT = Path(__file__).resolve().parent.parent
NO_TABLES = "no table: <!-- results:main -->\n<!-- results:main view=x --> ... <!-- /results:main -->\n"
TOOL = ROOT / "tools" / "render_readme.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_readme", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A README with two tables of one results file, and a page with none."""
    disk.save(make_results(), tmp_path / "results" / "main.json")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(NO_TABLES)
    (tmp_path / "README.md").write_text(
        "# x\n\n<!-- results:main columns=bleu -->\nold\n<!-- /results:main -->\n\nbetween\n\n"
        "<!-- results:main view=length system=slow -->\n<!-- /results:main -->\nend\n"
    )
    return tmp_path


def test_the_tables_of_this_repository_are_those_of_its_results() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_render_fills_the_places_and_touches_nothing_else(tool: ModuleType, repository: Path) -> None:
    assert tool.main([], repository) == 0
    results = make_results()
    assert (repository / "README.md").read_text() == (
        "# x\n\n<!-- results:main columns=bleu -->\n"
        f"{markdown_table(results, columns=['bleu'])}\n"
        "<!-- /results:main -->\n\nbetween\n\n<!-- results:main view=length system=slow -->\n"
        f"{markdown_table(results, 'length', system='slow')}\n"
        "<!-- /results:main -->\nend\n"
    )
    assert (repository / "docs" / "page.md").read_text() == NO_TABLES
    assert tool.main(["--check"], repository) == 0


def test_check_fails_when_a_number_drifts_and_changes_nothing(
    tool: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool.main([], repository)
    page = repository / "README.md"
    altered = page.read_text().replace("29.0", "39.0", 1)
    assert altered != page.read_text()
    page.write_text(altered)
    assert tool.main(["--check"], repository) == 1
    assert "README.md: tables differ" in capsys.readouterr().err
    assert page.read_text() == altered


def test_check_fails_when_the_results_change(tool: ModuleType, repository: Path) -> None:
    tool.main([], repository)
    path = repository / "results" / "main.json"
    path.write_text(path.read_text().replace("29.0", "28.5"))
    assert tool.main(["--check"], repository) == 1


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("<!-- results:main -->\n", "does not end"),
        ("<!-- results:main -->\n<!-- results:main -->\n<!-- /results:main -->\n", "does not end"),
        ("<!-- results:other -->\n<!-- /results:other -->\n", "no results at"),
        ("<!-- results:main colour=red -->\n<!-- /results:main -->\n", "cannot read 'colour=red'"),
        ("<!-- results:main view=pie -->\n<!-- /results:main -->\n", "no table named 'pie'"),
    ],
)
def test_bad_markers(
    tool: ModuleType, repository: Path, page: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "README.md").write_text(page)
    assert tool.main(["--check"], repository) == 2
    assert message in capsys.readouterr().err
    assert (repository / "README.md").read_text() == page


def test_a_missing_readme_and_wrong_arguments(
    tool: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--chekc"], repository) == 2
    assert "usage" in capsys.readouterr().err
    (repository / "README.md").unlink()
    assert tool.main([], repository) == 2
    assert "README.md" in capsys.readouterr().err
