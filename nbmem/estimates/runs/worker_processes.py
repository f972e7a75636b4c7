"""Keep one idle worker process for estimates, with torch imported.

The worker holds no program: a program's names live in a fork of it and end with that. It starts
with the first estimate, or while one is being typed, since torch takes seconds to import. It ends
after a while without requests, with the process that started it, and with `%unload_ext nbmem`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import subprocess
import sys
from functools import cache

from nbmem.core.runtime.entry_points import entry
from nbmem.engine import process
from nbmem.estimates.programs import environment
from nbmem.estimates.runs import pipe_messages

PARTING = 2.0
"""Seconds in which a process may end by itself."""

HIDDEN = {environment.VISIBLE: environment.NO_CARD}
"""What hides the real cards from a process."""

_waiting: list[tuple[int, subprocess.Popen[bytes]]] = []
"""The idle worker, with the process that started it: a fork of that process must not use it."""


def process_environment() -> dict[str, str]:
    """Return this process's environment, without the engine torch's."""
    from nbmem.engine.cache import root as cache_root  # with the table of cards

    here = dict(os.environ)
    return process.without(here, cache_root()) if process.active() else here


def take() -> subprocess.Popen[bytes]:
    """Return the idle worker process, or start one."""
    while _waiting:
        owner, process = _waiting.pop()
        if _is_there(owner, process):
            return process
    return _started()


@entry("prepare the process of estimates")
def prepare() -> None:
    """Start a worker process if none is idle, before it is needed."""
    if sys.platform == "linux" and not any(_is_there(*one) for one in _waiting):
        end_all()
        _keep(_started())


def _is_there(owner: int, process: subprocess.Popen[bytes]) -> bool:
    return owner == os.getpid() and process.poll() is None


def start_on(engine_environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker process on the cards of the engine torch.

    Args:
        engine_environment: That of `nbmem.engine.launch`.
    """
    return _started(engine_environment, {})


def _started(
    given: dict[str, str] | None = None, cards: dict[str, str] = HIDDEN
) -> subprocess.Popen[bytes]:
    own = {
        **cards,
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        # Else numpy starts threads when it is imported, and a process with threads cannot fork.
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "nbmem.estimates.runs.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**(process_environment() if given is None else given), **own},
        start_new_session=True,  # so that what the program starts can be ended with it
    )


def return_worker(process: subprocess.Popen[bytes]) -> None:
    """Let a worker wait for its next question; end it if it is gone."""
    assert process.stdin is not None  # noqa: S101 - a pipe
    try:
        pipe_messages.write(process.stdin.fileno(), pickle.dumps(None))
    except OSError:
        end(process)
        return
    if _waiting:  # two threads used workers at the same time
        end(process, PARTING)
        return
    _keep(process)


@cache
def _at_exit() -> None:
    """Register the exit handler once for the process.

    Python retains the entry of a handler that is unregistered.
    """
    atexit.register(end_all)


def _keep(process: subprocess.Popen[bytes]) -> None:
    _at_exit()
    _waiting.append((os.getpid(), process))


@entry("end the process of estimates")
def end_all() -> None:
    """End every idle worker process."""
    while _waiting:
        owner, process = _waiting.pop()
        if owner == os.getpid():
            end(process)


def end(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """End a process with all that its program started.

    Args:
        process: Which one.
        patience: Seconds in which it may finish what it does.
    """
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    if patience:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    if process.poll() is None:
        process.terminate()  # it ends its fork and what that started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PARTING)
    end_group(process.pid)
    process.kill()
    process.wait()


def end_group(leader: int) -> None:
    """Kill the process group of a leader. Windows has no such groups."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
