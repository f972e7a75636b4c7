"""Protocol of the devices whose allocator keeps no history.

A kind of memory is one class, and an accelerator an entry in `ACCELERATORS`. For CUDA devices (and
ROCm's, which are also torch.cuda's) torch's own allocator has a complete history, see
capture/torch_memory/allocator_history.py. If torch uses another allocator for
CUDA, its devices are read through this protocol, too. Their ledger is built from the observed live
storages (capture/tensors/storage_registry.py) and from these readings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo


class DeviceReading(NamedTuple):
    """A device's figures at one moment; None for any it does not report.

    Attributes:
        allocated: Bytes in torch's live blocks.
        reserved: Bytes that torch's allocator holds.
        used: Bytes in use by all processes.
        process: Bytes that this process holds.
        files: Bytes of these that are pages of files: code and mapped files.
        shared: Bytes of these in shared memory.
        cache: Bytes beside the used ones that are releasable page cache.
    """

    allocated: int | None = None
    reserved: int | None = None
    used: int | None = None
    process: int | None = None
    files: int | None = None
    shared: int | None = None
    cache: int | None = None


class Device(Protocol):
    """One kind of memory.

    Attributes:
        kind: torch's name for it, `torch.device.type`.
    """

    kind: str

    @property
    def missing(self) -> str:
        """The limits of a recording of the device, in a sentence or two."""

    def in_use(self, torch: Any) -> bool:
        """Return True if the user's code has initialized the device.

        This must not initialize it.
        """

    def count(self, torch: Any) -> int:
        """Return the number of devices."""

    def read(self, torch: Any, index: int, *, whole: bool) -> DeviceReading:
        """Read a device's counters.

        Args:
            torch: The user's torch.
            index: Index of the device.
            whole: Also read figures that take longer than the few microseconds of a phase change.
        """

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Return the name and size of a device."""
