"""Count false and right tips: `python -m tests.tips.sweep [WORD ...]`.

Every healthy program runs on every card and must get no tip, unless the card was too full for it
and the driver refused it a request (FULL); every fault that fits is put into it, its tip must come
first, and what it promises is held against what doing it brings. With words, only the programs and
faults whose names have one of them.
"""

from __future__ import annotations

import argparse
import sys

from tests.tips.sweep.run import PROGRAMS, cases, run_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--cards", nargs="+", default=["T4", "RTX 3070", "A100 80GB"])
    parser.add_argument("--code", action="store_true", help="show what each tip would have pasted")
    parser.add_argument("--healthy", action="store_true", help="leave the faults out")
    options = parser.parse_args()
    healthy = false = seeded = right = exact = promised = broken = 0
    for case in cases(PROGRAMS, options.cards, options.words):
        if options.healthy and case.fault is not None:
            continue
        found = run_case(case)
        if found.error is not None:
            broken += 1
            print(f"ERROR   {case.name}: {found.error}")
            continue
        if case.fault is None:
            healthy += 1
            false += bool(found.said) and not found.full
            if found.said:
                what = "FULL " if found.full else "FALSE"
                print(f"{what}   {case.name}: {'; '.join(found.titles)}")
        else:
            seeded += 1
            right += found.first
            if not found.first:
                print(f"WRONG   {case.name}: {'; '.join(found.titles) or 'silent'}")
            elif found.kept is not None:
                promised += 1
                exact += found.kept
                if not found.kept:
                    print(f"BYTES   {case.name}: {found.promise}")
        if options.code and found.code:
            print(f"        {found.code}")
        sys.stdout.flush()
    print(f"{false} false tips in {healthy} healthy runs")
    print(f"{right} right first tips in {seeded} runs with a fault")
    print(f"{exact} of {promised} promises kept; {broken} programs did not run")
    return int(bool(false or broken or right < seeded or exact < promised))


if __name__ == "__main__":
    sys.exit(main())
