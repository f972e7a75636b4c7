"""One parser for every line that a user writes, in a terminal and behind nbmem's magics.

It is argparse, whose mistakes become the sentence of a UsageError: what is wrong, and what to write
instead.
"""

from __future__ import annotations

import argparse
import difflib
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from nbmem.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class LineParser(argparse.ArgumentParser):
    """argparse that raises what it has to say; nothing is abbreviated.

    Args:
        prog: What stands in front of the options, as it is typed: `nbmem run`, `%%nbmem fit`.
        named: As for argparse.
    """

    def __init__(self, prog: str | None = None, **named: Any) -> None:
        super().__init__(prog, allow_abbrev=False, exit_on_error=False, **named)

    # argparse types it once for each of its own overloads.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read the words, and leave those that are not known.

        Raises:
            UsageError: They cannot be read.
        """
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as err:
            raise UsageError(self._wrong(err)) from None

    def error(self, message: str) -> NoReturn:
        """Raise it as a sentence, instead of ending the process."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}. {self.advice}")

    def read(self, line: str) -> Any:
        """Read a line.

        Returns:
            argparse's namespace.

        Raises:
            UsageError: It cannot be read.
        """
        options, unknown = self.parse_known_args(words_of(line))
        if unknown:
            raise UsageError(self.unknown(unknown))
        return options

    def unknown(self, words: Sequence[str], hint: str = "") -> str:
        """Say that words were not understood, and what may have been meant.

        Args:
            words: They, as they were typed.
            hint: What else to say.
        """
        flag = words[0].partition("=")[0].lstrip("-")
        names = [name.lstrip("-") for name in self._option_string_actions]  # dashes look all alike
        near = difflib.get_close_matches(flag, names, n=1) if words[0].startswith("-") else []
        meant = f"Did you mean --{near[0]}?" if near else ""
        says = f"{self.prog} does not know {' '.join(words)}."
        return " ".join(filter(None, [says, meant, hint, self.advice]))

    @property
    def advice(self) -> str:
        """Where the help is."""
        return f"`{self.prog} --help` lists what can be given."

    def options(self) -> list[CommandOption]:
        """List the options, for the help and for Tab."""
        return [
            CommandOption(one.option_strings[0], _value_of(one), (one.help or "") % vars(one))
            for one in self._actions
            if one.option_strings
        ]

    def takes_value(self, flag: str) -> bool:
        """Whether the word after a flag is its value; an unknown one has none."""
        action = self._option_string_actions.get(flag)
        return action is not None and action.nargs != 0

    def _wrong(self, err: argparse.ArgumentError) -> str:
        action = self._option_string_actions.get(err.argument_name or "")
        if action is None:
            return f"{str(err)[:1].upper()}{str(err)[1:]}. {self.advice}"
        flag = action.option_strings[0]
        if action.nargs == 0:
            return f"{flag} takes no value; write it alone."
        if err.message.startswith("expected"):
            return f"{flag} needs a value: `{flag} {_value_of(action)}`. It means: {action.help}."
        return f"{flag} cannot be used: {err.message}. {self.advice}"


class CommandOption(NamedTuple):
    """One option: its flag, the name of its value (None for a switch) and what it does."""

    flag: str
    value: str | None
    help: str


def parser_of(prog: str, *add: Callable[[argparse.ArgumentParser], None]) -> LineParser:
    """A parser of a line in a notebook, where `--help` is answered before a line is read.

    Args:
        prog: What stands in front of the options, as it is typed.
        add: Each adds options of its own.
    """
    parser = LineParser(prog, add_help=False)
    for one in add:
        one(parser)
    return parser


def words_of(line: str) -> list[str]:
    r"""The words of a line; quotes hold one with blanks together, and `\` is a letter (of a path).

    Raises:
        UsageError: A quote has no end.
    """
    words = shlex.shlex(line, posix=True)
    words.whitespace_split, words.escape, words.commenters = True, "", ""
    try:
        return list(words)
    except ValueError:
        raise UsageError(
            f"A quote in {line.strip()!r} has no end. Put the other kind around a word with one."
        ) from None


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the choice of the card to report."""
    parser.add_argument(
        "--device",
        metavar="N",
        type=_ordinal,
        help="report card N; the default is the one that held the most",
    )


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """Add how large a file may be that is read."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        help="read files of up to this size, packed and unpacked: 4GiB; the default is 1GiB",
    )


PRIVATE = "write no paths, source, user, host or other processes into files (SECURITY.md)"


def add_private(parser: argparse.ArgumentParser) -> None:
    """Add that what is written tells nothing of its author."""
    parser.add_argument("--private", action="store_true", help=PRIVATE)


def refuse_private(what: str) -> UsageError:
    """Say that there is no private form of something."""
    return UsageError(
        f"Cannot write {what} privately: --private is for the recording of one process. Leave it "
        "out, or name a file of one process."
    )


def _ordinal(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--device {text} is not a card's number. Write 0 for the first card.")
    return int(text)


def _value_of(action: argparse.Action) -> str | None:
    if action.nargs == 0:
        return None
    named = action.metavar or action.dest.upper()
    return " ".join(named) if isinstance(named, tuple) else named
