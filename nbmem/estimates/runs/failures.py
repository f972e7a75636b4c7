"""Describe why a program did not finish on the virtual card."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from nbmem.estimates.programs.programs import EndedError
from nbmem.estimates.programs.serialization import NotCopiedError
from nbmem.report.estimate_results import Failure
from nbmem.views.markup import clipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbmem.estimates.programs.programs import Program

LONGEST = 160
"""Characters of an error's text that an answer shows."""


@contextlib.contextmanager
def collect_thread_failures(program: Program) -> Iterator[list[Failure]]:
    """Collect out-of-memory errors that threads raised.

    torch raises in the thread, and reports only text. The hook of `threading` is wrapped.
    """
    found: list[Failure] = []
    true = threading.excepthook

    def record(args: threading.ExceptHookArgs) -> None:
        failure = None if args.exc_value is None else failure_of(program, args.exc_value)
        if failure is not None and failure.kind == "memory":
            found.append(failure)
        true(args)

    threading.excepthook = record
    try:
        yield found
    finally:
        threading.excepthook = true


def failure_of(program: Program, error: BaseException) -> Failure:
    """Convert an exception to the failure that an answer shows."""
    import torch

    if isinstance(error, (EndedError, NotCopiedError)):
        return Failure(kind="other", text=str(error), line=program.line_of(error))
    first = next(iter(str(error).splitlines()), "")
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    memory = isinstance(error, torch.cuda.OutOfMemoryError)
    if memory:
        text = text.partition(". GPU")[0]
    line, shown = program.line_of(error), clipped(text.rstrip("."), LONGEST)
    return Failure(kind="memory" if memory else "other", text=shown, line=line)
