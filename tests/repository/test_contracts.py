"""Import contracts of pyproject.toml refuse forbidden imports."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="import-linter is not installed")

from nbmem.core.session.source_files import OURS, is_ours

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command as run; run(['--no-logo', '--no-cache'])"


@pytest.fixture
def house(tmp_path):
    """A copy of the package with its contracts."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "nbmem", tmp_path / "nbmem", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("core/units.py", "import nbmem.report.ledger"),
        ("capture/record/__init__.py", "import nbmem.report.ledger"),
        ("capture/record/__init__.py", "import nbmem.allocator"),
        ("capture/record/__init__.py", "import torch"),
        ("capture/tensors/__init__.py", "import nbmem.capture.record"),
        ("capture/__init__.py", "import nbmem.virtual"),
        ("virtual/__init__.py", "import nbmem.report.ledger"),
        ("allocator/__init__.py", "import torch"),
        ("report/ledger/__init__.py", "import nbmem.capture"),
        ("report/ledger/__init__.py", "import nbmem.views"),
        ("views/__init__.py", "import nbmem.virtual"),
        ("views/__init__.py", "import pynvml"),
        ("views/__init__.py", "import bokeh"),
        ("core/session/__init__.py", "import nbmem.core.files"),
        ("estimates/runs/__init__.py", "import nbmem.estimates.questions"),
        ("report/ledger/__init__.py", "import nbmem.report.analysis"),
    ],
)
def test_a_forbidden_import_is_refused(house, module, statement):
    path = house / "nbmem" / module
    path.write_text(f"{path.read_text()}\n{statement}\n")
    result = lint(house)
    source = f"nbmem.{module.split('/')[0]}"
    imported = statement.removeprefix("import ")
    assert result.returncode == 1, result.stdout
    refused = [line for line in result.stdout.splitlines() if " -> " in line and source in line]
    assert any(imported in line for line in refused), result.stdout


def test_a_package_without_a_place_in_the_layers_is_refused(house):
    (house / "nbmem" / "shiny").mkdir()
    (house / "nbmem" / "shiny" / "__init__.py").write_text('"""A package without a place."""\n')
    result = lint(house)
    assert result.returncode == 1
    assert "nbmem.shiny" in result.stdout


def test_the_folders_that_stand_before_torch_are_those_that_may_touch_it_or_capture():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    allowed = {
        name.split(".")[1]
        for contract in contracts["contracts"]
        if contract["id"] in {"torch", "capture"}
        for name in contract["allowed_importers"]
    }
    assert set(OURS) == allowed
    assert all(is_ours(f"/x/nbmem/{name}/a.py") for name in allowed)
    assert not is_ours("/x/nbmem/train.py")


def test_the_contracts_are_kept_as_it_is(house):
    result = lint(house)
    assert result.returncode == 0, result.stdout
