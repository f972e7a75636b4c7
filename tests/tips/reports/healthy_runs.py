"""Count false tips in healthy programs: `python -m tests.tips.reports.healthy_runs [WORD ...]`.

The programs under programs/healthy/ look suspicious and are as they should be: no tip is due. So
are those that train and evaluate models of transformers (healthy_models.py). The
programs of the reports with their readers' cure count, too (`python -m tests.tips.reports`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.tips.reports.catalogue import FOLDER
from tests.tips.reports.healthy_models import healthy_models
from tests.tips.reports.run import BrokenError, run_program, tips_of

CARD = "T4"


def main() -> int:
    """Run the healthy programs, print every tip, and return 1 where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--json", type=Path, help="write the tips to this file")
    options = parser.parse_args()
    said = {}
    for name, text in programs():
        if options.words and not any(word in name for word in options.words):
            continue
        try:
            found = run_program(text, name, CARD)
        except BrokenError as err:
            print(f"BROKEN  {name}: {err}", flush=True)
            continue
        said[name] = [f"{tip['rule']}: {tip['title']}" for tip in tips_of(found)]
        if said[name]:
            print(f"FALSE   {name}", *said[name], sep="\n        ", flush=True)
    print(f"{sum(map(bool, said.values()))} of {len(said)} healthy programs got a tip.")
    if options.json:
        options.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return int(any(said.values()))


def programs() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every healthy program."""
    for path in sorted(FOLDER.glob("programs/healthy/*.py")):
        yield path.stem, path.read_text(encoding="utf-8")
    yield from healthy_models()


if __name__ == "__main__":
    sys.exit(main())
