"""The process in which programs are estimated: `python -m nbmem.estimates.worker`.

It reads pickles from its standard input and answers each with one. What the programs print goes
nowhere; they see no real card, so that they cannot disturb one.
"""

from __future__ import annotations

import builtins
import gc
import os
import pickle
import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.errors import NbmemError
from nbmem.estimates import programs, surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.estimates.programs import Program
    from nbmem.estimates.surroundings import Surroundings


class Job(NamedTuple):
    """One question: a function of nbmem's, the program and what the function needs beside it."""

    ask: Callable[..., Any]
    program: Program
    arguments: tuple[Any, ...]


def main() -> None:
    """Answer until the input ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - it is the program's from here on
    theirs: Surroundings = pickle.load(requests)  # noqa: S301 - from the process that asks
    theirs.put()
    builtins.input = programs.nobody_answers
    surroundings.stand(surroundings.taken())
    gc.freeze()  # each run collects what the one before left: only that, not all of torch
    while True:
        try:
            job: Job = pickle.load(requests)  # noqa: S301 - the same
        except EOFError:
            return
        pickle.dump(_answer(job), answers)
        answers.flush()


def _answer(job: Job) -> tuple[bool, Any]:
    try:
        return True, job.ask(job.program, *job.arguments)
    except NbmemError as err:
        return False, str(err)
    except Exception:  # noqa: BLE001 - a fault of nbmem's, told to the one who asked
        return False, f"It is a fault of nbmem's:\n{traceback.format_exc()}"


if __name__ == "__main__":
    main()
