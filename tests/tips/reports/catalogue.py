"""Public bug reports about GPU memory: their data and their programs."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from textwrap import indent

from nbmem.report.analysis.program_names import BODY

FOLDER = Path(__file__).parent
MEASURES = ("end", "peak", "reserved", "end_reserved", "runs")
_SWITCH = re.compile(r"^CURED = False$", re.MULTILINE)
_PLACE = re.compile(r"^( *)# CURE(?: (\w+))?$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A bug report, and what its readers found.

    Attributes:
        source: Address of the issue or thread.
        project: Repository or forum.
        saw: What the person saw, one sentence.
        cause: True cause, found by the readers.
        cure: What the readers proposed.
        rules: Tips that name the cause; any of them is right. `oom:KEY` is a remedy under an
            out-of-memory error, `none-yet: WORDS` a tip that nbmem does not have.
        names: Words that the first tip has in its title or its code; `a|b` is either.
        card: Virtual card.
        measure: What a cure lowers (MEASURES); `runs` is for a program that runs out of memory.
    """

    name: str
    source: str
    project: str
    saw: str
    cause: str
    cure: str
    rules: tuple[str, ...]
    names: tuple[str, ...]
    card: str
    measure: str

    @property
    def program(self) -> str:
        """Return the program's text."""
        return (FOLDER / "programs" / f"{self.name}.py").read_text(encoding="utf-8")

    @property
    def cured(self) -> str:
        """Return the program with the readers' cure."""
        return _SWITCH.sub("CURED = True", self.program)

    @property
    def as_told(self) -> str | None:
        """Return the program with the first tip's cure, None where it has none of its own.

        Such a program asks whether `CURED == "as told"`: a tip may offer another cure than the
        readers did.
        """
        text = self.program
        return _SWITCH.sub('CURED = "as told"', text) if '"as told"' in text else None

    @property
    def missing_tip(self) -> bool:
        """Return True where nbmem has no tip for the cause."""
        return all(rule.startswith("none-yet:") for rule in self.rules)

    def paste(self, rule: str, code: str) -> str | None:
        """Return the program with a tip's code at its marks, None without any.

        Code that is only a comment says what to change elsewhere, and is not pasted. A mark is a
        line `# CURE`, or `# CURE RULE` for the code of that tip only.
        """
        text = self.program
        if not ast.parse(code).body:
            return None

        while mark := next((m for m in _PLACE.finditer(text) if m[2] in (None, rule)), None):
            if BODY not in code:
                text = text[: mark.start()] + indent(code, mark[1]) + text[mark.end() :]
                continue
            before, _, behind = indent(code, mark[1]).partition(f"{mark[1]}    {BODY}")
            body, rest = _block(text[mark.end() + 1 :], mark[1])
            text = text[: mark.start()] + before + indent(body, "    ") + behind + rest
        return None if text == self.program else text

    def digest(self) -> str:
        """Return a fingerprint of the program and of what is expected of it."""
        expected = (self.program, self.rules, self.names, self.card, self.measure)
        return sha256(repr(expected).encode()).hexdigest()[:16]


def _block(text: str, margin: str) -> tuple[str, str]:
    """Divide a text behind the first lines that have a margin."""
    lines = text.splitlines(keepends=True)
    inside = [line.startswith(margin) or not line.strip() for line in lines]
    end = inside.index(False) if False in inside else len(lines)
    return "".join(lines[:end]), "".join(lines[end:])


def read_reports(words: Sequence[str] = ()) -> list[Report]:
    """Read the reports whose names have one of the words, all without words."""
    found = [
        Report(name=name, **{key: _frozen(value) for key, value in fields.items()})
        for path in sorted(FOLDER.glob("reports*.toml"))
        for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items()
    ]
    return [report for report in found if not words or any(word in report.name for word in words)]


def _frozen(value: str | list[str]) -> str | tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else value
