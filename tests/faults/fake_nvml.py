"""Fake pynvml: any call can return anything, raise, or hang."""

from __future__ import annotations

import os
import threading
import types
from types import SimpleNamespace

from nbmem.core.units import GIB, MIB

TOTAL, USED, DRIVER, PROCESS, OTHER = 80 * GIB, 3 * GIB, 600 * MIB, 2 * GIB, 300 * MIB
RESERVED = 1536 * MIB
"""What torch holds in these tests."""
NOT_AVAILABLE = 2**64 - 1
"""NVML's own word for a figure that it does not have."""
OTHER_PID = 4_000_000


class NVMLError(Exception):
    """The base of NVML's errors."""


class GpuIsLostError(NVMLError):
    """`GPU is lost`."""


class FakeNvml(types.ModuleType):
    """A working card, until `misbehave` changes one call.

    Attributes:
        calls: How often each function was called.
    """

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x2000028  # noqa: N815 - NVML's name

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.calls: dict[str, int] = {}
        self._released = threading.Event()
        self.nvmlInit = self._counted("nvmlInit", lambda: None)
        self.nvmlShutdown = self._counted("nvmlShutdown", lambda: None)
        self.nvmlSystemGetDriverVersion = self._counted("nvmlSystemGetDriverVersion", lambda: "580")
        self.nvmlDeviceGetCount = self._counted("nvmlDeviceGetCount", lambda: 1)
        self.nvmlDeviceGetHandleByIndex = self._counted("nvmlDeviceGetHandleByIndex", lambda _i: 7)
        self.nvmlDeviceGetHandleByUUID = self._counted("nvmlDeviceGetHandleByUUID", lambda _u: 7)
        self.nvmlDeviceGetName = self._counted("nvmlDeviceGetName", lambda _h: b"H100")
        self.nvmlDeviceGetMemoryInfo = self._counted(
            "nvmlDeviceGetMemoryInfo", lambda _h, version=None: memory()
        )
        for kind in ("Compute", "Graphics"):
            name = f"nvmlDeviceGet{kind}RunningProcesses"
            setattr(self, name, self._counted(name, lambda _h: processes()))

    def misbehave(self, name, instead, *, first=1, last=10**9) -> None:
        """Let calls `first` to `last` of a function do something else."""
        well = getattr(self, name)

        def call(*args, **options):
            if first <= self.calls.get(name, 0) + 1 <= last:
                self.calls[name] = self.calls.get(name, 0) + 1
                return instead()
            return well(*args, **options)

        setattr(self, name, call)

    def hang(self) -> None:
        """Block until the test is over."""
        self._released.wait(30)

    def release(self) -> None:
        """End the blocked calls."""
        self._released.set()

    def _counted(self, name, answer):
        def call(*args, **options):
            self.calls[name] = self.calls.get(name, 0) + 1
            return answer(*args, **options)

        return call


def memory(**changes) -> SimpleNamespace:
    """Return the result of nvmlDeviceGetMemoryInfo."""
    return SimpleNamespace(
        **{"total": TOTAL, "free": TOTAL - USED, "used": USED, "reserved": DRIVER} | changes
    )


def process(pid, size) -> SimpleNamespace:
    """Return one listed process."""
    return SimpleNamespace(pid=pid, usedGpuMemory=size)


def processes(*more) -> list[SimpleNamespace]:
    """Return this process, another one, and more."""
    return [process(os.getpid(), PROCESS), process(OTHER_PID, OTHER), *more]


def raiser(err):
    """Return a call that raises."""

    def call():
        raise err

    return call


class Strange:
    """An answer that raises on any access."""

    def __index__(self):
        raise ZeroDivisionError

    def __str__(self):
        raise ZeroDivisionError

    def __getattr__(self, name):
        raise ZeroDivisionError


VALUES = (None, 0, -1, 1, MIB, NOT_AVAILABLE, 2**63, "N/A", b"\xff", 1.5, True, [], Strange())
ERRORS = (
    NVMLError("13"),
    GpuIsLostError("GPU is lost"),
    ZeroDivisionError("in the binding"),
    MemoryError(),
    RecursionError(),
    OSError("libnvidia-ml.so.1"),
    AttributeError("nvmlDeviceGetMemoryInfo"),
)
FUNCTIONS = (
    "nvmlInit",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
)


def misbehaviours():
    """Yield (name, function, replacement) for every kind of fault."""
    for function in FUNCTIONS:
        for value in VALUES:
            yield f"{function} answers {_said(value)}", function, lambda value=value: value
        for err in ERRORS:
            yield f"{function} raises {type(err).__name__}", function, raiser(err)
    info, listed = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses"
    for field in ("total", "free", "reserved"):
        for value in VALUES:
            answer = memory(**{field: value})
            yield f"{field} is {_said(value)}", info, lambda answer=answer: answer
    for name, answer in {
        "more used than there is": memory(free=-TOTAL),
        "more free than there is": memory(free=2 * TOTAL),
        "the driver keeps more than is used": memory(reserved=USED + 1),
        "less used than torch holds": memory(free=TOTAL - RESERVED + 1),
        "a card of 1 MiB": memory(total=MIB, free=0, reserved=0),
        "another card": memory(total=2 * TOTAL),
    }.items():
        yield name, info, lambda answer=answer: answer
    for value in VALUES:
        mine, theirs = [process(os.getpid(), value)], processes(process(OTHER_PID + 1, value))
        yield f"this process holds {_said(value)}", listed, lambda mine=mine: mine
        yield f"another holds {_said(value)}", listed, lambda theirs=theirs: theirs
        odd = processes(process(value, OTHER))
        yield f"a PID is {_said(value)}", listed, lambda odd=odd: odd
    twice = processes(*processes(), process(os.getpid(), PROCESS - 1))
    yield "all processes twice", listed, lambda: twice
    yield "an entry without fields", listed, lambda: [object()]


def _said(value) -> str:
    return "something strange" if isinstance(value, Strange) else repr(value)
