"""Count false tips in healthy programs: `python -m tests.tips.reports.healthy_runs [WORD ...]`.

The programs under programs/healthy/ look suspicious and are as they should be: no tip is due. The
programs of the reports with their readers' cure count, too (`python -m tests.tips.reports`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.tips.reports.catalogue import FOLDER
from tests.tips.reports.run import BrokenError, run_program, tips_of

CARD = "T4"


def main() -> int:
    """Run the healthy programs, print every tip, and return 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--json", type=Path, help="write the tips to this file")
    options = parser.parse_args()
    said = {}
    for path in sorted(FOLDER.glob("programs/healthy/*.py")):
        if options.words and not any(word in path.stem for word in options.words):
            continue
        try:
            found = run_program(path.read_text(encoding="utf-8"), path.stem, CARD)
        except BrokenError as err:
            print(f"BROKEN  {path.stem}: {err}", flush=True)
            continue
        said[path.stem] = [f"{tip['rule']}: {tip['title']}" for tip in tips_of(found)]
        if said[path.stem]:
            print(f"FALSE   {path.stem}", *said[path.stem], sep="\n        ", flush=True)
    print(f"{sum(map(bool, said.values()))} of {len(said)} healthy programs got a tip.")
    if options.json:
        options.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return int(any(said.values()))


if __name__ == "__main__":
    sys.exit(main())
