"""Client of the cuDNN worker process: one query per kind of convolution."""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nbmem.virtual.hardware.cudnn.problem import Answer, Problem

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

_LIBRARY = "cudnn/lib/libcudnn.so.9"
PATIENCE_S = 120
"""The timeout of one query: loading cuDNN takes a second, and a query a tenth."""
MOST_LOST = 4
"""Workers that may end during a query; then only the rules decide."""


class CudnnClient:
    """A client of one cuDNN worker for one card; answers None after a failure."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._answered = self._failed = False
        self._lost = 0
        self._lock = threading.Lock()
        self._first: dict[Problem, tuple[Answer, ...]] = {}
        self._every: dict[Problem, tuple[Answer, ...]] = {}

    def first_kernel(self, problem: Problem) -> Answer | None:
        """Return the kernel that cuDNN lists first; None without an answer."""
        found = self._remembered(self._first, problem, 1)
        return found[0] if found else None

    def all_kernels(self, problem: Problem) -> tuple[Answer, ...]:
        """Return all supported kernels in cuDNN's order; empty without an answer."""
        return self._remembered(self._every, problem, None)

    def _remembered(
        self, known: dict[Problem, tuple[Answer, ...]], problem: Problem, wanted: int | None
    ) -> tuple[Answer, ...]:
        if problem not in known:
            with self._lock:  # queries of all threads share the pipe, so one at a time
                known[problem] = self._query(problem, wanted)
        return known[problem]

    def _query(self, problem: Problem, wanted: int | None) -> tuple[Answer, ...]:
        """Query the worker; retry once in a new one if a proven worker ended."""
        for _ in range(2):
            if self._failed:
                break
            try:
                found = self._answer(json.dumps([asdict(problem), wanted]) + "\n")
            except (OSError, ValueError, TypeError, LookupError) as err:
                self._lost += 1
                hangs = isinstance(err, TimeoutError)
                self._failed = hangs or not self._answered or self._lost >= MOST_LOST
            else:
                self._answered = True
                return found
        return ()

    def _answer(self, question: str) -> tuple[Answer, ...]:
        try:
            stdin, stdout = self._pipes()
            stdin.write(question)
            stdin.flush()
            return tuple(map(Answer.read, json.loads(_line(stdout))))
        except BaseException:
            # Otherwise the reply to an interrupted query would be read as the next query's.
            self.close()
            raise

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._owner != os.getpid():  # a fork: those pipes are the parent's
            self._process, self._owner = None, os.getpid()
        if self._process is None:
            path = library_path()
            if path is None:
                raise FileNotFoundError
            arguments = str(path), device_properties(self._card)
            self._process = subprocess.Popen(  # noqa: S603 - this Python, this package
                [sys.executable, "-P", "-W", "ignore", "-m", __package__ + ".worker", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=_environment(path),
                start_new_session=True,  # Ctrl-C in a terminal or a notebook is not for it
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """Kill the worker, which has no state to save."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            process.kill()
            with suppress(OSError, ValueError):  # its end of the pipes is gone
                process.communicate()


def _line(stdout: IO[str]) -> str:
    with selectors.DefaultSelector() as ready:
        ready.register(stdout, selectors.EVENT_READ)
        if not ready.select(PATIENCE_S):
            raise TimeoutError
    return stdout.readline()


@lru_cache(maxsize=1)
def library_path() -> Path | None:
    """Return the path of libcudnn in NVIDIA's package; None without it.

    torch uses the same library.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / _LIBRARY
        if path.exists():
            return path
    return None


def _environment(path: Path) -> dict[str, str]:
    """Return the worker's environment variables.

    cuDNN finds its companion libraries, no real card is visible, and nbmem can be imported.
    """
    root = path.parents[2]
    libraries = [str(place) for place in sorted(root.glob("*/lib"))]
    found = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found["LD_LIBRARY_PATH"] = os.pathsep.join(
        [*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    )
    # A module of the user's that is named as one of Python's would end the worker.
    library = Path(os.__file__).parent
    first = {str(library), str(library / "lib-dynload")}
    places = sorted(filter(None, sys.path), key=lambda place: place not in first)
    found["PYTHONPATH"] = os.pathsep.join(places)
    return found


def device_properties(card: Card) -> str:
    """Return a card's properties as cuDNN's JSON description.

    The heuristics depend on the compute capability; clocks hardly matter.

    Clocks are the H100's.
    """
    major, minor = card.capability
    processor = card.multiprocessor
    return json.dumps(
        {
            "deviceName": card.name,
            "cudaDeviceId": 0,
            "deviceVer": 100 * major + 10 * minor,
            "driverVer": 13000,
            "multiProcessorCount": card.processors,
            "totalGlobalMem": card.total_bytes,
            "l2CacheSize": card.l2_bytes,
            "maxThreadsPerSM": processor.threads,
            "maxCtasPerSM": processor.blocks,
            "maxSharedMemoryPerBlockOptin": processor.shared_bytes,
            "maxSharedMemoryPerBlock": 48 << 10,
            "reservedSharedMemoryPerBlock": 1 << 10 if major >= 8 else 0,
            "maxGridSize": [2**31 - 1, 65535, 65535],
            "maxBlockSize": [1024, 1024, 64],
            "maxThreadsPerBlock": 1024,
            "regsPerBlock": 65536,
            "maxRegistersPerSM": 65536,
            "warpSize": 32,
            "smClockRateKHz": 1_980_000,
            "memClockRateKHz": 2_619_000,
            "pciDeviceId": 0,
            "isTccDriver": 0,
            "supportCoopLaunch": 1,
        }
    )
