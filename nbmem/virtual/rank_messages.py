"""Messages between ranks that run at the same time, through files.

A virtual card has no peers, but a pipeline's stages agree on shapes before they begin. Ranks that
`nbmem run --ranks` starts share a folder. A rank that waits for one that was not started leaves a
marker file there to have it started. Values are any picklable objects.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import Any

from nbmem.core.errors import UsageError

FOLDER = "NBMEM_RANKS_FOLDER"
"""The environment's variable with the folder of a run; its owner alone may read and write there."""
_WANTED = "wanted-"
_PAUSE_S = 0.01
_ALONE = (
    "Rank {me} waits for what rank {peer} sends, and rank {peer} does not run here. "
    "`nbmem run SCRIPT --gpu NAME --ranks N` runs both."
)
_GONE = "Rank {me} waits for what rank {peer} sends, and rank {peer} has ended without sending it."
_DEADLOCK = "Rank {me} waits for what rank {peer} sends, and rank {peer} waits for rank {me}."
_counts: Counter[tuple[int, int]] = Counter()


def folder() -> Path | None:
    """Return the folder that ranks of this run share; None for one rank."""
    return Path(told) if (told := os.environ.get(FOLDER)) else None


def send(me: int, peer: int, value: Any) -> None:
    """Write a value for another rank; do nothing without a folder."""
    place = folder()
    if place is None:
        return
    _counts[me, peer] += 1
    _write(place / f"from-{me}-to-{peer}-{_counts[me, peer]}", pickle.dumps(value))


def receive(me: int, peer: int) -> Any:
    """Wait for a value from another rank and return it.

    Raises:
        UsageError: The other rank does not run, has ended, or waits for this one.
    """
    place = folder()
    if place is None:
        raise UsageError(_ALONE.format(me=me, peer=peer))
    _counts[peer, me] += 1
    message_file = place / f"from-{peer}-to-{me}-{_counts[peer, me]}"
    _write(wanted(place, peer), b"")
    _write(place / f"waits-{me}", message_file.name.encode())
    try:
        while not message_file.exists():
            gone, stuck = ended(place, peer).exists(), _is_deadlock(place, me, peer)
            time.sleep(_PAUSE_S)
            if (gone or stuck) and not message_file.exists():
                raise UsageError((_GONE if gone else _DEADLOCK).format(me=me, peer=peer))
        return pickle.loads(message_file.read_bytes())  # noqa: S301 - this program's own, as torch does
    finally:
        (place / f"waits-{me}").unlink(missing_ok=True)


def wanted(place: Path, rank: int) -> Path:
    """Return the path of the mark that some rank waits for this one."""
    return place / f"{_WANTED}{rank}"


def all_wanted(place: Path) -> list[int]:
    """Return the ranks that others wait for, from one directory listing."""
    names = (path.name for path in place.iterdir())
    return sorted(int(name.removeprefix(_WANTED)) for name in names if name.startswith(_WANTED))


def joined(place: Path, rank: int) -> Path:
    """Return the path of the mark that a rank made its process group."""
    return place / f"joined-{rank}"


def ended(place: Path, rank: int) -> Path:
    """Return the path of the mark that a rank has ended."""
    return place / f"ended-{rank}"


def _is_deadlock(place: Path, me: int, peer: int) -> bool:
    """Return whether two ranks wait for each other.

    That is so if the peer waits for a message that this rank has not sent.
    """
    try:
        awaited = (place / f"waits-{peer}").read_text("utf-8")
    except OSError:  # it is not there, or is being replaced
        return False
    return awaited.startswith(f"from-{me}-to-") and not (place / awaited).exists()


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, for readers that poll for its name."""
    part = path.with_name(f"part-{os.getpid()}-{path.name}")
    part.write_bytes(content)
    part.replace(path)
