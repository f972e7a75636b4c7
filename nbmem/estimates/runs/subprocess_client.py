"""Run estimates in a subprocess so that the caller's state stays intact.

A virtual card in the kernel itself would act on every thread that uses torch.cuda, and cannot
coexist with a real context. A program that takes all of the host's memory would end the kernel. A
fork is no alternative: autograd refuses to run in the fork of a process that used CUDA. A fork of a
process with threads may hang. So the names are pickled for another Python process. Random state,
flags, real and virtual cards and all variables of this process stay unchanged.

Functions and classes of the notebook are pickled as code (function_serialization.py), tensors
without their data (tensor_serialization.py). A value that cannot be copied raises an error with its
name when it is used.
"""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from nbmem.api.device_selection import DEFAULT
from nbmem.core.errors import NbmemError
from nbmem.engine import RULES, TORCH
from nbmem.estimates.programs import environment
from nbmem.estimates.runs import pipe_messages, worker_processes
from nbmem.estimates.runs.worker import Job

if TYPE_CHECKING:
    import subprocess

    from nbmem.estimates.programs.programs import Program
    from nbmem.virtual.cards import Card


class EstimateError(NbmemError):
    """An error that prevents an estimate."""


class EstimateProcess:
    """A subprocess that answers questions about a program.

    Use it as a context manager.

    Args:
        program: What the questions are about.
        engine: What makes the figures: `rules` or `torch`.
        card: With `torch`, a card that will be asked for.
    """

    def __init__(self, program: Program, engine: str = RULES, card: Card | None = None) -> None:
        self._program = program
        self._engine = engine
        self._card = card
        self._process: subprocess.Popen[bytes] | None = None
        self._stays = False

    def __enter__(self) -> Self:
        state = environment.capture_state()
        if self._engine == TORCH:
            from nbmem.engine import launch

            where = launch.environment(self._card or DEFAULT)
            self._process = worker_processes.start_on(where)
        else:
            where = worker_processes.process_environment()
            self._process = worker_processes.take()
        try:
            self._send(dataclasses.replace(state, environment=where))
        except BaseException:  # Ctrl-C while it starts: no other code would end it
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
        answered = kind is None or issubclass(kind, NbmemError)
        if answered and self._stays and self._engine == RULES:
            worker_processes.return_worker(process)
        else:  # after Ctrl-C what it computes is of no use to anybody
            worker_processes.end(process, worker_processes.PARTING if answered else 0.0)

    def call(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of `question(program, *arguments)` there.

        Raises:
            EstimateError: It failed there, or the process is gone.
        """
        assert self._process is not None  # noqa: S101 - entered
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        try:
            self._send(Job(question, self._program, arguments))
            found = pipe_messages.read(self._process.stdout.fileno())
        except (EOFError, BrokenPipeError):
            self._stays = False
            code = self._process.wait()
            raise EstimateError(
                f"The process of the estimate ended by itself ({_how(code)}). If the program makes "
                "its data on the CPU, this machine may have too little memory for it: make less of "
                "it, or bound the search with --between."
            ) from None
        self._stays, well, answer = pickle.loads(found)  # noqa: S301 - from our own process
        if not well:
            raise EstimateError(answer)
        return answer

    def _send(self, message: Any) -> None:
        assert self._process is not None  # noqa: S101 - entered
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        pipe_messages.write(self._process.stdin.fileno(), pickle.dumps(message))


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
