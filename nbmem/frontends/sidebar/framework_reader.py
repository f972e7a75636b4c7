"""Read the memory of other frameworks in this process for the sidebar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.core.session.categories import Category

if TYPE_CHECKING:
    from nbmem.frontends.sidebar.messages import Entry


class FrameworkReader:
    """A reader of the frameworks that are loaded.

    Faults of a framework are reported by the notes of a trace.
    """

    def __init__(self) -> None:
        self._owners = FrameworkQueries(lambda _: None)

    def read(self, device: int, most: int | None) -> tuple[Entry, ...]:
        """Sum the bytes that other frameworks use, and those they cache.

        Args:
            device: CUDA ordinal.
            most: Bytes that they can hold together; None if unknown.
        """
        if most is None:
            return ()
        shares = self._owners.read_in_time(device)
        held, cached = sum(share.held for share in shares), sum(share.cached for share in shares)
        names = " and ".join(sorted(share.label for share in shares if share.held))
        if not held or held > most:
            return ()
        sizes = (
            (Category.FRAMEWORKS, "", held - cached),
            (Category.FRAMEWORKS_CACHED, ", cached", cached),
        )
        return tuple((c.key, f"{names}{what}", size) for c, what, size in sizes if size)
