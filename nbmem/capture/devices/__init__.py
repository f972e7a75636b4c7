"""Where torch's tensors may live besides an NVIDIA card, behind one protocol.

A kind of memory is one class, and an accelerator a line in `ACCELERATORS`. Of CUDA's cards (ROCm's
are torch.cuda's, too) torch's own allocator has a history that tells everything, see
torch_cuda.py. With another allocator they are among these kinds: nobody reads a history of them,
so their ledger is made of what was seen to live (tensors/storage_registry.py), and of what these
say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from nbmem.core.session.session import DeviceInfo


class DeviceReading(NamedTuple):
    """What a device says of itself at one moment; None for what it does not say.

    Attributes:
        allocated: Bytes in torch's live blocks.
        reserved: Bytes that torch's allocator holds.
        used: Bytes in use by anybody.
        process: Bytes that this process holds.
        files: Those of them that are pages of files: code, and what is mapped.
        shared: Those of them in shared memory.
        cache: Bytes beside the used ones that the page cache has and would give back.
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
        """What a recording of it cannot say, in a sentence or two."""

    def in_use(self, torch: Any) -> bool:
        """Whether the user's code has brought it up; asking must not bring it up."""

    def count(self, torch: Any) -> int:
        """How many there are."""

    def read(self, torch: Any, index: int, *, whole: bool) -> DeviceReading:
        """Read its counters.

        Args:
            torch: The user's torch.
            index: Which of them.
            whole: Ask also what takes longer than the few microseconds that a change of phase may.
        """

    def info(self, torch: Any, index: int) -> DeviceInfo:
        """Name and size."""
