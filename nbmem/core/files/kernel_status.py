"""Status file by which a kernel reports its memory to `nbmem gpus`.

The file is small, belongs to the user and is removed when the kernel ends. It is in a folder that
only this user can access. The file is replaced as a whole, and no other user may read it. A file is
ignored if its process has ended, or if another process has its ID now.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from nbmem.core.gpu_processes import KernelStatus
from nbmem.core.session.tensor_names import printable_text

MAX_BYTES = 64 * 1024
"""Larger files were not written by nbmem."""
_MAX_INTEGER = 1 << 62
_SAME_S = 2.0
"""Accepted difference between two clocks for a process's start time."""


def status_folder() -> Path | None:
    """Return the status folder; None if other users could access it.

    It is created if it is missing.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    place = Path(runtime or tempfile.gettempdir()) / ("nbmem" if runtime else f"nbmem-{user}")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
    except OSError:
        return None
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    closed = sys.platform == "win32" or not found.st_mode & 0o077
    return place if mine and closed and place.is_dir() and not place.is_symlink() else None


def write_status(status: KernelStatus, *, began: float) -> None:
    """Write this process's status file, if that is possible.

    Args:
        status: The status.
        began: When the process began, seconds since the epoch.
    """
    place = status_folder()
    if place is None:
        return
    form = {
        "pid": os.getpid(),
        "began": began,
        "cell": status.cell,
        "held": status.held,
        "allocated": status.allocated,
        "reserved": status.reserved,
    }
    partial = place / f".{os.getpid()}.part"
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(form, file)
        partial.replace(place / f"{os.getpid()}.json")


def remove_status() -> None:
    """Remove this process's status file."""
    place = status_folder()
    if place is not None:
        with contextlib.suppress(OSError):
            (place / f"{os.getpid()}.json").unlink(missing_ok=True)


def read_status(pid: int, *, began: float) -> KernelStatus | None:
    """Read the status of another process of this user.

    The result is None where there is no status that can be read.

    Args:
        pid: The process.
        began: When it began, seconds since the epoch; detects a reused process ID.
    """
    place = status_folder()
    if place is None:
        return None
    try:
        with (place / f"{pid}.json").open("rb") as file:
            raw = json.loads(file.read(MAX_BYTES))
        same = raw["pid"] == pid and abs(float(raw["began"]) - began) <= _SAME_S
        return _status_of(raw) if same else None
    except Exception:  # noqa: BLE001 - any file content
        return None


def _status_of(raw: dict[str, Any]) -> KernelStatus:
    cell = raw["cell"]
    return KernelStatus(
        cell=None if cell is None else printable_text(str(cell)),
        held=tuple((printable_text(str(name)), _bytes(size)) for name, size in raw["held"][:100]),
        allocated=_bytes(raw["allocated"]),
        reserved=_bytes(raw["reserved"]),
    )


def _bytes(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_INTEGER:
        raise ValueError(value)
    return value
