"""One rank of a multi-process program: its place, its host and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from nbmem.core.errors import UsageError
from nbmem.core.session.tensor_names import printable_text

Ending = Literal["finished", "failed"]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Position of a rank in one dimension of a device mesh.

    Attributes:
        index: From 0.
        size: Ranks in that dimension.
    """

    index: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank, as its own process knew it.

    Attributes:
        number: Its rank in the world, from 0.
        world: Ranks in the world.
        local: Its rank among those of its host (torchrun's LOCAL_RANK); None if unknown.
        host: Name of its machine.
        pid: Its process there.
        run: Identifies the run among other runs of the program; None if unknown.
        card: Identifies its card on its host: the driver's UUID, or else the card's number; None if
            it used none.
        mesh: Its position in each dimension of its device mesh, by the dimension's name, outermost
            first; empty without a mesh.
        stands_for: Other ranks that it represents; empty for a real rank.
        host_bytes: Its machine's memory, or the limit of its container; None if unknown.
        own_peak: Highest bytes of its own in that memory, read once a second. These are bytes that
            the machine cannot drop, so without mapped files. None if not read.
        started_ns: When its recording began, nanoseconds since the epoch.
        ended_ns: When it ended; None if no end was written: it crashed, was killed, hangs or runs.
        ended: How it ended; None as for `ended_ns`.
    """

    number: int
    world: int
    local: int | None = None
    host: str
    pid: int
    run: str | None = None
    card: str | None = None
    mesh: Mapping[str, Coordinate] = field(default_factory=dict)
    stands_for: tuple[int, ...] = ()
    host_bytes: int | None = None
    own_peak: int | None = None
    started_ns: int
    ended_ns: int | None = None
    ended: Ending | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", printable_text(self.host))
        object.__setattr__(
            self, "mesh", {printable_text(name): at for name, at in self.mesh.items()}
        )
        for name in ("run", "card"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else printable_text(value))


def require_inside(rank: int, world: int) -> None:
    """Raise an error if a rank is outside of its world.

    Raises:
        UsageError: There is no rank with that number.
    """
    if not 0 <= rank < world:
        raise UsageError(
            f"Rank {rank} is not in a world of {world}: ranks count from 0 to {world - 1}."
        )


def as_one_world(ranks: Sequence[Rank]) -> list[Rank]:
    """Combine independent processes as the ranks of one world.

    Processes that are each a world of one are numbered by host and process ID. Ranks of larger
    worlds, and a single rank, are returned unchanged. A notebook's engines do not know each other
    unless one of them creates a process group.

    Returns:
        The ranks, in the order given.
    """
    if len(ranks) < 2 or any(rank.world > 1 for rank in ranks):
        return list(ranks)
    places = sorted((rank.host, rank.pid) for rank in ranks)
    return [
        replace(rank, number=places.index((rank.host, rank.pid)), world=len(ranks))
        for rank in ranks
    ]


def numbers_text(numbers: Sequence[int]) -> str:
    """Format rank numbers as a person writes them: `ranks 0, 2-7`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    ranges = ", ".join(_run_text(first, last) for first, last in runs)
    return f"rank{'s' * (len(numbers) != 1)} {ranges}"


def _run_text(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}, {last}" if last == first + 1 else f"{first}-{last}"
