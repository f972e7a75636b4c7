"""Host memory: resident in this process, and of machine or container."""

from __future__ import annotations

import os
import platform
import sys
import weakref
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.devices import DeviceReading
from nbmem.capture.devices.resident_memory import resident_bytes, resident_parts
from nbmem.core.runtime.clock import CLOCK

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
FRESH_NS = 1_000_000
"""How long a reading is reused."""


class Host:
    """The CPU's memory as a `Device`, read from the kernel.

    torch has no counters of it.

    Used are the bytes that are not available. Page cache that the kernel would release is free, as
    in `free`'s column `available`. In a container its limit replaces the machine's memory.
    """

    kind = "cpu"
    missing = (
        "torch keeps no history of the host's memory: what lived was looked at where phases "
        "begin and end, so what was born and died within one phase is in no category, and peaks "
        "are those of these moments."
    )

    def __init__(self) -> None:
        self._statm: _Statm | None = None
        self._last = 0, DeviceReading()

    def in_use(self, _torch: Any) -> bool:
        """Return True: every machine has host memory."""
        return True

    def count(self, _torch: Any) -> int:
        """Return 1, whatever torch calls the parts of host memory."""
        return 1

    def read(self, _torch: Any, _index: int, *, whole: bool) -> DeviceReading:
        """Read resident bytes of this process, in 2 us.

        With `whole`, also read their parts and the bytes in use by all processes, in 200 us.
        """
        read = self._resident()
        if not whole:
            return read
        parts = resident_parts()
        if parts is not None:
            read = read._replace(files=parts.files, shared=parts.shared)
        with suppress(Exception):
            import psutil

            machine = psutil.virtual_memory()
            available, cache = machine.available, max(0, machine.available - machine.free)
            box = _container()
            if box is not None and box.limit - box.used < available:
                available, cache = max(0, box.limit - box.used), box.cold
            used = max(0, total_bytes() - available)
            return read._replace(used=used, cache=min(cache, available))
        return read

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Return the processor's name and the bytes of memory.

        The bytes are the container's limit if there is one.
        """
        from nbmem.core.session.session import DeviceInfo

        return DeviceInfo(
            index=index,
            name=f"the host's memory ({_processor()})",
            total_bytes=total_bytes(),
            virtual=False,
            torch=str(torch.__version__),
            kind=self.kind,
        )

    def _resident(self) -> DeviceReading:
        """Return resident bytes that are at most `FRESH_NS` old.

        Until then the last reading is returned.
        """
        now = CLOCK.perf_counter_ns()
        when, last = self._last
        if now - when >= FRESH_NS or last.process is None:
            self._last = now, DeviceReading(process=self._read_statm())
        return self._last[1]

    def _read_statm(self) -> int | None:
        """Read the resident bytes of this process.

        The file stays open, because opening it takes most of the time. If it cannot be read, psutil
        is used.
        """
        if sys.platform != "linux":
            return resident_bytes()
        try:
            if self._statm is None or self._statm.process != os.getpid():  # not a child's
                self._statm = _Statm()
            return int(self._statm.read().split()[1]) * PAGESIZE
        except (OSError, ValueError, IndexError):
            return resident_bytes()


class _Statm:
    """An open `/proc/self/statm` of this process, closed when collected.

    It uses a descriptor and no file object, because Python would warn about an unclosed file.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._descriptor = os.open("/proc/self/statm", os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def read(self) -> bytes:
        """Return the current line of the file."""
        if sys.platform != "linux":
            return b""
        return os.pread(self._descriptor, 128, 0)


def total_bytes() -> int:
    """Return bytes of the machine's memory, or of a lower container limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    box = _container()
    return total if box is None else min(total, box.limit)


class _ControlGroup(NamedTuple):
    """The limit and usage of a control group.

    Attributes:
        limit: Bytes that it may use.
        used: Bytes that count against it and cannot be dropped.
        cold: Page cache that counts against it and would be dropped.
    """

    limit: int
    used: int
    cold: int


def _container() -> _ControlGroup | None:
    """Read the control group of this process; None without a limit.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    for limit, current, stat, cold in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        highest, used = _number(_CGROUP / limit), _number(_CGROUP / current)
        if highest is not None and used is not None and highest < _UNLIMITED:
            dropped = min(used, _row(_CGROUP / stat, cold) or 0)
            return _ControlGroup(highest, used - dropped, dropped)
    return None


def _number(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))  # "max" is no limit
    return None


def _row(path: Path, name: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return None


def _processor() -> str:
    """Return the processor's model name."""
    with suppress(OSError, UnicodeError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "CPU"
