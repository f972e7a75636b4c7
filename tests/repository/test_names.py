"""Names and docstrings use the words of the field: see "Names and English" in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from tests.repository.sources import MODULES, ROOT, nodes, relative

if TYPE_CHECKING:
    from pathlib import Path

RIDDLES = frozenset(
    (
        "alike", "apart", "asked", "barred", "births", "books", "born", "calm", "door",
        "dying", "gone", "guest", "heard", "hears", "house", "instead", "lent", "lies",
        "living", "look", "looked", "looks", "lost", "mail", "met", "mine", "neighbour",
        "neighbours", "nobody", "roll", "rolls", "said", "says", "somebody", "stays",
        "tell", "tells", "thing", "things", "told", "turn", "turns", "waist", "who",
        "whose",
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
LEANS_ON = re.compile(r"(?:The same|Its?|As|So|That|Those|Likewise|Both|Also|And)\b|\.\.\.")
"""References to the constant above; a note may begin with `Where` or `How`."""
PERSONS = re.compile(r"\b(?:nobody|who|whom|whoever)\b", re.IGNORECASE)
FIRST_COMMIT = "5144d9d7"
"""The last commit before subjects were checked."""
PART = re.compile(r"[a-z0-9_/.-]+(?:, [a-z0-9_/.-]+)*: [^ ].*[^.]")
"""`ledger: count a shared storage once`."""


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def named(path: Path) -> list[str]:
    """List a module's own name and those of its classes and functions."""
    inside = [node.name for node in nodes(path)[1:]]
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
    for node in nodes(path):
        if not (text := ast.get_docstring(node)):
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


def notes(path: Path) -> list[str]:
    """List the strings that stand below assignments and describe them."""
    return [
        below.value.value
        for node in nodes(path)
        for above, below in itertools.pairwise(node.body)
        if isinstance(above, ast.Assign | ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_note_below_a_constant_stands_alone(path):
    leaning = [text.splitlines()[0] for text in notes(path) if LEANS_ON.match(text)]
    assert not leaning


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
