"""Write labextension/src/categories.ts from nbmem's own categories.

They are in nbmem/core/session/categories.py and nbmem/report/exploration.py.

`python3 tools/categories.py` writes it; tests/repository checks that it is up to date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nbmem.core.session import categories  # noqa: E402
from nbmem.report import exploration  # noqa: E402 - this checkout's, whatever is installed

TARGET = ROOT / "labextension" / "src" / "categories.ts"
HEAD = (
    "// Written by tools/categories.py from nbmem/core/session/categories.py and "
    "nbmem/report/exploration.py; do not edit.\n"
)
SUMS = {
    "LIVE": "Requested bytes of live blocks.",
    "ACTIVE": "With rounding and pending.",
    "RESERVED": "With what is cached.",
    "PROCESS": "With context and libraries.",
}
PIECES = {
    "RELEASABLE": "A free piece that empty_cache() gives back.",
    "STUCK": "A free piece between blocks in use.",
    "PENDING_PIECE": "Added to the category of a block that a stream still uses.",
    "MIXED": "Added to the kind of the largest of several narrow pieces that are drawn as one.",
}


def main() -> int:
    """Write the file."""
    TARGET.write_text(typescript(), encoding="utf-8")
    return 0


def typescript() -> str:
    """Return the contents of the file."""
    rows = "".join(map(_row, categories.Category))
    return "".join(
        [
            HEAD,
            (
                "\nexport interface ICategory {\n  key: string;\n  label: string;\n"
                "  meaning: string;\n}\n"
            ),
            (
                "\n/** In the order in which every view stacks them. */\n"
                f"export const CATEGORIES: readonly ICategory[] = [\n{rows.rstrip()[:-1]}\n];\n"
            ),
            "\n/* How many categories, from the first, make each sum. */\n",
            *(
                _constant(name, meaning, len(getattr(categories, name)))
                for name, meaning in SUMS.items()
            ),
            "\n/* Places of single ones. */\n",
            *(f"export const {one.name} = {int(one)};\n" for one in _single()),
            "\n/* Kinds of the pool's pieces; the kind of a used one is its category. */\n",
            *(
                _constant(name, meaning, getattr(exploration, name.removesuffix("_PIECE")))
                for name, meaning in PIECES.items()
            ),
        ]
    )


def _single() -> tuple[categories.Category, ...]:
    named = categories.Category
    return (
        named.UNKNOWN,
        named.ROUNDING,
        named.PENDING,
        named.CACHED_RELEASABLE,
        named.CACHED_STUCK,
        named.CONTEXT,
        named.OTHER_PROCESSES,
        named.FREE,
    )


def _row(category: categories.Category) -> str:
    """Return one category, as prettier lays it out."""
    fields = (
        f"key: '{category.key}'",
        f"label: {_text(category.label)}",
        f"meaning: {_text(categories.MEANINGS[category])}",
    )
    short = f"  {{ {', '.join(fields)} }},\n"
    if len(short) <= 102:  # printWidth, the comma and the line's end
        return short
    inside = ",\n    ".join(fields)
    return f"  {{\n    {inside}\n  }},\n"


def _text(text: str) -> str:
    if "'" in text:
        return json.dumps(text)
    return f"'{text}'"


def _constant(name: str, meaning: str, value: int) -> str:
    return f"/** {meaning} */\nexport const {name} = {value};\n"


if __name__ == "__main__":
    raise SystemExit(main())
