"""Write labextension/src/palette.ts from nbmem.views.palette.

So a category has one colour everywhere.

`python3 tools/palette.py` writes it; tests/repository checks that it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.views.palette import (  # noqa: E402 - this checkout's, whatever is installed
    ALLOCATED,
    COLOURS,
    HATCHES,
    OTHER_TINT,
    PHASE_TINTS,
    TINT_INK,
)

TARGET = ROOT / "labextension" / "src" / "palette.ts"
HEAD = "// Written by tools/palette.py from nbmem/views/palette.py; do not edit.\n"


def main() -> int:
    """Write the file."""
    TARGET.write_text(typescript(), encoding="utf-8")
    return 0


def typescript() -> str:
    """Return the contents of the file."""
    colours = {category.key: colour for category, colour in COLOURS.items()}
    hatches = {category.key: colour for category, colour in HATCHES.items()}
    return "".join(
        [
            HEAD,
            _table(
                "COLOURS", "A category's colour, in the order in which they are stacked.", colours
            ),
            _table("HATCHES", "The colour of the lines over a category's own.", hatches),
            _table("PHASE_TINTS", "The ground of a phase's band.", PHASE_TINTS),
            "\n/** Allocated bytes that a reading does not split into categories. */\n",
            f"export const ALLOCATED = '{ALLOCATED}';\n",
            f"\nexport const OTHER_TINT = '{OTHER_TINT}';\n",
            f"/** Text on a phase's tint. */\nexport const TINT_INK = '{TINT_INK}';\n",
        ]
    )


def _table(name: str, meaning: str, values: dict[str, str]) -> str:
    rows = ",\n".join(f"  ['{key}', '{value}']" for key, value in values.items())
    return (
        f"\n/** {meaning} */\n"
        f"export const {name}: ReadonlyMap<string, string> = new Map([\n{rows}\n]);\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
