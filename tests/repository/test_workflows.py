"""The code host's workflows run what CI runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with transformers")

ROOT = Path(__file__).parents[2]


def names_of_checks() -> list[str]:
    """List the names in CHECKS of tools/test.py, without importing it."""
    for node in ast.parse((ROOT / "tools" / "test.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CHECKS":
            return [call.args[0].value for call in node.value.elts]
    raise LookupError("tools/test.py has no CHECKS")


def test_the_parts_of_a_pull_request_are_all_checks_each_once():
    text = (ROOT / ".github" / "workflows" / "pull-request.yml").read_text()
    parts = yaml.safe_load(text)["jobs"]["check"]["strategy"]["matrix"]["include"]
    found = [name for part in parts for name in part["checks"].split()]
    assert sorted(found) == sorted(names_of_checks())


def test_pre_commit_has_hooks_that_are_commands_of_the_environment():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} >= {"ruff", "ruff-format", "codespell"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
