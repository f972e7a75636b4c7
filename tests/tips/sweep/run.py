"""Run programs of the sweep and check their tips."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.report.tips.rule import fmt_range
from tests.tips.measure import program_runner
from tests.tips.sweep.faults import FAULTS
from tests.tips.sweep.language import LANGUAGE
from tests.tips.sweep.libraries import LIBRARIES
from tests.tips.sweep.packages import PACKAGES
from tests.tips.sweep.several import SEVERAL
from tests.tips.sweep.vision import VISION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.tips.sweep.faults import Fault
    from tests.tips.sweep.program import Program

PROGRAMS = (*VISION, *LANGUAGE, *SEVERAL, *LIBRARIES, *PACKAGES)
SLACK = 0.02
"""Part of what was measured by which an estimate's ends may be off."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program on a card, healthy or with one fault."""

    program: Program
    card: str
    fault: Fault | None = None

    @property
    def name(self) -> str:
        """Return the name in the sweep's lines."""
        if self.fault is None:
            return f"{self.program.name} [{self.card}]"
        what = " ".join(filter(None, (self.fault.rules[0], self.fault.name)))
        return f"{self.program.name} + {what} [{self.card}]"


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """Tips of a case; `kept` is None without a measured promise.

    `full` is of a healthy program that its card has hardly room for: the driver refused a request.
    """

    said: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    first: bool = False
    kept: bool | None = None
    promise: str = ""
    code: str | None = None
    full: bool = False
    error: str | None = None


def cases(
    programs: Iterable[Program], cards: Iterable[str], words: Iterable[str] = ()
) -> Iterator[Case]:
    """Yield healthy programs on every card, then faulty ones."""
    cards, words = list(cards), list(words)
    for program in programs:
        if any(importlib.util.find_spec(package) is None for package in program.needs):
            continue
        found = [Case(program=program, card=card) for card in cards]
        found += [
            Case(program=program, card=cards[0], fault=fault)
            for fault in FAULTS
            if fault.put_into(program) is not None
        ]
        yield from (c for c in found if not words or any(word in c.name for word in words))


def run_case(case: Case) -> CaseResult:
    """Run a case and compare."""
    with program_runner() as run:
        try:
            return _compare_tips(run, case)
        except Exception as err:  # noqa: BLE001 - one broken program must not end the sweep
            return CaseResult(error=f"{type(err).__name__}: {err}".splitlines()[0])


def _compare_tips(run: Any, case: Case) -> CaseResult:
    import torch

    if case.fault is None:
        trace, _ = run(case.program.code, card=case.card)
        findings = trace.report().findings
        return CaseResult(
            said=tuple(f.rule for f in findings),
            titles=tuple(f"{f.rule}: {f.title}" for f in findings),
            code=findings[0].code if findings else None,
            full=torch.cuda.memory_stats()["num_alloc_retries"] > 0,
        )
    trace, names = run(case.fault.put_into(case.program), card=case.card)
    findings = trace.report().findings
    said = tuple(f.rule for f in findings)
    titles = tuple(f"{f.rule}: {f.title}" for f in findings)
    first = bool(said) and said[0] in case.fault.rules
    kept, promise, code = None, "", findings[0].code if findings else None
    if first:
        mine = findings[0]
        if case.fault.bytes == "code" and mine.rule == case.fault.rules[0]:
            cached = mine.rule == "cached_memory"
            count = torch.cuda.memory_reserved if cached else torch.cuda.memory_allocated
            before = count()
            exec(compile(code, "tip.py", "exec"), names)  # what a tip says to paste
            brought = before - count()
            kept = mine.low <= brought <= mine.high
        elif case.fault.bytes == "peak":
            high = trace.report().peak.allocated
            healthy, _ = run(case.program.code, card=case.card)
            brought = high - healthy.report().peak.allocated
            slack = SLACK * abs(brought)
            kept = mine.low - slack <= brought <= mine.high + slack
        if kept is not None:
            promise = f"promised {fmt_range(mine.low, mine.high)}, brought {format_bytes(brought)}"
    return CaseResult(said=said, titles=titles, first=first, kept=kept, promise=promise, code=code)
