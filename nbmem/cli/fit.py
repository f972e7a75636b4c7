"""`nbmem fit SCRIPT --vary NAME`: the largest value of a variable with which a script fits."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

from nbmem.cli.base import EXIT_OK, Subcommand, writable, write_out
from nbmem.core.files.writing import write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from nbmem.estimates import options

    parser.add_argument("script", metavar="SCRIPT", help="the Python file to run, many times")
    parser.add_argument(
        "--vary",
        metavar="NAME",
        required=True,
        help="the variable: `NAME = 32` in the script, or its argument: `-- --NAME 32`",
    )
    options.add_card(parser)
    options.add_range(parser)
    options.add_files(parser)


def run(options: argparse.Namespace) -> int:
    """Search, and print the answer."""
    from nbmem import estimates
    from nbmem.estimates import programs
    from nbmem.estimates.options import search

    targets = files(options)
    arguments = tuple(options.script_arguments)
    program = programs.script(options.script, arguments, vary=options.vary)
    with progress("fit") as tell:
        answer = estimates.fit(program, **search(options), tell=tell)
    return finish(answer, targets)


def files(options: argparse.Namespace) -> dict[str, Any]:
    """The files to write, each checked before anything runs."""
    return {
        name: writable(value, f"--{name}")
        for name in ("json", "html")
        if (value := getattr(options, name)) is not None
    }


def finish(answer: Any, targets: dict[str, Any]) -> int:
    """Print an answer and write the files that were asked for."""
    if "json" in targets:
        text = json.dumps(answer.to_json(), indent=2)
        write_text(targets["json"], f"{text}\n")
    if "html" in targets:
        write_text(targets["html"], answer.to_html())
    write_out(str(answer))
    return EXIT_OK


class progress:  # noqa: N801 - reads as a function: `with progress("fit") as tell`
    """One line on a terminal that says which run is done; nothing where nobody watches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._runs = 0
        self._watched = sys.stderr.isatty()

    def __enter__(self) -> Callable[[str], None]:
        self._show("starting")
        return self._tell

    def __exit__(self, *_exc: object) -> None:
        if self._watched:
            sys.stderr.write("\r\033[K")

    def _tell(self, text: str) -> None:
        self._runs += 1
        self._show(f"run {self._runs}, {text}")

    def _show(self, text: str) -> None:
        if self._watched:
            wide = shutil.get_terminal_size().columns - 1  # a second line could not be taken back
            sys.stderr.write("\r\033[K" + f"{self._name}: {text}"[:wide])
            sys.stderr.flush()


COMMAND = Subcommand(
    "fit", "find the largest value of a variable that fits on a card", configure, run
)
