"""Parts of the host's memory that overlap the categories.

A weight may be in shared memory and a library's code in the page cache. So these are no categories:
each is shown below the sum of which it is a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from nbmem.core.session.events import Columns, none_if_unknown

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineReadings(Columns):
    """The parts over time; NOT_KNOWN where the kernel does not report them.

    Attributes:
        t_ns: When, nanoseconds since the epoch.
        tensors: Bytes of the tensors in memory that other processes can map as well.
        files: Resident bytes of this process that are pages of files: code and mapped files.
        shared: Resident bytes of this process in shared memory.
        cache: Bytes of the machine's available memory that are page cache now.
    """

    t_ns: Ints
    tensors: Ints
    files: Ints
    shared: Ints
    cache: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineParts:
    """The parts at one moment, in bytes; None for an unknown figure.

    Attributes:
        tensors: Of the tensors: in memory that other processes can map as well.
        files: Of the process: pages of files.
        shared: Of the process: shared memory.
        cache: Of the available bytes: the page cache, which the kernel releases on demand.
    """

    tensors: int | None
    files: int | None
    shared: int | None
    cache: int | None

    @classmethod
    def of(cls, row: Sequence[int]) -> MachineParts:
        """Create the parts from figures in the order of PARTS.

        NOT_KNOWN becomes None.
        """
        return cls(**dict(zip(PARTS, map(none_if_unknown, row), strict=True)))

    def to_json(self) -> dict[str, int | None]:
        """Return the bytes by stable keys."""
        return {
            "tensors_shared": self.tensors,
            "process_files": self.files,
            "process_shared": self.shared,
            "available_page_cache": self.cache,
        }


PARTS = tuple(field.name for field in fields(MachineParts))
"""Their keys, in the order of a table's columns."""
