"""The host's memory of this process, and what the processes beside it are."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import NamedTuple

from nbmem.capture.validation import whole_bytes

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int | None:
    """Bytes of this process in the host's memory; None where psutil cannot say."""
    try:
        import psutil

        return whole_bytes(psutil.Process().memory_info().rss)
    except Exception:  # noqa: BLE001 - a missing or refused reading is a None, not a fault
        return None


def own_bytes() -> int | None:
    """Bytes of the host's memory that are this process's own and cannot be dropped.

    Resident without mapped files, so a checkpoint that several processes map counts for none. What
    the system looks at when it kills for want of memory. None where the system does not say (it
    is no Linux).
    """
    parts = resident_parts()
    return None if parts is None else parts.anonymous + parts.shared


class ResidentParts(NamedTuple):
    """What this process's resident bytes are of.

    Attributes:
        anonymous: Pages of no file: what it has allocated and written to.
        files: Pages of files: code, and what is mapped.
        shared: Pages of shared memory.
    """

    anonymous: int
    files: int
    shared: int


def resident_parts() -> ResidentParts | None:
    """What this process's resident bytes are of: Linux says so; None elsewhere.

    https://docs.kernel.org/filesystems/proc.html (RssAnon, RssFile, RssShmem)
    """
    try:
        rows = (line.split() for line in _STATUS.read_bytes().splitlines())
        said = {row[0]: row[1] for row in rows if row and row[0].startswith(b"Rss")}
        return ResidentParts(*(int(said[name]) << 10 for name in _ROWS))
    except (OSError, LookupError, ValueError):
        return None


_ROWS = (b"RssAnon:", b"RssFile:", b"RssShmem:")


def process_name(pid: int) -> str:
    """Name of a process for a person: `train.ipynb (python3, 4711)`, `python3 (4711)`."""
    name, notebook = program_name(pid), notebook_of(pid)
    if name is None:
        return f"process {pid}"
    return f"{name} ({pid})" if notebook is None else f"{notebook} ({name}, {pid})"


def program_name(pid: int) -> str | None:
    """Name of a process's program; None if it is another user's or another container's."""
    try:
        import psutil

        name = psutil.Process(pid).name()
    except Exception:  # noqa: BLE001 - as above
        return None
    return name if isinstance(name, str) and name else None


def notebook_of(pid: int) -> str | None:
    """File name of the notebook in whose kernel (or below it) a process runs, if that is visible.

    The Jupyter server tells each kernel its session's path when it starts it, so a notebook that
    was renamed later has its first name here. Nobody is asked but the process's own environment.
    https://github.com/jupyter-server/jupyter_server/blob/v2.21.1/jupyter_server/services/sessions/sessionmanager.py#L316
    """
    try:
        import psutil

        name = PurePath(psutil.Process(pid).environ().get("JPY_SESSION_NAME", "")).name
    except Exception:  # noqa: BLE001 - as above
        return None
    return name if name.endswith(".ipynb") else None
