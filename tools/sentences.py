"""List the sentences that a user can meet.

They are errors, notes, warnings and what tips say.

    python3 tools/sentences.py                   # all of them, each with its file and line
    python3 tools/sentences.py --sample 60       # some at random, to read them anew

A sentence is a text of the code, a docstring aside, of four words or more with a full stop, a
question mark or a colon. A blank of an f-string is `{}`.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from installing import ROOT, print_line

if TYPE_CHECKING:
    from pathlib import Path

_SENTENCE = re.compile(r"[A-Za-z{].*[.?:]", re.DOTALL)
_LEAST_WORDS = 4


def main() -> int:
    """Print the sentences."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, metavar="N", help="so many at random")
    options = parser.parse_args()
    found = [line for path in sorted((ROOT / "nbmem").rglob("*.py")) for line in sentences(path)]
    if options.sample is not None:
        found = random.sample(found, min(options.sample, len(found)))
    for line in found:
        print_line(line)
    return 0


def sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of a module, as `file:line: text`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring
            inside |= {id(part) for part in ast.walk(node) if isinstance(part, ast.Constant)}
        text = _text(node)
        if text is None or id(node) in inside:
            continue
        inside |= {id(part) for part in ast.walk(node)}
        if _SENTENCE.fullmatch(text) and len(text.split()) >= _LEAST_WORDS:
            line = getattr(node, "lineno", 0)
            yield f"{path.relative_to(ROOT)}:{line}: {' '.join(text.split())}"


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return None


if __name__ == "__main__":
    raise SystemExit(main())
