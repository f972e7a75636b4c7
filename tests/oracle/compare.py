"""Two results of record.py, compared: `python -m tests.oracle.compare ORACLE.json VIRTUAL.json`."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

EQUAL, FREES, ORDER, SIZES = "equal", "frees differ", "order differs", "sizes differ"
ONLY_ORACLE, ONLY_VIRTUAL, NEITHER = "raises here alone", "runs here alone", "raises on both"
KINDS = (EQUAL, FREES, ORDER, SIZES, ONLY_ORACLE, ONLY_VIRTUAL, NEITHER)
_SHOWN = 24


def taken(sizes: list[int]) -> list[int]:
    return [size for size in sizes if size > 0]


def kind_of(oracle: list[int], here: list[int]) -> str:
    """How two sequences of one sample differ."""
    if oracle == here:
        return EQUAL
    if taken(oracle) == taken(here):
        return FREES
    return ORDER if sorted(taken(oracle)) == sorted(taken(here)) else SIZES


def differences(oracle: Any, here: Any) -> dict[str, str]:
    """Of each sample of an operator that ran on both, its kind."""
    cases = dict.fromkeys([*oracle, *here])
    return {case: kind_of(oracle.get(case, []), here.get(case, [])) for case in cases}


def verdict(oracle: Any, here: Any) -> str:
    """Of an operator, the worst of its samples."""
    failed = isinstance(oracle, str), isinstance(here, str)
    if any(failed):
        return {(True, True): NEITHER, (True, False): ONLY_VIRTUAL, (False, True): ONLY_ORACLE}[
            failed
        ]
    return max(differences(oracle, here).values(), key=KINDS.index, default=EQUAL)


def report(oracle: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """A line of counts, then every operator that differs with its first case that does."""
    verdicts = {name: verdict(oracle[name], here[name]) for name in oracle if name in here}
    operators = Counter(verdicts.values())
    cases = Counter(
        kind
        for name, found in verdicts.items()
        if found in KINDS[:4]
        for kind in differences(oracle[name], here[name]).values()
    )
    lines = [
        f"operators: {len(verdicts)}; " + ", ".join(f"{k} {operators[k]}" for k in KINDS),
        f"cases: {cases.total()}; " + ", ".join(f"{k} {cases[k]}" for k in KINDS[:4]),
        "",
    ]
    for name, found in verdicts.items():
        if found in (ONLY_ORACLE, ONLY_VIRTUAL):
            lines.append(
                f"{name} | {found} | {here[name] if found is ONLY_ORACLE else oracle[name]}"
            )
        elif found in (FREES, ORDER, SIZES):
            kinds = differences(oracle[name], here[name])
            wrong = [case for case, kind in kinds.items() if kind != EQUAL]
            lines.append(f"{name} | {found} in {len(wrong)} of {len(kinds)} | {wrong[0]}")
            lines.append(f"    oracle  {oracle[name].get(wrong[0], [])[:_SHOWN]}")
            lines.append(f"    virtual {here[name].get(wrong[0], [])[:_SHOWN]}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("oracle", type=Path)
    parser.add_argument("virtual", type=Path)
    options = parser.parse_args()
    both = (json.loads(path.read_text()) for path in (options.oracle, options.virtual))
    print("\n".join(report(*both)))


if __name__ == "__main__":
    main()
