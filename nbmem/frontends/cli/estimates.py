"""Shared progress line and output of `fit`, `plan` and `layers`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbmem.frontends.cli.subcommand import EXIT_OK, write_out

if TYPE_CHECKING:
    from pathlib import Path

    from nbmem.estimates.answers import AnyAnswer


def finish(answer: AnyAnswer, files: dict[str, Path]) -> int:
    """Write the requested files and print an answer."""
    answer.write(**files)
    write_out(str(answer))
    return EXIT_OK


class progress:  # noqa: N801 - reads as a function: `with progress("fit") as tell`
    """A progress line on a terminal; nothing where stderr is none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._runs = 0
        self._watched = sys.stderr.isatty()

    def __enter__(self) -> Callable[[str], None]:
        self._show("starting")
        return self._print

    def __exit__(self, *_exc: object) -> None:
        if self._watched:
            sys.stderr.write("\r\033[K")

    def _print(self, text: str) -> None:
        self._runs += 1
        self._show(f"run {self._runs}, {text}")

    def _show(self, text: str) -> None:
        if self._watched:
            wide = shutil.get_terminal_size().columns - 1  # a second line could not be erased
            sys.stderr.write("\r\033[K" + f"{self._name}: {text}"[:wide])
            sys.stderr.flush()
