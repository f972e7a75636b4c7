"""Make rows of cards.toml: `python -m tests.card.tables FOLDER ...`.

Prints the card's entry of nbmem/virtual/cards.toml with what was measured, and which workspaces,
operators and samples ask for something else than the virtual card of that name. `--write` puts the
entry into cards.toml. Files of the oracle or of a virtual card are refused.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nbmem.core.units import MIB
from nbmem.virtual.cards import CARDS
from tests.card.results import Results, read_results

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "nbmem" / "virtual" / "cards.toml"
COMPARED = ("workspaces", "atlas", "models", "samples", "compiled")
OUTSIDE = {
    "context": ("context",),
    "cublas": ("cublas",),
    "cudnn": ("cudnn",),
    "nccl": ("nccl",),
}
"""Keys of the table, and the steps of context.py that they are."""


class UnusableError(Exception):
    """A folder's files are not what the tables are made from."""


class Difference(NamedTuple):
    """A difference between a card's requests and its virtual card's.

    Attributes:
        case: Its name, and the moment.
        more: Sizes that the card alone asks for, with how often.
        fewer: Those of the virtual card alone.
    """

    case: str
    more: dict[int, int]
    fewer: dict[int, int]

    def __str__(self) -> str:
        sides = (("card", self.more), ("virtual", self.fewer))
        told = [f"{name} {_sizes(sizes)}" for name, sizes in sides if sizes]
        return f"{self.case}: {'; '.join(told) or 'the same sizes in another order'}"


def _sizes(sizes: Mapping[int, int]) -> str:
    return ", ".join(
        f"{size:,}" + (f" x{count}" if count > 1 else "") for size, count in sizes.items()
    )


def card_row(context: Results) -> dict[str, Any]:
    """Build a card's row of cards.toml and retain its other known fields.

    Raises:
        UnusableError: They are not a real card's, or the card's totals are not in them.
    """
    about = context.head
    if not about.get("real"):
        raise UnusableError("These files are of no real card; nothing in the tables may be.")
    card = context.cases.get("card")
    if not isinstance(card, dict):
        raise UnusableError("The part `context` has not measured the card's totals.")
    known = next((one for one in CARDS if one.name == about["card"]), None)
    row: dict[str, Any] = {
        "key": known.key if known else about["card"].removeprefix("NVIDIA "),
        "name": about["card"],
        **({"aliases": list(known.aliases)} if known and known.aliases else {}),
        "total": card["total"] // MIB,
        "nvml_total": card["nvml_total"] // MIB,
        "processors": about["processors"],
        "capability": about["capability"],
        "l2": about["l2"] // MIB,
    }
    if known and known.unowned_bytes:
        row["unowned"] = [round(part / MIB, 3) for part in known.unowned_bytes]
    libraries = context.cases.get("libraries")
    if isinstance(libraries, dict):
        for key, steps in OUTSIDE.items():
            if all(isinstance(libraries.get(step), int) for step in steps):
                row[key] = sum(libraries[step] for step in steps) // MIB
    versions = f"driver {about['driver']}, torch {about['torch']}"
    return {**row, "source": f"measured by tests/card, {versions}"}


def toml(row: Mapping[str, Any]) -> str:
    """Format a row as it stands in cards.toml."""
    lines = [f"{key} = {_value(key, value)}" for key, value in row.items()]
    return "\n".join(["[[card]]", *lines, ""])


def _value(key: str, value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value('', one) for one in value)}]"
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if "total" in key else str(value)


def insert_row(table: str, row: Mapping[str, Any]) -> str:
    """Replace the card's row in the table, or insert it."""
    head, *blocks = re.split(r"(?m)^(?=\[\[)", table)
    named = f'name = "{row["name"]}"'
    for number, block in enumerate(blocks):
        if block.startswith("[[card]]") and named in block:
            blocks[number] = toml(row) + "\n"
            return head + "".join(blocks)
    last = max(n for n, block in enumerate(blocks) if block.startswith("[[card]]"))
    blocks.insert(last + 1, toml(row) + "\n")
    return head + "".join(blocks)


def differences(card: Results, virtual: Results) -> tuple[int, list[Difference]]:
    """Count the compared moments and list the unequal ones."""
    compared, found = 0, []
    for case in card.cases.keys() & virtual.cases.keys():
        ours = dict(_moments(case, virtual.cases[case]))
        for moment, real in _moments(case, card.cases[case]):
            if moment not in ours:
                continue
            compared += 1
            if real != ours[moment]:
                asked, here = (_asked(sizes) for sizes in (real, ours[moment]))
                found.append(Difference(moment, dict(asked - here), dict(here - asked)))
    return compared, sorted(found)


def _asked(sizes: list[int]) -> Counter[int]:
    return Counter(size for size in sizes if size > 0)


def _moments(case: str, found: Any) -> Iterator[tuple[str, list[int]]]:
    """Return every sequence of a case by name; none after an error."""
    if isinstance(found, dict):
        for moment, sizes in found.items():
            if isinstance(sizes, list):
                yield f"{case}, {moment}", sizes


def merge_shares(shares: list[Results]) -> Results:
    """Merge the results of processes that ran side by side."""
    found = Results({}, {}, Counter(), complete=all(one.complete for one in shares))
    for one in shares:
        found.head.update(one.head)
        found.cases.update(one.cases)
    return found


def count_reached_cases(shares: list[Results]) -> int:
    """Return the number of leading cases that contain all begun ones."""
    return len(shares) * max((len(one.begun) for one in shares), default=0)


def on_the_virtual_card(part: str, name: str, cases: int) -> Results:
    """Run the part on the virtual card of that name, in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "virtual.jsonl")
        command = [sys.executable, "-m", "tests.card.run_part", part, str(path), "--virtual", name]
        command += ["--cases", str(cases)]
        subprocess.run(command, cwd=ROOT, check=False)
        return read_results(path)


def report(folder: Path, *, compare: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the card's row and lines on differences from its virtual card."""
    row = card_row(read_results(folder / "context.jsonl"))
    lines = []
    for part in COMPARED if compare else ():
        shares = [read_results(path) for path in sorted(folder.glob(f"{part}.*jsonl"))]
        real = merge_shares(shares)
        if not real.cases:
            continue
        if all(card.name != row["name"] for card in CARDS):
            lines.append(f"{part}: no virtual card is called {row['name']}; write its row first.")
            continue
        virtual = on_the_virtual_card(part, row["name"], count_reached_cases(shares))
        compared, found = differences(real, virtual)
        lines.append(f"{part}: {compared - len(found)} of {compared} equal")
        lines += map(str, found)
    return row, lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="put the entry into cards.toml")
    parser.add_argument("--no-compare", action="store_true", help="the entry alone")
    options = parser.parse_args()
    for folder in options.folders:
        try:
            row, lines = report(folder, compare=not options.no_compare)
        except UnusableError as err:
            raise SystemExit(f"{folder}: {err}") from None
        if options.write:
            TABLE.write_text(insert_row(TABLE.read_text("utf-8"), row), "utf-8")
        print(toml(row))
        print("\n".join(lines))


if __name__ == "__main__":
    main()
