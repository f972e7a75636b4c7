"""Make every function of views, tips and analysis fail in a report.

    python -m tests.faults.views             every kind of fault, at the entry and at random lines

A report has survived when the text has the ledger's figures (or, where the books themselves failed,
the counters'), unchanged to the byte, and a note that says what was left out.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import nbmem.api.tracing as nbmem
from nbmem.core.session.cell_delta import CellDelta
from nbmem.report.analysis import build_report
from nbmem.report.ledger.fallback_text import counter_lines, ledger_lines
from nbmem.views import mime_bundle
from nbmem.views.html import _ledger
from tests.faults.injector import Fault, Target, functions

SNAPSHOTS = Path(__file__).parents[1] / "recordings" / "snapshots"
READING = ("nbmem.views", "nbmem.report.tips", "nbmem.report.analysis")
BOOKS = ("nbmem.report.ledger", "nbmem.allocator")
OUTERMOST = ("nbmem.views.mime_bundle",)
"""Nothing of an output but the report's own is above these: their callers in IPython say why."""
RECORDINGS = ("loss_accumulation", "oom", "variable_lengths")
"""The cheapest first: steps and tips, an out-of-memory error, a loop that is shortened."""
HTML, TEXT = "text/html", "text/plain"
ROWS = (
    CellDelta(
        label="x = 1", execution_count=1, allocated_before=0, allocated_after=512,
        reserved_before=0, reserved_after=1024, peak=None, process=None, duration_ns=5, error=None,
    ),
)  # fmt: skip


class BrokenReprError(Exception):
    """An exception whose repr() fails, too."""

    def __repr__(self) -> str:
        raise ZeroDivisionError


ERRORS: dict[str, Callable[[], BaseException]] = {
    "Exception": lambda: ZeroDivisionError("by the injector"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
    "a broken repr()": BrokenReprError,
}


@dataclass(frozen=True)
class Healthy:
    """A recording's views when nothing fails."""

    session: Any
    block: str
    table: str
    plain: str
    counters: str
    ooms: tuple[Any, ...]


@functools.cache
def run_without_fault(name: str) -> Healthy:
    """Show a recording without a fault; return views and figures."""
    session = nbmem.open(SNAPSHOTS / f"{name}.pickle.xz").session
    trace = trace_of(session)
    report = build_report(session)
    parts = str(trace).split("\n\n")
    return Healthy(
        session=session,
        block=next(part for part in parts if part.startswith("Ledger ")),
        table=str(_ledger(report)),
        plain=ledger_lines(report.ledger_at_peak, report.ledger_at_end),
        counters=counter_lines(session.devices[0]),
        ooms=report.ooms,
    )


def trace_of(session: Any) -> nbmem.Trace:
    """Make a fresh trace of a session that has read nothing yet."""
    trace = nbmem.Trace(session.name)
    trace.session, trace.cells = session, ROWS
    return trace


def show(found: Healthy) -> tuple[dict[str, Any], str]:
    """Render the outputs of a notebook and of a terminal."""
    trace = trace_of(found.session)
    return trace._repr_mimebundle_(), str(trace)


def show_beside(found: Healthy) -> list[dict[str, str]]:
    """Render the other outputs: tips, cells, the error's explanation."""
    trace_of(found.session).all_tips()
    bundles = [mime_bundle.history_bundle(ROWS)]
    if found.ooms:
        bundles.append(mime_bundle.oom_bundle(found.ooms))
    return bundles


def failure_reason(
    found: Healthy, shown: tuple[dict[str, Any], str], *, card_ledger: bool
) -> str | None:
    """Return the reason why a report failed; None if it passed."""
    forms, text = shown
    for name, one in ((TEXT, forms.get(TEXT, "")), ("str()", text)):
        figures = (found.block, found.plain, *([found.counters] if card_ledger else []))
        if not any(figure in one for figure in figures):
            return f"{name} has no figures"
    html = forms.get(HTML)
    if html is not None and found.table not in html and escape(found.plain) not in html:
        return f"{HTML} has no figures"
    notes = ("left out", "could not be made")
    unwrapped = " ".join(f"{forms[TEXT]} {text}".split())
    if not any(note in unwrapped for note in notes):
        return "no note"
    return None


def called_functions(targets: list[Target], run: Callable[[], Any]) -> set[str]:
    """Return the names of the functions that a run calls."""
    by_code = {target.function.__code__: target.name for target in targets}
    names = set()

    def profile(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code in by_code:
            names.add(by_code[frame.f_code])

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return names


class Trial(NamedTuple):
    """One fault to try."""

    recording: str
    target: Target
    beside: bool


@functools.cache
def trials(*packages: str) -> list[Trial]:
    """Yield each function once, in the cheapest recording that calls it."""
    targets = functions(*packages, skip=("nbmem.report.ledger.fallback_text",))
    found, tried = [], set()
    for name in RECORDINGS:
        for beside, run in ((False, show), (True, show_beside)):
            names = (
                called_functions(targets, functools.partial(run, run_without_fault(name))) - tried
            )
            if beside:
                names = {one for one in names if not one.startswith(OUTERMOST)}
            tried |= names
            found += [Trial(name, target, beside) for target in targets if target.name in names]
    return found


def attempt(trial: Trial, fault: Fault, *, card_ledger: bool = False) -> str | None:
    """Show a recording with a fault; return the failure, or None."""
    found = run_without_fault(trial.recording)
    try:
        with fault:
            if trial.beside:
                return None if all(one[TEXT] for one in show_beside(found)) else "an empty output"
            shown = show(found)
    except BaseException as err:  # noqa: BLE001 - what a user would meet
        return f"{type(err).__name__} came through"
    return failure_reason(found, shown, card_ledger=card_ledger) if fault.hits else None


def main() -> int:
    """Try everything and print the table; 1 if a report was lost."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=int, default=2, help="random lines of each function (2)")
    options = parser.parse_args()
    print(f"{'packages':<28}{'fault':<34}{'tried':>7}{'survived':>10}{'failed':>8}")
    lost = 0
    for packages in (READING, BOOKS):
        label = ", ".join(name.removeprefix("nbmem.") for name in packages)
        chosen = trials(*packages)
        plans = [(f"{name} at the entry", make, None) for name, make in ERRORS.items()]
        plans += [
            (f"Exception at a line (seed {seed})", ERRORS["Exception"], seed)
            for seed in range(options.lines)
        ]
        for name, make, seed in plans:
            count: Counter[str] = Counter()
            for trial in chosen:
                at: Any = "entry" if seed is None else "line"
                fault = Fault(trial.target, make, at=at, seed=seed or 0)
                why = attempt(trial, fault, card_ledger=packages is BOOKS)
                count["tried"] += bool(fault.hits)
                count["failed"] += why is not None
                if why is not None:
                    place = f":{fault.line}" if fault.line else ""
                    print(f"  {trial.target.name}{place} ({trial.recording}): {why}")
            survived = count["tried"] - count["failed"]
            row = f"{label:<28}{name:<34}{count['tried']:>7}{survived:>10}{count['failed']:>8}"
            print(row, flush=True)
            lost += count["failed"]
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
