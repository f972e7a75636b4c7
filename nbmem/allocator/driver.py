"""Simulated CUDA drivers with addresses and a limited amount of memory."""

from __future__ import annotations

from typing import Protocol

SEGMENT_START = 0x7000_0000_0000
"""Where cudaMalloc begins; it does not overlap with addresses of a process's heap."""
RANGE_START = 0x4000_0000_0000
"""Where virtual ranges for expandable segments begin."""
RANGE_STEP = 1 << 40
CARD_STEP = 1 << 48
"""Distance between the addresses of two cards: they share an address space, as real ones do."""
_STEP = 2 << 20
_CHUNK = 32 << 20


class Driver(Protocol):
    """The driver interface that the allocator calls; sizes are in bytes."""

    @property
    def free_bytes(self) -> int:
        """Bytes of the card that are free."""
        ...

    def malloc(self, size: int) -> int | None:
        """Allocate `size` bytes; return the address, or None without room."""
        ...

    def free(self, addr: int, size: int) -> None:
        """Free memory that malloc returned."""
        ...

    def reserve(self, size: int) -> int:
        """Reserve a virtual range and return its address; no memory is used."""
        ...

    def release(self, addr: int, size: int) -> None:
        """Release a virtual range."""
        ...

    def map(self, addr: int, size: int) -> bool:
        """Map memory to a part of a virtual range; return False without room."""
        ...

    def unmap(self, addr: int, size: int) -> None:
        """Unmap memory from a part of a virtual range."""
        ...


class SimulatedDriver:
    """A driver with ascending addresses that are never reused.

    Memory is counted to the byte. A real driver may fail with memory left (other processes,
    physical fragmentation): not modelled.

    Attributes:
        total_bytes: What the card can give this process.
        used: Bytes handed out.
    """

    __slots__ = ("_next_range", "_next_segment", "total_bytes", "used")

    def __init__(self, total_bytes: int, *, number: int = 0) -> None:
        """Create the driver of one card.

        `number` is its ordinal where there are several.
        """
        self.total_bytes = total_bytes
        self.used = 0
        self._next_segment = SEGMENT_START + number * CARD_STEP
        self._next_range = RANGE_START + number * CARD_STEP

    @property
    def free_bytes(self) -> int:
        """Bytes of the card that are free."""
        return self.total_bytes - self.used

    def malloc(self, size: int) -> int | None:
        """Allocate `size` bytes; return the address, or None without room."""
        if self.used + size > self.total_bytes:
            return None
        self.used += size
        addr = self._next_segment
        self._next_segment += -(-size // _STEP) * _STEP
        return addr

    def free(self, addr: int, size: int) -> None:
        """Free memory that malloc returned."""
        del addr
        self.used -= size

    def reserve(self, size: int) -> int:
        """Reserve a virtual range and return its address; no memory is used."""
        addr = self._next_range
        self._next_range += -(-size // RANGE_STEP) * RANGE_STEP
        return addr

    def release(self, addr: int, size: int) -> None:
        """Release a virtual range."""

    def map(self, addr: int, size: int) -> bool:
        """Map memory to a part of a virtual range; return False without room."""
        del addr
        if self.used + size > self.total_bytes:
            return False
        self.used += size
        return True

    def unmap(self, addr: int, size: int) -> None:
        """Unmap memory from a part of a virtual range."""
        del addr
        self.used -= size


class DownwardDriver(SimulatedDriver):
    """A driver with descending addresses, as observed on a real card.

    Address space is taken in chunks of 32 MiB, each below the last. Smaller segments go into what
    larger ones leave of their chunks (nearly always so on the H100 of tests/recordings). It
    matters because up to torch 2.11 the allocator takes the lowest of equal blocks: the newest.
    With rising addresses the same requests took 68 MiB more in `resnet50_b40_sgdm_offload`.
    """

    __slots__ = ("_left", "_lowest")

    def __init__(self, total_bytes: int, *, number: int = 0) -> None:
        """Create the driver of one card.

        `number` is its ordinal where there are several.
        """
        super().__init__(total_bytes, number=number)
        self._lowest = SEGMENT_START + number * CARD_STEP
        self._left: dict[int, list[int]] = {}

    def malloc(self, size: int) -> int | None:
        """Allocate `size` bytes; return the address, or None without room."""
        if super().malloc(size) is None:
            return None
        size = -(-size // _STEP) * _STEP
        room = next((room for room in range(size, _CHUNK, _STEP) if self._left.get(room)), 0)
        if room:
            addr = self._left[room].pop()
        else:
            room = -(-size // _CHUNK) * _CHUNK
            addr = self._lowest = self._lowest - room
        if room > size:
            self._left.setdefault(room - size, []).append(addr + size)
        return addr
