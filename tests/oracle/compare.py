"""Compare results: `python -m tests.oracle.compare ORACLE VIRTUAL`."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from tests.oracle.record import results

EQUAL, FREES, ORDER, SIZES = "equal", "frees differ", "order differs", "sizes differ"
ONLY_ORACLE, ONLY_VIRTUAL, NEITHER = "raises here alone", "runs here alone", "raises on both"
ABSENT = "asked on one side only"
KINDS = (EQUAL, FREES, ORDER, SIZES, ONLY_ORACLE, ONLY_VIRTUAL, ABSENT, NEITHER)
"""From good to bad; what both refuse is no case."""
_RAISES = {(True, True): NEITHER, (True, False): ONLY_VIRTUAL, (False, True): ONLY_ORACLE}
_SHOWN = 24


def taken(sizes: list[int]) -> list[int]:
    return [size for size in sizes if size > 0]


def kind_of(oracle: Any, here: Any) -> str:
    """Return how two answers to a case differ, or None."""
    if oracle is None or here is None:
        return ABSENT
    failed = isinstance(oracle, str), isinstance(here, str)
    if any(failed):
        return _RAISES[failed]
    if oracle == here:
        return EQUAL
    if taken(oracle) == taken(here):
        return FREES
    return ORDER if sorted(taken(oracle)) == sorted(taken(here)) else SIZES


def differences(oracle: Any, here: Any) -> dict[str, str]:
    """Return the kind of difference of each case."""
    if isinstance(oracle, str) or isinstance(here, str):
        known = [side for side in (oracle, here) if not isinstance(side, str)]
        names = dict.fromkeys(known[0]) if known else {"samples": None}
        return dict.fromkeys(names, kind_of(oracle, here))
    return {case: kind_of(oracle.get(case), here.get(case)) for case in {**oracle, **here}}


def worst(kinds: dict[str, str]) -> str:
    """Return the worst kind of an operator, without refusals of both."""
    return max((k for k in kinds.values() if k != NEITHER), key=KINDS.index, default=NEITHER)


def counted(kinds: dict[str, dict[str, str]]) -> Counter[str]:
    """Count cases of each kind, without refusals of both."""
    return Counter(k for found in kinds.values() for k in found.values() if k != NEITHER)


def compared(oracle: dict[str, Any], here: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the kind by operator and case, where both have answers."""
    return {name: differences(oracle[name], here[name]) for name in oracle if name in here}


def row(label: str, kinds: dict[str, dict[str, str]]) -> str:
    """Format a line of the table: operators, cases, and each kind."""
    cases = counted(kinds)
    equal = sum(worst(found) == EQUAL for found in kinds.values())
    share = 100 * cases[EQUAL] / max(1, cases.total())
    numbers = " | ".join(str(cases[kind]) for kind in KINDS[:-1])
    return f"| {label} | {equal} of {len(kinds)} | {cases.total()} | {numbers} | {share:.2f}% |"


def rows(label: str, kinds: dict[str, dict[str, str]]) -> list[str]:
    """Return the line in a list, as for models."""
    return [row(label, kinds)]


HEAD = (
    "| | operators equal | cases | " + " | ".join(KINDS[:-1]) + " | |\n"
    "| --- |" + " --: |" * (len(KINDS) + 2)
)


def report(oracle: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Write every operator that differs, with its first such case."""
    lines = []
    for name, kinds in compared(oracle, here).items():
        wrong = {case: kind for case, kind in kinds.items() if kind not in (EQUAL, NEITHER)}
        if not wrong:
            continue
        case = max(wrong, key=lambda case: KINDS.index(wrong[case]))
        lines.append(f"{name} | {wrong[case]} | {len(wrong)} of {len(kinds)} | {case}")
        for label, side in (("oracle ", oracle[name]), ("virtual", here[name])):
            answer = side if isinstance(side, str) else side.get(case)
            lines.append(
                f"    {label} {answer if isinstance(answer, str) else (answer or [])[:_SHOWN]}"
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("oracle", type=Path)
    parser.add_argument("virtual", type=Path)
    options = parser.parse_args()
    both = [results(path) for path in (options.oracle, options.virtual)]
    print("\n".join([*report(*both), "", HEAD, row("all", compared(*both))]))


if __name__ == "__main__":
    main()
