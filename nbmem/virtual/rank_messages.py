"""What ranks that run at the same time tell each other: objects, and small numbers, by files.

A virtual card has no peers, but a pipeline's stages agree on shapes before they begin. Ranks that
`nbmem run --ranks` starts share a folder; who waits for a rank that nobody has started asks for it.
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
_CIRCLE = "Rank {me} waits for what rank {peer} sends, and rank {peer} waits for rank {me}."
_counts: Counter[tuple[int, int]] = Counter()


def folder() -> Path | None:
    """Where ranks of this run meet; None where this one runs alone."""
    return Path(told) if (told := os.environ.get(FOLDER)) else None


def send(me: int, peer: int, value: Any) -> None:
    """Leave something for another rank; nothing happens without a folder."""
    place = folder()
    if place is None:
        return
    _counts[me, peer] += 1
    _write(place / f"from-{me}-to-{peer}-{_counts[me, peer]}", pickle.dumps(value))


def receive(me: int, peer: int) -> Any:
    """Wait for what another rank sends.

    Raises:
        UsageError: It does not run, has ended, or waits for this one.
    """
    place = folder()
    if place is None:
        raise UsageError(_ALONE.format(me=me, peer=peer))
    _counts[peer, me] += 1
    letter = place / f"from-{peer}-to-{me}-{_counts[peer, me]}"
    _write(wanted(place, peer), b"")
    _write(place / f"waits-{me}", letter.name.encode())
    try:
        while not letter.exists():
            gone, stuck = ended(place, peer).exists(), _in_vain(place, me, peer)
            time.sleep(_PAUSE_S)
            if (gone or stuck) and not letter.exists():
                raise UsageError((_GONE if gone else _CIRCLE).format(me=me, peer=peer))
        return pickle.loads(letter.read_bytes())  # noqa: S301 - this program's own, as torch does
    finally:
        (place / f"waits-{me}").unlink(missing_ok=True)


def wanted(place: Path, rank: int) -> Path:
    """The mark that somebody waits for a rank."""
    return place / f"{_WANTED}{rank}"


def all_wanted(place: Path) -> list[int]:
    """The ranks that somebody waits for: one look at the folder, however large the world is."""
    names = (path.name for path in place.iterdir())
    return sorted(int(name.removeprefix(_WANTED)) for name in names if name.startswith(_WANTED))


def joined(place: Path, rank: int) -> Path:
    """The mark that a rank's program has made its process group."""
    return place / f"joined-{rank}"


def ended(place: Path, rank: int) -> Path:
    """The mark that a rank has ended."""
    return place / f"ended-{rank}"


def _in_vain(place: Path, me: int, peer: int) -> bool:
    """Whether another rank waits for what this one, which waits for it, has not sent."""
    try:
        awaited = (place / f"waits-{peer}").read_text("utf-8")
    except OSError:  # it is not there, or is being replaced
        return False
    return awaited.startswith(f"from-{me}-to-") and not (place / awaited).exists()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: who waits reads as soon as the name is there."""
    part = path.with_name(f"part-{os.getpid()}-{path.name}")
    part.write_bytes(content)
    part.replace(path)
