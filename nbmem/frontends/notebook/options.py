"""The options of `%%memtrace` and `%memtrace`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmem.core.arguments import (
    CommandOption,
    add_device,
    add_private,
    parser_of,
    refuse_private,
    split_words,
)
from nbmem.core.errors import UsageError
from nbmem.core.files.untrusted_input import is_folder
from nbmem.core.units import parse_bytes

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """The options of a `%%memtrace` line.

    Attributes:
        name: The report's title; None to use the cell's number.
        stacks: Record the Python line of every allocation.
        device: CUDA ordinal to report; None for the one that held the most.
        gpu: Virtual card to run on, or None to leave the card as it is.
        max_peak: Bytes above which the cell fails; None for no limit.
        widget: Show the HTML report; if False, the plain text only.
        save: File to save the session to, or None.
        private: Whether that file must reveal nothing about its author.
    """

    name: str | None = None
    stacks: bool = False
    device: int | None = None
    gpu: str | None = None
    max_peak: int | None = None
    widget: bool = True
    save: str | None = None
    private: bool = False


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stacks",
        action="store_true",
        help="record the Python line of every allocation (costs more)",
    )
    add_device(parser)
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="run on a virtual card from here on (`%%nbmem gpu` lists them)",
    )
    parser.add_argument(
        "--max-peak",
        metavar="20GiB",
        type=parse_bytes,
        help="fail the cell if its peak is above this",
    )
    parser.add_argument(
        "--no-widget", action="store_false", dest="widget", help="show the plain text only"
    )
    parser.add_argument("--save", metavar="FILE", help="save the session to a file")
    add_private(parser)


_CELL, _STATEMENT = parser_of("%%memtrace", _add), parser_of("%memtrace", _add)
OPTIONS = tuple(_CELL.options())
HELP = CommandOption("--help", None, "show this")
_HELP_WORDS = {HELP.flag, "-h"}


def asks_for_help(line: str) -> bool:
    """Return whether a line contains `--help` or `-h`."""
    return not _HELP_WORDS.isdisjoint(line.split())


def statement_asks_for_help(line: str) -> bool:
    """Return whether `--help` stands before the statement of `%memtrace`."""
    options = itertools.takewhile(lambda word: word.startswith("--"), line.split())
    return HELP.flag in options


def parse_cell_line(line: str) -> CellOptions:
    """Read what follows `%%memtrace`; words that are no options make the name.

    Raises:
        UsageError: An option or its value cannot be used.
    """
    options, words = _CELL.parse_known_args(split_words(line))
    unknown = [word for word in words if word.startswith("-") and word != "-"]
    if unknown:
        raise UsageError(_CELL.unknown(unknown))
    return _options(options, " ".join(words) or None)


def parse_statement_line(line: str) -> tuple[CellOptions, str]:
    """Parse what follows `%memtrace`: options, then the statement.

    Raises:
        UsageError: An option cannot be used, or there is no statement.
    """
    options, statement = _split_statement(line)
    read = _STATEMENT.read(options)
    if not statement:
        raise UsageError(
            "%memtrace needs a statement to trace: `%memtrace model(x)`. "
            "To trace a whole cell, put %%memtrace on its first line."
        )
    return _options(read, None), statement


def _split_statement(line: str) -> tuple[str, str]:
    """Split a line into its options and its statement.

    The statement is Python and is not parsed.
    """
    rest = line.strip()
    while rest.startswith("--"):
        flag, _, after = rest.partition(" ")
        rest = after.lstrip()
        if _STATEMENT.takes_value(flag) and rest[:1] in {'"', "'"}:
            rest = rest[1:].partition(rest[0])[2].lstrip()
        elif _STATEMENT.takes_value(flag):
            rest = rest.partition(" ")[2].lstrip()
    return line.strip().removesuffix(rest), rest


def _options(read: Any, name: str | None) -> CellOptions:
    if read.private and read.save is None:
        raise UsageError("--private is about the file of --save. Name that, too: --save run.nbmem.")
    if read.private and is_folder(read.save):
        raise refuse_private("into a folder of ranks")
    return CellOptions(name=name, **vars(read))
