"""Write docs/tips.md: every rule's page, and how right rules are.

It also has the rules' results on recorded faults.

python tools/tips.py           # all of it; needs torch for the programs on the virtual card
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.core.units import format_bytes  # noqa: E402
from nbmem.report.analysis import card_ledger_of, report_of  # noqa: E402
from nbmem.report.tips.engine import advise  # noqa: E402
from nbmem.report.tips.rule import HEADINGS, Rule, fmt_range  # noqa: E402
from nbmem.report.tips.rules import RULES  # noqa: E402
from nbmem.views.tip_catalogue import visibility_text  # noqa: E402

TARGET = ROOT / "docs" / "tips.md"
SNAPSHOTS = ROOT / "tests" / "recordings" / "snapshots"
INTRODUCTION = """# Tips

<!-- Written by `python tools/tips.py`; do not edit. -->

A tip says what this run showed, how many bytes it is about and how that is known, and what to type.
*exact*: counted; *simulated*: the recorded requests, replayed in the simulated allocator;
*estimated*: a range. The largest saving comes first, and the cache behind what fills it;
a report shows three, `%nbmem tips` all.
`%nbmem mute NAME` silences one.

A healthy run gets none. A rule that is not sure stays silent, and one whose remedy has a price
speaks only where memory is short: a request failed, torch had to give its cache back to serve one,
or nine tenths of the card were in use. `%nbmem tips --all` asks them all.
"""
SCENARIOS = """## What they say of recorded faults

Each was recorded once on a real H100 (`tests/recordings/snapshots`), with nothing but torch's own
snapshot. On all 35 recorded plain training runs no tip appears.

| recording | first tip | bytes | ground | others |
|---|---|--:|---|---|"""
MEASURED = """## Predicted and measured

Each fault as a program on the virtual H100: the tip, and what applying it brought.

| tip | remedy | predicted | measured | ground |
|---|---|--:|--:|---|"""


def catalogue() -> str:
    """Return the rules as Markdown: a table, then a page for each."""
    lines = ["## The rules", "", "| tip | what it finds | told |", "|---|---|---|"]
    told = {"always": "always", "short": "if memory is short", "asked": "if asked for"}
    lines += [
        f"| [{r.name}](#{r.name}) | {r.title} | {told[r.when]}"
        f"{', also on the CPU' if r.anywhere else ''} |"
        for r in RULES
    ]
    return "\n".join([*lines, "", *(_page(rule) for rule in RULES)])


def _page(rule: Rule) -> str:
    title, *rest = rule.text.strip().splitlines()
    lines = [f"### {rule.name}", "", title, ""]
    for line in rest:
        if line.strip() in HEADINGS:
            lines += ["", f"**{line.strip()}.**"]
        elif line.strip():
            lines.append(line.strip())
    return "\n".join([*lines, "", visibility_text(rule), ""]).replace("\n\n\n", "\n\n")


def scenarios() -> str:
    """Return a table of what the rules say of each recorded snapshot."""
    return "\n".join([SCENARIOS, *(_scenario(path) for path in sorted(SNAPSHOTS.glob("*.xz"))), ""])


def _scenario(path: Path) -> str:
    from nbmem.api import tracing

    session = tracing.open(path).session
    assert session is not None  # noqa: S101 - what was opened is finished
    card_ledger = card_ledger_of(session)
    found = advise(session, card_ledger, report_of(card_ledger)).findings
    name = path.name.split(".")[0]
    if not found:
        return f"| {name} | none | | | |"
    first, *others = found
    rest = ", ".join(f.rule for f in others)
    return (
        f"| {name} | {first.rule} | {fmt_range(first.low, first.high)} | {first.ground} | {rest} |"
    )


def measured() -> str:
    """Return a table of each program's predicted and measured savings."""
    from tests.tips.measure import program_runner

    with program_runner() as run:
        return "\n".join([MEASURED, *_measured(run), ""])


def _measured(run: Any) -> Iterator[str]:
    from tests.tips.measure import measure_freed, measure_saved
    from tests.tips.programs import FREEING, REWRITING

    programs: list[tuple[Any, Any]] = [(p, measure_freed) for p in FREEING]
    programs += [(p, measure_saved) for p in REWRITING]
    for program, how in programs:
        findings, bytes_ = how(run, program)
        mine = [f for f in findings if f.rule == program.rule]
        best = min(mine, key=lambda f: abs((f.low + f.high) / 2 - bytes_))
        remedy = (
            program.action
            if how is measure_freed
            else program.remedy or program.conf or program.new
        )
        yield (
            f"| {best.rule} | `{remedy}` | {fmt_range(best.low, best.high)} | "
            f"{format_bytes(bytes_)} "
            f"| {best.ground} |"
        )


def reports() -> str:
    """Return the stored results of the programs after public reports."""
    from tests.tips.reports.table import read_results, section

    return section(read_results())


def main() -> None:
    """Write the file."""
    parts = (INTRODUCTION, catalogue(), scenarios(), measured(), reports())
    TARGET.write_text("\n".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main()
