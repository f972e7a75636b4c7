"""Host memory of this process, and the names of other processes."""

from __future__ import annotations

import sys
from pathlib import Path, PurePath
from typing import NamedTuple

from nbmem.capture.validation import whole_bytes

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int | None:
    """Return this process's resident bytes; None if psutil cannot tell."""
    try:
        import psutil

        return whole_bytes(psutil.Process().memory_info().rss)
    except Exception:  # noqa: BLE001 - a missing or refused reading is a None, not a fault
        return None


def highest_resident_bytes() -> int | None:
    """Return the most bytes that were ever resident in this process.

    The kernel counts them. None on Windows.
    """
    if sys.platform == "win32":
        return None
    try:
        import resource
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1 << 10  # getrusage(2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def own_bytes() -> int | None:
    """Return resident bytes that are this process's own, or None.

    These cannot be dropped: resident bytes without mapped files. A checkpoint that several
    processes map counts for none of them. The system uses them to decide which process to kill when
    memory runs out. None if the system does not report them (not Linux).
    """
    parts = resident_parts()
    return None if parts is None else parts.anonymous + parts.shared


class ResidentParts(NamedTuple):
    """Resident bytes of this process, by the kind of their pages.

    Attributes:
        anonymous: Pages of no file: memory that it has allocated and written to.
        files: Pages of files: code and mapped files.
        shared: Pages of shared memory.
    """

    anonymous: int
    files: int
    shared: int


def resident_parts() -> ResidentParts | None:
    """Read resident bytes by kind of pages; None if not on Linux.

    https://docs.kernel.org/filesystems/proc.html (RssAnon, RssFile, RssShmem)
    """
    try:
        rows = (line.split() for line in _STATUS.read_bytes().splitlines())
        sizes = {row[0]: row[1] for row in rows if row and row[0].startswith(b"Rss")}
        return ResidentParts(*(int(sizes[name]) << 10 for name in _ROWS))
    except (OSError, LookupError, ValueError):
        return None


_ROWS = (b"RssAnon:", b"RssFile:", b"RssShmem:")


def process_name(pid: int) -> str:
    """Return a process's name for display.

    This is like `train.ipynb (python3, 4711)`, or `python3 (4711)` without a notebook.
    """
    name, notebook = program_name(pid), notebook_of(pid)
    if name is None:
        return f"process {pid}"
    return f"{name} ({pid})" if notebook is None else f"{notebook} ({name}, {pid})"


def program_name(pid: int) -> str | None:
    """Return the name of a process's program; None if not visible.

    It is not visible if it belongs to another user or container.
    """
    try:
        import psutil

        name = psutil.Process(pid).name()
    except Exception:  # noqa: BLE001 - as above
        return None
    return name if isinstance(name, str) and name else None


def notebook_of(pid: int) -> str | None:
    """Return the file name of the notebook that a process runs for.

    The process is its kernel, or a child of that. None if that is not visible.

    The Jupyter server passes each kernel its session's path at the start. So a notebook that was
    renamed later has its first name here. Only the process's own environment is read.
    https://github.com/jupyter-server/jupyter_server/blob/v2.21.1/jupyter_server/services/sessions/sessionmanager.py#L316
    """
    try:
        import psutil

        name = PurePath(psutil.Process(pid).environ().get("JPY_SESSION_NAME", "")).name
    except Exception:  # noqa: BLE001 - as above
        return None
    return name if name.endswith(".ipynb") else None
