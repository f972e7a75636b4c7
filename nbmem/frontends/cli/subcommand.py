"""Subcommands of `nbmem`; results on stdout, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TextIO

from nbmem.core.errors import UsageError
from nbmem.core.files.untrusted_input import expand_home, is_folder

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

EXIT_OK = 0
EXIT_FAILED = 1
"""The script raised, a requested file could not be written, or a replay is not exact."""
EXIT_USAGE = 2
"""A wrong option, an unknown card, a missing or unreadable file: nothing was started."""
EXIT_INTERRUPTED = 130


class Subcommand(NamedTuple):
    """A subcommand of `nbmem`.

    Attributes:
        name: What the user types.
        help: What it does, in one line.
        configure: Declares its arguments.
        run: Does it and returns the exit code; raises NbmemError with a sentence for the user.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def write_out(text: str) -> None:
    """Write a result to stdout."""
    _write(sys.stdout, text if text.endswith("\n") else f"{text}\n")


def print_message(sentence: str) -> None:
    """Write a message that is not a result to stderr."""
    _write(sys.stderr, f"nbmem: {sentence}\n")


def _write(stream: TextIO | None, text: str) -> None:
    """Write a text with `?` for what the stream's encoding lacks.

    A pipe on Windows has such an encoding. Nothing is written to a stream that the script closed.
    """
    if stream is None or stream.closed:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def targets(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files that the options name, each checked.

    The check runs before anything else. Folders are not included.

    Raises:
        UsageError: A file cannot be written.
    """
    return {
        name: writable(value, f"--{name}")
        for name in ("json", "html", "save")
        if (value := getattr(options, name, None)) is not None
        and not (name == "save" and is_folder(value))
    }


def writable(path: str, option: str) -> Path:
    """Check that a file can be written later, and return its absolute path.

    A training run is too long to fail at its end, and a script may change the current folder.

    Raises:
        UsageError: It cannot be written.
    """
    target = expand_home(path)
    if target.is_dir():
        raise UsageError(f"{option} {path} is a folder. Name a file inside it.")
    if not target.absolute().parent.is_dir():
        raise UsageError(
            f"{option} {path} cannot be written: there is no folder {target.absolute().parent}. "
            "Make it first, or name another place."
        )
    return target.absolute()
