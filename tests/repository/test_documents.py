"""Documents agree with the code: commands, categories, versions."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import nbmem
from nbmem.core.session.categories import MEANINGS, Category

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = dict(re.findall(r"^([a-z-]+):.*?## (.+)$", MAKEFILE, re.MULTILINE))


def shell_lines(text: str) -> list[str]:
    """The commands in a document's shell blocks, without comments."""
    blocks = re.findall(r"```(?:bash|sh|shell|console)\n(.*?)```", text, re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


COMMANDS = sorted({line for path in DOCUMENTS for line in shell_lines(path.read_text())})


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
def test_the_glossary_has_each_category_as_the_code_has_it(category):
    assert f"| {category.label} | `{category.key}` | {MEANINGS[category]} |" in GLOSSARY


def test_the_changelog_knows_the_version():
    assert f"## [{nbmem.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_extension_has_the_version_of_the_package():
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    locked = json.loads((ROOT / "labextension" / "package-lock.json").read_text())
    assert package["version"] == locked["version"] == nbmem.__version__


def test_the_readme_is_a_page_or_two():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_between_documents_lead_somewhere(path):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    targets += re.findall(r"""\bsrc(?:set)?="(?!https?:)([^"]+)""", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_a_packages_page_gets_links_that_work_without_the_repository(monkeypatch):
    interface = SimpleNamespace(BuildHookInterface=object, MetadataHookInterface=object)
    for package in ("builders.hooks", "metadata"):  # hatchling is in environments that build
        words = f"hatchling.{package}.plugin.interface".split(".")
        for end in range(1, len(words) + 1):
            monkeypatch.setitem(sys.modules, ".".join(words[:end]), interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute"]
    text = hook((ROOT / "README.md").read_text(), PROJECT["urls"]["Repository"])
    assert re.findall(r"""(?:\]\(|src(?:set)?=")(?!https://)[^)"]+""", text) == []
    assert f"{PROJECT['urls']['Repository']}/raw/HEAD/docs/explorer-light.png" in text


def test_the_project_lives_at_one_address():
    at_home = re.compile(r"https://(?:github\.com/nbmem|nbmem\.)[\w./-]*")
    homes = (PROJECT["urls"]["Repository"], PROJECT["urls"]["Documentation"])
    for path in (ROOT / "CITATION.cff", *(ROOT / ".github").rglob("*.*"), *DOCUMENTS):
        strange = [url for url in at_home.findall(path.read_text()) if not url.startswith(homes)]
        assert strange == [], path.name
