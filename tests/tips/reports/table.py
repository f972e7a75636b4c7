"""The table of public reports in docs/tips.md, made of the stored verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from nbmem.core.units import format_bytes
from nbmem.report.tips.rule import fmt_range
from tests.tips.reports.catalogue import FOLDER, Report, read_reports

RESULTS = FOLDER / "results.json"
PAGE = FOLDER.parents[2] / "docs" / "tips.md"
HEADING = "## What they say of public reports"
INTRODUCTION = """

Each is a program after a public report about GPU memory, in our own words, on a virtual card
(`tests/tips/reports`). *Expected* is the tip that names the cause which the report's readers found,
*first tip* what nbmem says first. *Brought* is what its own code, or the readers' cure, saves.
`python -m tests.tips.reports --table` runs them all and writes this.

The 20 reports of `reports_more.toml` were written down before nbmem first ran their programs.
That first run named the true cause of 6, and kept 3 of its 6 promises; mending came after it.
Three of them, whose cure saved nothing on this torch, gave their places to other reports since.

The ten of `reports_blind.toml` were written down the same way, after the rules for copies of models
and for needless graphs. The first run with these rules named the true cause of 4, that of the
version before 3. Mending came after it, and changed five of the programs: sizes at which the fault
matters or the card runs out, layers that save something, and a cure under `no_grad()`.

Of the 24 of `reports_unseen.toml` half stayed unread until the rules had changed after the others:
7 of 12 were right before and after. Of the twelve of `reports_fresh.toml`, by another author, the
first run named the true cause of 3; mending came after it.
Of the eight of `reports_second.toml`, first run after that, it was 1. Of the twelve of
`reports_third.toml`, by an author who knew no rule, the first run with the rule
[unused_memory](#unused_memory) named the true cause of 3; that rule was then opened to weights and
buffers, and an autograd function's `ctx` got its name, with which it is 6.
Of the sixteen of `reports_fourth.toml`, by another author who knew no rule, the first run named the
true cause of 4. What they share with other programs was mended then: what survives a backward that
frees its graph is held by a variable, a function's local has the name of the line that assigns it,
and a graph of `create_graph=True` has a tip. With that it is 10.
Of the fourteen of `reports_fifth.toml`, by another such author, the first run named the true cause
of 5. Mended was that a search of the heap that ran out of time blamed C++, that a model which took
another's place had no name, and what in-place writes to a buffer keep. With that it is 8.
Of the twelve of `reports_sixth.toml`, by another such author, the first run named the true cause of
4. Mended was that a model which lives on while the next one is loaded, results of a call that no
operator uses, and `full_matrices=True` were not told, and that a list had the name of the variable
which its items came from. With that it is 7.
Of the twelve of `reports_seventh.toml`, by another such author, the first run named the true cause
of 3. All peaks are below 3% of the card, where most rules are silent; without that limit it would
be 3, too. Mended was that exceptions which two objects keep, and what a waiting thread keeps, were
not told. With that it is 5.
The figures below are those of today, so they flatter the tips on reports that nobody has seen.

"""
COLUMNS = """
| report | what was seen | true cause | expected | first tip | promised | brought |
|---|---|---|---|---|--:|--:|"""


def read_results() -> dict[str, Any]:
    """Read the stored verdicts by report."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def write_results(results: dict[str, Any]) -> None:
    """Store verdicts, those of reports that no longer exist left out."""
    names = {report.name for report in read_reports()}
    kept = {name: results[name] for name in sorted(results) if name in names}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def totals(results: Iterable[dict[str, Any]]) -> str:
    """Return the three counts in a sentence each."""
    results = list(results)
    promises = [one["kept"] for one in results if one["kept"] is not None]
    return (
        f"{sum(one['right'] for one in results)} of {len(results)} first tips name the true "
        f"cause; {sum(promises)} of {len(promises)} promises kept within 1%; "
        f"{sum(len(one['false']) for one in results)} tips in cured programs."
    )


def section(results: dict[str, Any]) -> str:
    """Return the section of docs/tips.md."""
    reports = read_reports()
    rows = [_row(report, results[report.name]) for report in reports if report.name in results]
    summary = totals(results.values())
    return "\n".join([HEADING + INTRODUCTION + summary, *COLUMNS.splitlines(), *rows, ""])


def _row(report: Report, result: dict[str, Any]) -> str:
    rule, title = result["tips"][0] if result["tips"] else ("silent", "")
    said = f"**{rule}**" if result["right"] else f"{rule}: {title}" if title else rule
    gain = result["cured"] if result["pasted"] is None else result["pasted"]
    cells = (
        f"[{report.project}]({report.source})",
        report.saw,
        report.cause,
        ", ".join(report.rules),
        said,
        fmt_range(*result["promised"]) if result["promised"] else "",
        gain if isinstance(gain, str) else "runs" if report.measure == "runs" else _signed(gain),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _signed(size: int) -> str:
    return format_bytes(size) if size >= 0 else f"-{format_bytes(-size)}"


def write_section(results: dict[str, Any]) -> None:
    """Put the section in the place of the one that docs/tips.md ends with."""
    before = PAGE.read_text(encoding="utf-8").partition(f"\n{HEADING}")[0]
    PAGE.write_text(f"{before.rstrip()}\n\n{section(results)}", encoding="utf-8")
