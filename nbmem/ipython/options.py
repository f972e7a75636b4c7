"""The options of `%%memtrace` and `%memtrace`: one visible table, one sentence for each mistake."""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from nbmem.core.errors import UsageError
from nbmem.core.units import parse_bytes

_TOKEN = re.compile(r"""\s*((?:[^\s"']|"[^"]*"|'[^']*')+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOptions:
    """What the user asked for on the `%%memtrace` line.

    Attributes:
        name: The report's title; None to use the cell's number.
        stacks: Record the Python line of every allocation.
        device: CUDA ordinal to report; None for the one that was used.
        gpu: Virtual card to run on, or None to leave the card as it is.
        max_peak: Bytes above which the cell fails; None for no limit.
        widget: Show the HTML report; if False, the plain text only.
        save: File to save the session to, or None.
    """

    name: str | None = None
    stacks: bool = False
    device: int | None = None
    gpu: str | None = None
    max_peak: int | None = None
    widget: bool = True
    save: str | None = None


class CommandOption(NamedTuple):
    """One option: its flag, the name of its value (None for a switch) and what it does."""

    flag: str
    value: str | None
    help: str


DEVICE = CommandOption("--device", "N", "report card N; the default is the one that the cell used")
OPTIONS: tuple[CommandOption, ...] = (
    CommandOption("--stacks", None, "record the Python line of every allocation (costs more)"),
    DEVICE,
    CommandOption("--gpu", "NAME", "run on a virtual card from here on (`%nbmem gpu` lists them)"),
    CommandOption("--max-peak", "20GiB", "fail the cell if its peak is above this"),
    CommandOption("--no-widget", None, "show the plain text only"),
    CommandOption("--save", "FILE", "save the session to a file"),
)
USAGE = "[NAME] " + " ".join(
    f"[{option.flag}{' ' + option.value if option.value else ''}]" for option in OPTIONS
)


HELP = CommandOption("--help", None, "show this")
_HELP_WORDS = {HELP.flag, "-h"}


def asks_for_help(line: str) -> bool:
    """Whether a word of a line asks how it is written."""
    return not _HELP_WORDS.isdisjoint(line.split())


def statement_asks_for_help(line: str) -> bool:
    """Whether a `%memtrace` line asks for help: what stands before the statement is nbmem's."""
    options = itertools.takewhile(lambda word: word.startswith("--"), line.split())
    return HELP.flag in options


def parse_cell_line(line: str) -> CellOptions:
    """Read what follows `%%memtrace`; words that are no options make the name.

    Raises:
        UsageError: An option or its value cannot be used.
    """
    values, words, _ = _scan(line, stop_at_word=False)
    return _options(values, " ".join(words) or None)


def parse_statement_line(line: str) -> tuple[CellOptions, str]:
    """Read what follows `%memtrace`: options first, then the statement to its end.

    Raises:
        UsageError: An option cannot be used, or there is no statement.
    """
    values, _, statement = _scan(line, stop_at_word=True)
    if not statement:
        raise UsageError(
            "%memtrace needs a statement to trace: `%memtrace model(x)`. "
            "To trace a whole cell, put %%memtrace on its first line."
        )
    return _options(values, None), statement


def _scan(line: str, *, stop_at_word: bool) -> tuple[dict[str, str], list[str], str]:
    """Split a line into options with their values, words, and the unread rest."""
    values: dict[str, str] = {}
    words: list[str] = []
    at = 0
    while match := _TOKEN.match(line, at):
        token = match[1]
        if not token.startswith("-") or (stop_at_word and not token.startswith("--")):
            if stop_at_word:
                break
            words.append(_unquote(token))
            at = match.end()
            continue
        at = match.end()
        flag, equals, value = token.partition("=")
        option = _find(flag)
        if option.value is None:
            if equals:
                raise UsageError(f"{flag} takes no value; write it alone.")
        elif not equals:
            following = _TOKEN.match(line, at)
            if following is None or following[1].startswith("--"):
                raise UsageError(
                    f"{flag} needs a value: `{flag} {option.value}`. It means: {option.help}."
                )
            value, at = following[1], following.end()
        values[flag] = _unquote(value)
    return values, words, line[at:].strip()


def _find(flag: str) -> CommandOption:
    for option in OPTIONS:
        if option.flag == flag:
            return option
    names = [option.flag.strip("-") for option in OPTIONS]  # dashes would make all look alike
    near = difflib.get_close_matches(flag.strip("-"), names, n=1)
    meant = f"Did you mean --{near[0]}? " if near else ""
    raise UsageError(f"{flag} is not an option of memtrace. {meant}The options are: {USAGE}.")


def _options(values: dict[str, str], name: str | None) -> CellOptions:
    read: dict[str, Any] = {}
    if "--device" in values:
        read["device"] = _ordinal(values["--device"])
    if "--max-peak" in values:
        read["max_peak"] = parse_bytes(values["--max-peak"])
    return CellOptions(
        name=name,
        stacks="--stacks" in values,
        gpu=values.get("--gpu"),
        widget="--no-widget" not in values,
        save=values.get("--save"),
        **read,
    )


def _ordinal(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--device {text} is not a card's number. Write 0 for the first card.")
    return int(text)


def _unquote(token: str) -> str:
    """Take the quotes away that held a value with blanks together."""
    return re.sub(r"""(["'])(.*?)\1""", r"\2", token)
