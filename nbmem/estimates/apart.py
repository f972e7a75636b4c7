"""Runs estimates in a process of their own, so that the one that asks stays as it is.

A virtual card in the kernel itself would answer every thread that asks torch.cuda meanwhile, could
not stand beside a real context, and a program that takes all of the host's memory would end the
kernel. A fork is no way out: autograd refuses to run in the fork of a process that used CUDA, and a
fork of a process with threads may hang. So a new Python is started and the names are sent to it.
Random state, flags, the cards (real and virtual) and every variable here are not touched at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

from nbmem.core.errors import NbmemError
from nbmem.estimates import surroundings
from nbmem.estimates.worker import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from nbmem.estimates.programs import Program


PARTING = 2.0
"""Seconds in which the process may end by itself after its last answer."""


class EstimateError(NbmemError):
    """An estimate could not be made."""


class Apart:
    """A process that answers questions about a program; use it as a context manager."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # No card is visible: what the virtual one does not catch must fail, not take memory.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbmem.estimates.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,  # so that what the program starts can be ended with it
        )
        try:
            self._send(dataclasses.replace(surroundings.taken(), environment=environment))
        except BaseException:  # Ctrl-C while it starts: nobody else would end it
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        if kind is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PARTING)
        # After Ctrl-C what it computes is of no use to anybody; after the answer neither is a
        # thread or process that the program left running.
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()

    def ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """What `question(program, *arguments)` answers there.

        Raises:
            EstimateError: It failed there, or the process is gone.
        """
        assert self._process is not None  # noqa: S101 - entered
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        try:
            self._send(Job(question, self._program, arguments))
            well, answer = pickle.load(self._process.stdout)  # noqa: S301 - from our own process
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            code = self._process.wait()
            raise EstimateError(
                f"The process of the estimate ended by itself ({_how(code)}). If the program makes "
                "its data on the CPU, this machine may have too little memory for it: make less of "
                "it, or bound the search with --between."
            ) from None
        if not well:
            raise EstimateError(answer)
        return answer

    def _send(self, message: Any) -> None:
        assert self._process is not None  # noqa: S101 - entered
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
