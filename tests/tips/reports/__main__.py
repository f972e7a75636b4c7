"""Hold tips to public bug reports: `python -m tests.tips.reports [WORD ...]`.

Every report's program runs on its virtual card. Its first tip must name the cause that the
report's readers found; what the tip promises is held against what its own code brings; and the
program with the readers' cure must get no tip. With words, only the reports whose names have one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nbmem.core.units import format_bytes
from nbmem.report.tips.rule import fmt_range
from tests.tips.reports.catalogue import Report, read_reports
from tests.tips.reports.run import BrokenError, judge
from tests.tips.reports.table import (
    RESULTS,
    read_results,
    totals,
    write_results,
    write_section,
)


def main() -> int:
    """Run the reports, print a line for each, and return 1 where one is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    parser.add_argument("--table", action="store_true", help="store them, and write docs/tips.md")
    options = parser.parse_args()
    verdicts: dict[str, Any] = {}
    broken = 0
    for report in read_reports(options.words):
        try:
            verdicts[report.name] = judge(report)
        except BrokenError as err:
            broken += 1
            print(f"BROKEN  {report.name}: {err}", flush=True)
            continue
        print("\n".join(lines_of(report, verdicts[report.name])), flush=True)
    print(totals(verdicts.values()), f"{broken} programs did not run." if broken else "")
    if options.json:
        options.json.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    if options.table:
        write_results((read_results() if RESULTS.exists() else {}) | verdicts)
        write_section(read_results())
    return int(bool(broken) or not all(map(is_good, verdicts.values())))


def is_good(verdict: dict[str, Any]) -> bool:
    """Return True where the tip is right, its promise kept and the cured program silent."""
    return bool(verdict["right"] and verdict["kept"] and not verdict["false"])


def lines_of(report: Report, verdict: dict[str, Any]) -> list[str]:
    """Return what is printed of a report."""
    word = "RIGHT" if verdict["right"] else "WRONG" if verdict["tips"] else "SILENT"
    lines = [f"{word:7} {report.name} ({verdict['seconds']} s)"]
    if not verdict["right"]:
        lines.append(f"        expected {', '.join(report.rules)} with {list(report.names)}")
        lines += [f"        said     {rule}: {title}" for rule, title in verdict["tips"]]
    else:
        word = "" if verdict["kept"] else "BYTES "
        lines.append(
            f"        {word}promised {fmt_range(*verdict['promised'])}, "
            f"pasted {_shown(verdict['pasted'])}, cured {_shown(verdict['cured'])}"
        )
    if isinstance(verdict["cured"], str):
        lines.append(f"        CURE fails: {verdict['cured']}")
    return lines + [f"        FALSE when cured: {said}" for said in verdict["false"]]


def _shown(gain: int | str | None) -> str:
    if not isinstance(gain, int):
        return str(gain)
    return format_bytes(gain) if gain >= 0 else f"-{format_bytes(-gain)}"


if __name__ == "__main__":
    sys.exit(main())
