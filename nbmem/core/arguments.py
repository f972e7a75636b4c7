"""Argument parser for the command line and for nbmem's magics.

It is argparse, whose errors become the message of a UsageError: what is wrong, and what to write
instead.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest, suggest_or_list


class LineParser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError and allows no abbreviations.

    Args:
        prog: The command before the options, as it is typed: `nbmem run`, `%%nbmem fit`.
        named: As for argparse.
    """

    def __init__(self, prog: str | None = None, **named: Any) -> None:
        super().__init__(prog, allow_abbrev=False, exit_on_error=False, **named)

    # argparse types this method once for each of its own overloads.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the known options and return the unknown words separately.

        Raises:
            UsageError: The options cannot be parsed.
        """
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as err:
            raise UsageError(self._wrong(err)) from None

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a UsageError instead of exiting."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}. {self.advice}")

    def read(self, line: str) -> Any:
        """Parse one line.

        Returns:
            argparse's namespace.

        Raises:
            UsageError: The line cannot be parsed.
        """
        options, unknown = self.parse_known_args(split_words(line))
        if unknown:
            raise UsageError(self.unknown(unknown))
        return options

    def unknown(self, words: Sequence[str], hint: str = "") -> str:
        """Build the message for unknown words, with the closest known flag."""
        flag = words[0].partition("=")[0].lstrip("-")
        names = [name.lstrip("-") for name in self._option_string_actions]  # without dashes
        meant = suggest(flag, names, "--{}").rstrip() if words[0].startswith("-") else ""
        says = f"{self.prog} does not know {' '.join(words)}."
        return " ".join(filter(None, [says, meant, hint, self.advice]))

    @property
    def advice(self) -> str:
        """A sentence that names the command's `--help`."""
        return f"`{self.prog} --help` lists what can be given."

    def options(self) -> list[CommandOption]:
        """List the options, for the help and for Tab."""
        return [
            CommandOption(one.option_strings[0], _value_of(one), (one.help or "") % vars(one))
            for one in self._actions
            if one.option_strings
        ]

    def takes_value(self, flag: str) -> bool:
        """Return whether a flag is followed by a value; False if unknown."""
        action = self._option_string_actions.get(flag)
        return action is not None and action.nargs != 0

    def _wrong(self, err: argparse.ArgumentError) -> str:
        action = self._option_string_actions.get(err.argument_name or "")
        commands = next(
            (a.choices for a in self._actions if a.choices and not a.option_strings), ()
        )
        wrong = re.match(r"invalid choice: '(.+?)'", err.message)
        if action is None and wrong and commands:
            written, lister = f"`{self.prog} {{}}`", f"`{self.prog} --help`"
            meant = suggest_or_list(wrong[1], commands, written, lister=lister)
            return f"{self.prog} has no command {wrong[1]!r}. {meant}"
        if action is None:
            return f"{str(err)[:1].upper()}{str(err)[1:]}. {self.advice}"
        flag = action.option_strings[0]
        if action.nargs == 0:
            return f"{flag} takes no value; write it alone."
        if err.message.startswith("expected"):
            return f"{flag} needs a value: `{flag} {_value_of(action)}`. It means: {action.help}."
        return f"{flag} cannot be used: {err.message}. {self.advice}"


class CommandOption(NamedTuple):
    """A command option: its flag, value name and help text.

    The value name is None for a switch.
    """

    flag: str
    value: str | None
    help: str


def parser_of(prog: str, *add: Callable[[argparse.ArgumentParser], None]) -> LineParser:
    """Return a parser for a line in a notebook.

    `--help` is not one of its options: the caller handles it before the line is parsed.

    Args:
        prog: The command before the options, as it is typed.
        add: Functions that each add options.
    """
    parser = LineParser(prog, add_help=False)
    for one in add:
        one(parser)
    return parser


def split_words(line: str) -> list[str]:
    """Split a line into words.

    Quotes keep blanks inside a word. A backslash is an ordinary character, as in a Windows path.

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
    """Add the `--device` option, which chooses the card to report."""
    parser.add_argument(
        "--device",
        metavar="N",
        type=_ordinal,
        help="report card N; the default is the one that held the most",
    )


def add_max_size(parser: argparse.ArgumentParser) -> None:
    """Add the `--max-size` option, which limits the size of files to read."""
    parser.add_argument(
        "--max-size",
        metavar="SIZE",
        help="read files of up to this size, packed and unpacked: 4GiB; the default is 1GiB",
    )


PRIVATE = "write no paths, source, user, host or other processes into files (SECURITY.md)"


def add_private(parser: argparse.ArgumentParser) -> None:
    """Add the `--private` option, which removes personal data from files."""
    parser.add_argument("--private", action="store_true", help=PRIVATE)


def refuse_private(what: str) -> UsageError:
    """Create the error for output that has no private form."""
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
