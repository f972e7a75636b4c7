"""Compare virtual cards with what others measured on theirs: `python -m tests.other_cards`.

With `--write` the tables in docs/accuracy.md are made anew. `make other-cards` brings what the
sources need beside torch: cuDNN, peft with transformers, megatron-core, a clone of Liger-Kernel
with Triton, timm. A source whose package is missing is left out, and its lines in the page stay.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tests.other_cards import (
    gpumemnet,
    gpumemnet_table,
    liger_tables,
    megatron_cases,
    peft_methods,
    timm_batches,
)
from tests.other_cards.rows import HEAD, Compared, details, summary

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
BEGIN = "<!-- other cards: {}, written by `make other-cards` -->"
END = "<!-- other cards: end of {} -->"
PARTS = ("all sources", "GPUMemNet", "timm")
PRELOADED = ["torch._dynamo", "tests.other_cards.gpumemnet"]
GPUMEMNET = "[GPUMemNet](https://github.com/itu-rad/GPUMemNet)"


def run_all(run: Callable[[Any], Any], rows: Iterable[Any], processes: int) -> list[Any]:
    """Run each row in a process of its own; return their results in order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with context.Pool(processes, maxtasksperchild=1) as pool:
        return list(pool.imap(run, rows, chunksize=1))


class Found(NamedTuple):
    """What the rows of a source gave.

    Attributes:
        lines: Lines of the table of all sources.
        rows: Each row of it.
        tables: Tables of its own, by their place in the page.
        errors: Rows that are not in `rows` and could not run, each with the reason.
    """

    lines: list[str]
    rows: list[Compared]
    tables: dict[str, list[str]] = {}  # noqa: RUF012 - a field of a NamedTuple, never changed
    errors: tuple[str, ...] = ()


def _gpumemnet(every: int, processes: int) -> Found:
    jobs = gpumemnet.jobs()[::every]
    said = run_all(gpumemnet.run, jobs, processes)
    found = [
        gpumemnet_table.JobResult(gpumemnet_table.group_of(job), job, one)
        for job, one in zip(jobs, said, strict=True)
    ]
    groups = gpumemnet_table.rows(found)
    lines = [
        line
        for name, rows in groups.items()
        for line in summary(f"{GPUMEMNET}, {name}", "nvidia-smi", _why(name), rows)
    ]
    every_row = [row for rows in groups.values() for row in rows]
    return Found(lines, every_row, {"GPUMemNet": gpumemnet_table.table(found)})


def _why(group: str) -> str:
    if group.startswith("perceptrons"):
        return "one row: not known"
    return "their cuDNN cannot be asked without a card; a first layer's weight gradient"


def _peft(every: int, processes: int) -> Found:
    rows = run_all(peft_methods.run, peft_methods.methods()[::every], processes)
    why = "the order of their batches' lengths; releases of peft and transformers"
    return Found(summary(peft_methods.SOURCE, peft_methods.FIGURE, why, rows), rows)


def _megatron(every: int, processes: int) -> Found:
    pairs = run_all(megatron_cases.run, megatron_cases.cases()[::every], processes)
    why = "their own figures of one case differ by 1 to 10 MiB"
    lines, rows = [], []
    for figure, found in zip(megatron_cases.FIGURES, zip(*pairs, strict=True), strict=True):
        lines += summary(megatron_cases.SOURCE, figure, why, found)
        rows += found
    return Found(lines, rows)


def _liger(every: int, processes: int) -> Found:
    groups = run_all(liger_tables.run, liger_tables.benchmarks()[::every], processes)
    rows = [row for group in groups for row in group]
    return Found(liger_tables.lines(rows), rows)


def _timm(every: int, processes: int) -> Found:
    verdicts = run_all(timm_batches.run, timm_batches.survivors()[::every], processes)
    errors = tuple(f"{one.row.card} {one.row.model} {one.error}" for one in verdicts if one.error)
    return Found([], [], {"timm": timm_batches.table(verdicts)}, errors)


SOURCES: dict[str, tuple[str, Callable[[int, int], Found]]] = {
    "gpumemnet": ("torch", _gpumemnet),
    "peft": ("peft", _peft),
    "megatron": ("megatron", _megatron),
    "liger": ("triton", _liger),
    "timm": ("timm", _timm),
}
"""The package that each source needs, and what runs it."""


def missing(name: str) -> str | None:
    """Return what a source lacks here, or None if it can run."""
    package, _ = SOURCES[name]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if name == "liger" and liger_tables.clone() is None:
        return f"{liger_tables.CLONE} names no clone of its repository"
    return None


def write(part: str, lines: list[str]) -> None:
    """Put a table into the page, in the place of the former one."""
    page = PAGE.read_text(encoding="utf-8")
    begin, end = BEGIN.format(part), END.format(part)
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    text = "\n".join([before + begin, *lines, end]) + after
    PAGE.write_text(text, encoding="utf-8")


def written(part: str) -> list[str]:
    """Return the lines of a table in the page."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN.format(part))
    return rest.partition(END.format(part))[0].strip().splitlines()


def main() -> None:
    """Run the sources and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--every", type=int, default=1, help="one row in so many")
    parser.add_argument("--rows", action="store_true", help="print each row as well")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write docs/accuracy.md")
    options = parser.parse_args()
    if unknown := set(options.sources) - set(SOURCES):
        parser.error(f"there is no source {', '.join(sorted(unknown))}")
    lines: list[str] = []
    for name, (_, compare) in SOURCES.items():
        if options.sources and name not in options.sources:
            continue
        if (reason := missing(name)) is not None:
            print(f"{name} is left out: {reason}")
            continue
        found = compare(options.every, options.processes)
        lines += found.lines
        failed = [row for row in found.rows if row.error]
        print("\n".join([*details(found.rows if options.rows else failed), *found.errors]))
        for text in (found.lines, *found.tables.values()):
            print("\n".join(text), flush=True)
        if options.write:
            for part, text in found.tables.items():
                write(part, text)
    if options.write:
        replaced = {line.split(" | ")[1].partition("]")[0] for line in lines}
        others = [one for one in written(PARTS[0])[len(HEAD) :]
                  if one.split(" | ")[1].partition("]")[0] not in replaced]  # fmt: skip
        write(PARTS[0], [*HEAD, *others, *lines])


if __name__ == "__main__":
    main()
