"""Asks the worker, once for each kind of convolution."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nbmem.virtual.hardware.cudnn.problem import Answer

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.problem import Problem

_LIBRARY = "cudnn/lib/libcudnn.so.9"


class Client:
    """One worker for one card; answers None once something went wrong."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._process: subprocess.Popen[str] | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._first: dict[Problem, tuple[Answer, ...]] = {}
        self._every: dict[Problem, tuple[Answer, ...]] = {}

    def ask(self, problem: Problem) -> Answer | None:
        """The kernel that cuDNN lists first; None if nobody can say."""
        found = self._remembered(self._first, problem, 1)
        return found[0] if found else None

    def every(self, problem: Problem) -> tuple[Answer, ...]:
        """All kernels that can do it, in cuDNN's order; none if nobody can say."""
        return self._remembered(self._every, problem, None)

    def _remembered(
        self, known: dict[Problem, tuple[Answer, ...]], problem: Problem, wanted: int | None
    ) -> tuple[Answer, ...]:
        if problem not in known:
            with self._lock:  # one answer belongs to one question, whichever thread asks
                known[problem] = () if self._failed else self._ask(problem, wanted)
        return known[problem]

    def _ask(self, problem: Problem, wanted: int | None) -> tuple[Answer, ...]:
        try:
            stdin, stdout = self._pipes()
            stdin.write(json.dumps([asdict(problem), wanted]) + "\n")
            stdin.flush()
            return tuple(map(Answer.read, json.loads(stdout.readline())))
        except (OSError, ValueError):
            self._failed = True
            self.close()
            return ()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._process is None:
            path = library_path()
            if path is None:
                raise FileNotFoundError
            self._process = subprocess.Popen(  # noqa: S603 - this Python, this package
                [sys.executable, "-m", __package__ + ".worker", str(path), facts_of(self._card)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=_environment(path),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None:
            try:
                process.communicate(timeout=5)
            except (OSError, subprocess.TimeoutExpired):  # it still loads cuDNN on a busy machine
                process.kill()
                process.wait()


@lru_cache(maxsize=1)
def library_path() -> Path | None:
    """libcudnn of NVIDIA's package in this environment, which torch uses, too; None without it."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / _LIBRARY
        if path.exists():
            return path
    return None


def _environment(path: Path) -> dict[str, str]:
    """cuDNN finds its companions; no real card is in reach; nbmem is found where it is."""
    root = path.parents[2]
    libraries = [str(place) for place in sorted(root.glob("*/lib"))]
    found = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    found["LD_LIBRARY_PATH"] = os.pathsep.join(
        [*libraries, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    )
    found["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return found


def facts_of(card: Card) -> str:
    """A card as cuDNN describes one. The heuristics look at the capability; clocks hardly matter.

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
