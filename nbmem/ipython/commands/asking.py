"""What `fit`, `plan` and `layers` share in a notebook: options, and progress that gives way."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any, NoReturn

from nbmem.core.errors import UsageError
from nbmem.ipython.commands.base import text_bundle
from nbmem.ipython.guest import say
from nbmem.ipython.tracer import show_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LINES = 12
"""Runs that the progress shows; older ones scroll away."""


class _Parser(argparse.ArgumentParser):
    """argparse whose mistakes are sentences."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the kernel."""
        usage = self.format_usage().strip().removeprefix("usage: ")
        raise UsageError(f"{message[:1].upper()}{message[1:]}. Write {usage}")


def read(usage: str, line: str, *add: Callable[[argparse.ArgumentParser], None]) -> Any:
    """Read a line's options.

    Raises:
        UsageError: They cannot be read.
    """
    parser = _Parser(prog=usage, add_help=False, allow_abbrev=False)
    for one in add:
        one(parser)
    try:
        return parser.parse_args(shlex.split(line))
    except ValueError as err:
        raise UsageError(f"The line cannot be read: {err}.") from None


class Progress:
    """The cell's output while runs go on; the answer takes its place.

    A terminal cannot take output back: there each run is a line on stderr.
    """

    def __init__(self, shell: Any, title: str) -> None:
        from IPython.display import display

        self._lines: list[str] = []
        self._title = title
        self._handle: Any = None
        if getattr(shell, "kernel", None) is not None:
            self._handle = display(self._bundle(), raw=True, display_id=True)

    def tell(self, text: str) -> None:
        """One more run is done."""
        self._lines.append(text)
        if self._handle is None:
            say(f"{self._title}: {text}")
        else:
            self._handle.update(self._bundle(), raw=True)

    def show(self, answer: Any) -> None:
        """The answer instead."""
        bundle = answer._repr_mimebundle_()
        if self._handle is None:
            show_bundle(bundle)
        else:
            self._handle.update(bundle, raw=True)

    def _bundle(self) -> dict[str, str]:
        head = f"{self._title}: {len(self._lines)} runs on the virtual card"
        return text_bundle("\n".join([head, *(f"  {text}" for text in self._lines[-LINES:])]))


def write(answer: Any, *, json: str | None, html: str | None) -> list[Path]:
    """Write an answer's files.

    Raises:
        UsageError: One cannot be written.
    """
    from json import dumps
    from pathlib import Path

    written = []
    for name, text in ((json, lambda: dumps(answer.to_json(), indent=2)), (html, answer.to_html)):
        if name is None:
            continue
        try:
            Path(name).write_text(f"{text()}\n", encoding="utf-8")
        except OSError as err:
            raise UsageError(f"{name} cannot be written ({err.strerror or err}).") from err
        written.append(Path(name))
    return written
