"""Names and docstrings use the words of the field: see "Names and English" in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted([*ROOT.glob("nbmem/**/*.py"), *ROOT.glob("tools/*.py")])
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
RIDDLES = frozenset(
    (
        "alike", "apart", "asked", "births", "books", "born", "door", "dying",
        "gone", "guest", "heard", "hears", "house", "instead", "lent", "lies",
        "living", "look", "looked", "looks", "mail", "met", "neighbour", "neighbours",
        "nobody", "roll", "rolls", "said", "says", "somebody", "stays", "tell",
        "tells", "told", "turn", "turns", "waist", "who", "whose",
    )
)  # fmt: skip
"""Words that name nothing in PyTorch or Jupyter; each was a module, class or function once."""
ALLOWED = {
    "roll": "torch.roll",
    "roll_each": "torch.roll",
}
SUBJECT = 72
LEANS = re.compile(
    r"(?:It|Its|That|Those|The same|As|Likewise|Both|Also|So|And|They|This|These|There|Who|Whom|"
    r"What|Whether|Where|Which|How|When|If|Here)\b"
)
PERSONS = re.compile(r"\b(?:nobody|who|whom|whoever)\b", re.IGNORECASE)
FIRST_COMMIT = "5144d9d7"
"""The last commit before subjects were checked."""
PART = re.compile(r"[a-z0-9_/.-]+(?:, [a-z0-9_/.-]+)*: [^ ].*[^.]")
"""`ledger: count a shared storage once`."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def named(path: Path) -> list[str]:
    """List a module's own name and those of its classes and functions."""
    inside = [n.name for n in ast.walk(tree(path)) if isinstance(n, DOCUMENTED[1:])]
    return [path.parent.name if path.stem == "__init__" else path.stem, *inside]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_name_is_a_word_of_the_field(path):
    riddles = [name for name in named(path) if words_of(name) & RIDDLES and name not in ALLOWED]
    assert not riddles, f"use the word that a PyTorch developer would search for: {riddles}"


def test_every_exception_is_still_needed():
    names = {name for path in MODULES for name in named(path)}
    assert set(ALLOWED) <= names


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_docstrings_first_line_stands_alone(path):
    faults = defaultdict(list)
    for node in ast.walk(tree(path)):
        if not isinstance(node, DOCUMENTED) or not (text := ast.get_docstring(node)):
            continue
        first = text.splitlines()[0]
        if len(first) > SUBJECT:
            faults[f"more than {SUBJECT} characters"].append(first)
        if LEANS.match(first):
            faults["it leans on another sentence"].append(first)
        if PERSONS.search(first):
            faults["code is no person"].append(first)
        if not first.endswith((".", "?", "!")):
            faults["no full stop"].append(first)
    assert not faults, dict(faults)


def subjects() -> list[str]:
    """List the subjects of the commits since subjects are checked."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{FIRST_COMMIT}..HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout, or one without its history")
    return done.stdout.splitlines()


def test_a_commits_subject_names_its_part_in_one_short_line():
    wrong = [one for one in subjects() if len(one) > SUBJECT or not PART.fullmatch(one)]
    assert not wrong, f"write `part: what it does now`, at most {SUBJECT} characters: {wrong}"
