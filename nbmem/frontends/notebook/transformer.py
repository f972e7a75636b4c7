"""Blank a leading `%%memtrace` line, so that IPython runs a plain cell.

A cell magic that calls `run_cell` breaks top-level await, shows the result twice, fires the cell
events twice and reports a failed cell as a success. With the line blanked, these stay correct: line
numbers, tracebacks, await, cell ids, a `%%capture` below it and the failure status. The hook in
cell_hooks.py still sees the options in `info.raw_cell`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.frontends.notebook.caller_context import cell_depth
from nbmem.frontends.notebook.error_boundary import shell_entry
from nbmem.frontends.notebook.options import asks_for_help

if TYPE_CHECKING:
    Transformer = Callable[[list[str]], list[str]]

_LINE = re.compile(r"%%memtrace(?=\s|$)(.*)")


def memtrace_line(raw_cell: str) -> str | None:
    """Return what follows `%%memtrace` on a cell's first line, or None.

    None means that the cell does not begin with it.
    """
    first = raw_cell.lstrip().partition("\n")[0]
    match = _LINE.match(first)
    return match[1].strip() if match else None


def is_nbmem_magic(raw_cell: str) -> bool:
    """Return whether a cell contains only a `%nbmem` or `%%nbmem` magic.

    The code below `%%nbmem` does not run in this kernel.
    """
    text = raw_cell.strip()
    return text.startswith("%%nbmem") or (text.startswith("%nbmem") and "\n" not in text)


@shell_entry("read the %%memtrace line", otherwise=lambda lines: lines)
def strip_memtrace_line(lines: list[str]) -> list[str]:
    """Blank a leading `%%memtrace ...` line.

    This has no side effects, because completion runs it, too. Under another magic (`%%time` above
    it) no event announces the cell, so there the line is left for the registered magic.
    """
    if not lines or not _LINE.match(lines[0].rstrip("\r\n")) or cell_depth():
        return lines
    if asks_for_help(memtrace_line(lines[0]) or ""):
        return ["%memtrace --help\n"]  # the cell is not run
    below = next((i for i, line in enumerate(lines[1:], 1) if line.strip()), len(lines))
    if below < len(lines) and lines[below].startswith("%%"):
        return lines[below:]  # a cell magic must be on the first line
    return ["\n", *lines[1:]]


def insert_before_cell_magic(chains: list[list[Transformer]], ours: Transformer) -> None:
    """Put a transformer just before IPython's own for `%%` lines.

    Args:
        chains: IPython's cleanup and line transformers; the version decides which has `cell_magic`.
            Before it, a terminal still waits for the blank line that ends a cell magic.
        ours: nbmem's transformer.
    """
    for chain in chains:
        names = [getattr(transformer, "__name__", "") for transformer in chain]
        if "cell_magic" in names:
            chain.insert(names.index("cell_magic"), ours)
            return
    chains[0].append(ours)
