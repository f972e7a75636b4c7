"""The documents say what the code says: commands, categories, figures of the version."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import nbmem
from nbmem.core.categories import MEANINGS, Category

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z-]+):.*?## (.+)$", MAKEFILE, re.MULTILINE))


def shell_lines(text: str) -> list[str]:
    """The commands in a document's shell blocks, without comments."""
    blocks = re.findall(r"```(?:bash|sh|shell|console)\n(.*?)```", text, re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


COMMANDS = shell_lines(README) + shell_lines((ROOT / "CONTRIBUTING.md").read_text())


def help_of(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def options_of(command: str) -> list[str]:
    return [word for word in command.split() if re.fullmatch(r"--[a-z-]+", word)]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python3 tools/")])
def test_a_script_of_the_documents_exists_as_written(command):
    script = command.split()[1]
    text = help_of(script)
    assert [word for word in options_of(command) if word not in text] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("nbmem ")])
def test_a_command_of_the_documents_exists_as_written(command):
    text = help_of("-m", "nbmem", command.split()[1])
    assert [word for word in options_of(command) if word not in text] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_a_make_target_of_the_documents_exists(command):
    assert set(command.split()[1:]) <= set(TARGETS)


def test_every_make_target_says_what_it_does():
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)[1].split()
    assert sorted(TARGETS) == sorted(phony)


@pytest.mark.parametrize("category", list(Category), ids=lambda category: category.key)
def test_the_readme_has_each_category_as_the_code_has_it(category):
    assert f"| {category.label} | `{category.key}` | {MEANINGS[category]} |" in README


def test_the_changelog_knows_the_version():
    assert f"## [{nbmem.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_links_between_documents_lead_somewhere():
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
