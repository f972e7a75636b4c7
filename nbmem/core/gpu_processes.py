"""Processes on a card, with what a person knows them by."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStatus:
    """Status that nbmem in another kernel reports about itself.

    Attributes:
        cell: The cell that ran last or runs now: `In [12]`; None before the first.
        held: Bytes by category label that the last traced cell left on its fullest card, the
            largest first.
        allocated: Bytes in torch's live blocks on all cards.
        reserved: Bytes that torch holds from the driver.
    """

    cell: str | None
    held: tuple[tuple[str, int], ...]
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process on a card; unknown or hidden fields are None.

    Attributes:
        pid: Process ID from the driver.
        used: Bytes on this card; None if the driver hides them.
        user: Its owner.
        command: Its program and arguments, cut.
        notebook: Path of the notebook in whose kernel it runs.
        kernel: Jupyter's id of that kernel.
        busy: Whether that kernel runs a cell, according to its server.
        own: Whether it is this user's.
        gone: Whether there is no such process: it has ended, or a container hides it.
        status: The status that nbmem reports in it.
    """

    pid: int
    used: int | None
    user: str | None = None
    command: str | None = None
    notebook: str | None = None
    kernel: str | None = None
    busy: bool | None = None
    own: bool = False
    gone: bool = False
    status: KernelStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OccupiedCard:
    """A card and the processes on it.

    Attributes:
        index: NVML's index.
        name: The driver's name.
        total: Bytes, the host's if it shares its memory; None if unknown.
        used: Bytes in use by all processes and the driver; None with `total`.
        driver: Bytes that the driver reserves.
        mig: Whether it is divided into MIG slices.
        shared: Whether it uses the host's memory.
        wddm: Whether Windows manages its memory, and reports no process's bytes.
        neighbours: Its processes, the largest first.
    """

    index: int
    name: str
    total: int | None
    used: int | None
    driver: int = 0
    mig: bool = False
    shared: bool = False
    wddm: bool = False
    neighbours: tuple[GpuProcess, ...] = ()

    @property
    def unattributed(self) -> int:
        """Bytes in use on the card that belong to no listed process.

        The figure is 0 if the card shares the host's memory: most of that is not in use by the
        card.
        """
        if self.used is None or self.shared:
            return 0
        known = sum(one.used or 0 for one in self.neighbours)
        return max(0, self.used - self.driver - known)
