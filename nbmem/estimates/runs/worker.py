"""Serve estimates in a process: `python -m nbmem.estimates.runs.worker`.

The process reads requests from its standard input and writes one reply to each. Output of the
programs is discarded. They see no real card, so that they cannot disturb one.

An estimate begins with the state of the calling process, and ends with None. It has a fork of this
process to itself. torch is imported there already. Modules, patches and threads that a program
leaves behind end with the fork. Where no fork is safe, the process serves one estimate and ends.

A process that retained programs would run modules that have been edited since.
"""

from __future__ import annotations

import builtins
import gc
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.core.errors import NbmemError
from nbmem.estimates.programs import environment, programs
from nbmem.estimates.runs import pipe_messages, worker_processes

if TYPE_CHECKING:
    from nbmem.estimates.programs.environment import ProcessState
    from nbmem.estimates.programs.programs import Program

PATIENCE = 300.0
"""Seconds without a question after which it ends: it holds a quarter of a GiB for torch."""


class Job(NamedTuple):
    """One question: a function, the program and the other arguments.

    The function is one of nbmem's.
    """

    ask: Callable[..., Any]
    program: Program
    arguments: tuple[Any, ...]


def main() -> None:
    """Answer questions until the input ends."""
    requests, answers = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - it is the program's from here on
    with suppress(EOFError, BrokenPipeError):
        _serve(requests, answers)


def _serve(requests: int, answers: int) -> None:
    """Fork for each question, and warm up while none is waiting."""
    from nbmem.estimates.runs import prewarm

    gc.disable()  # imports leave no cycles worth looking for, and make a million objects
    prewarm.load()  # numpy with it, in the environment that stops it from starting threads
    gc.freeze()  # each run then collects only what the previous one left, not all of torch
    gc.enable()
    warm = False
    while _can_fork():
        if not warm and not _wait_for_question(requests, 0):
            warm = True
            with suppress(Exception):  # then the next question is as slow as the first
                _warm_up()
            continue
        if not _wait_for_question(requests, PATIENCE):
            return
        _answer_in_fork(_read_state(requests), requests, answers)
    _answer_all(_read_state(requests), requests, answers, stays=False)


def _wait_for_question(requests: int, patience: float) -> bool:
    """Wait for a question or the end of the input; return whether it came.

    False after `patience` seconds without either.
    """
    return bool(select.select([requests], [], [], patience)[0])


def _read_state(requests: int) -> ProcessState:
    """Read the process state with which a question begins."""
    standing: ProcessState = pickle.loads(pipe_messages.read(requests))  # noqa: S301 - our parent
    return standing


def _can_fork() -> bool:
    """Return whether this process has one thread, so that a fork is safe.

    A fork of a process with threads may hang, and only Linux reports how many there are.
    """
    tasks = Path("/proc/self/task")
    return sys.platform == "linux" and threading.active_count() == len(list(tasks.iterdir())) == 1


def _answer_in_fork(begin: ProcessState, requests: int, answers: int) -> None:
    """Answer a question in a fork, and end as the fork does if it fails.

    A fork that ends by a signal or with an error code is imitated.
    """
    if sys.platform != "linux":  # nor is it called there
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    plans = tempfile.TemporaryDirectory(prefix="nbmem-plans-")
    child = os.fork()
    if not child:
        code = 1
        try:
            environment.Plans.folder = plans.name
            os.setpgid(0, 0)  # so that what the program starts can be ended with it
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            _answer_all(begin, requests, answers, stays=True)
            code = 0
        except (EOFError, BrokenPipeError):
            pass
        finally:
            os._exit(code)
    with suppress(OSError):
        os.setpgid(child, child)  # the parent or the fork, whichever is first

    def ended(*_: Any) -> None:
        worker_processes.end_group(child)
        plans.cleanup()
        os._exit(1)

    before = signal.signal(signal.SIGTERM, ended)
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.signal(signal.SIGTERM, before)
    worker_processes.end_group(child)  # a thread or process that the program left running
    plans.cleanup()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    if status:
        os._exit(status)


def _warm_up() -> None:
    """Run a small program once, so that forks find its imports done."""
    from nbmem.estimates.runs import prewarm

    environment.set_initial_state(environment.capture_state())
    prewarm.run()
    gc.collect()
    gc.freeze()


def _answer_all(begin: ProcessState, requests: int, answers: int, *, stays: bool) -> None:
    """Answer all questions about one program.

    Each answer includes whether the next program may be sent to this process.
    """
    begin.put()
    builtins.input = programs.refuse_input
    environment.set_initial_state(environment.capture_state())
    while True:
        job: Job | None = pickle.loads(pipe_messages.read(requests))  # noqa: S301 - as above
        if job is None:
            return
        pipe_messages.write(answers, pickle.dumps((stays, *_answer(job))))


def _answer(job: Job) -> tuple[bool, Any]:
    try:
        return True, job.ask(job.program, *job.arguments)
    except NbmemError as err:
        return False, str(err)
    except Exception:  # noqa: BLE001 - a fault of nbmem's, reported to the caller
        return False, f"It is a fault of nbmem's:\n{traceback.format_exc()}"


if __name__ == "__main__":
    main()
