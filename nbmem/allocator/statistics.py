"""The allocator's counters, as torch.cuda.memory_stats reports them."""

from __future__ import annotations

from typing import Any


class Counter:
    """A rarely changed counter with its peak and its sums."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0
        self.allocated = 0
        self.freed = 0

    def add(self, amount: int) -> None:
        """Increase the counter, and raise its peak."""
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def remove(self, amount: int) -> None:
        """Decrease the counter."""
        self.current -= amount
        self.freed += amount

    def to_dict(self) -> dict[str, int]:
        """Return the figures nested as in torch."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class CounterByPool:
    """A rarely changed counter for both pools and for their sum."""

    __slots__ = ("all", "large", "small")

    def __init__(self) -> None:
        self.all = Counter()
        self.small = Counter()
        self.large = Counter()

    def add(self, amount: int, *, small: bool) -> None:
        """Increase the counter of one pool and the sum."""
        self.all.add(amount)
        (self.small if small else self.large).add(amount)

    def remove(self, amount: int, *, small: bool) -> None:
        """Decrease the counter of one pool and the sum."""
        self.all.remove(amount)
        (self.small if small else self.large).remove(amount)

    def views(self) -> tuple[Counter, Counter, Counter]:
        """Return the counters of the sum, the small and the large pool."""
        return self.all, self.small, self.large

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the figures nested as in torch."""
        return {
            "all": self.all.to_dict(),
            "small_pool": self.small.to_dict(),
            "large_pool": self.large.to_dict(),
        }


BUSY = (
    ("allocation", "count_up", "count_down", "count_peak"),
    ("allocated_bytes", "bytes_up", "bytes_down", "bytes_peak"),
    ("active", "count_up", "actives_down", "actives_peak"),
    ("active_bytes", "bytes_up", "active_down", "active_peak"),
    ("requested_bytes", "requested_up", "requested_down", "requested_peak"),
    ("inactive_split", "pieces_up", "pieces_down", "pieces_peak"),
    ("inactive_split_bytes", "split_up", "split_down", "split_peak"),
)
"""Torch's name of a counter that changes at each operation, and PoolCounters' fields behind it."""


class Peaks:
    """Highest values since the last reset.

    Active peaks are not updated without pending blocks: they equal the allocated ones.
    """

    __slots__ = (
        "active_peak",
        "actives_peak",
        "bytes_peak",
        "count_peak",
        "pieces_peak",
        "requested_peak",
        "split_peak",
    )

    def __init__(self) -> None:
        self.bytes_peak = 0
        self.count_peak = 0
        self.active_peak = 0
        self.actives_peak = 0
        self.requested_peak = 0
        self.split_peak = 0
        self.pieces_peak = 0


class PoolCounters(Peaks):
    """Counters of the small or large pools that change at each operation.

    Each counter is two sums, up and down. The current value is their difference, and torch reports
    the sums, too. A free then updates no peak.

    Attributes:
        pending: Bytes of blocks that are freed but in use by another stream.
        pendings: How many such blocks.
    """

    __slots__ = (
        "bytes_down",
        "bytes_up",
        "count_down",
        "count_up",
        "marks",
        "other",
        "pending",
        "pendings",
        "pieces_down",
        "pieces_up",
        "requested_down",
        "requested_up",
        "split_down",
        "split_up",
    )

    def __init__(self) -> None:
        super().__init__()
        self.bytes_up = self.bytes_down = 0
        self.count_up = self.count_down = 0
        self.requested_up = self.requested_down = 0
        self.split_up = self.split_down = 0
        self.pieces_up = self.pieces_down = 0
        self.pending = self.pendings = 0
        self.other: PoolCounters
        self.marks: dict[str, int] = {}

    @property
    def active_down(self) -> int:
        """Bytes that have become free: a pending block has not."""
        return self.bytes_down - self.pending

    @property
    def actives_down(self) -> int:
        """Blocks that have become free."""
        return self.count_down - self.pendings


class Statistics:
    """All counters of one device.

    Attributes:
        small: Busy counters of the small pools.
        large: Busy counters of the large pools.
        total: Peaks of their sums.
        pending_seen: Whether a block was ever pending; only then are active peaks separate.
    """

    def __init__(self) -> None:
        self.small = PoolCounters()
        self.large = PoolCounters()
        self.small.other, self.large.other = self.large, self.small
        self.total = Peaks()
        self.pending_seen = False
        self.reserved = CounterByPool()
        self.segments = CounterByPool()
        self.oversize_allocations = Counter()
        self.oversize_segments = Counter()
        self.num_alloc_retries = 0
        self.num_ooms = 0
        self.num_oom_rejections = 0
        self.num_sync_all_streams = 0
        self.num_device_alloc = 0
        self.num_device_free = 0

    def value(self, up: str, down: str) -> int:
        """Return the current value of a busy counter over both pools."""
        small, large = self.small, self.large
        ups = getattr(small, up) + getattr(large, up)
        return int(ups - getattr(small, down) - getattr(large, down))

    def note_pending(self) -> None:
        """Begin to track active peaks separately from allocated ones."""
        if not self.pending_seen:
            self.pending_seen = True
            for peaks in (self.small, self.large, self.total):
                peaks.active_peak = peaks.bytes_peak
                peaks.actives_peak = peaks.count_peak

    def raise_active_peaks(self, side: PoolCounters) -> None:
        """Raise the active peaks after an allocation.

        This is needed only while they are tracked separately.
        """
        for peaks, active, actives in (
            (side, side.bytes_up - side.active_down, side.count_up - side.actives_down),
            (
                self.total,
                self.value("bytes_up", "active_down"),
                self.value("count_up", "actives_down"),
            ),
        ):
            peaks.active_peak = max(peaks.active_peak, active)
            peaks.actives_peak = max(peaks.actives_peak, actives)

    def _rare(self) -> list[Counter]:
        found = [self.oversize_allocations, self.oversize_segments]
        return [*found, *self.reserved.views(), *self.segments.views()]

    def reset_peaks(self) -> None:
        """Set every peak to the current value."""
        for _, up, down, peak in BUSY:
            setattr(self.total, peak, self.value(up, down))
            for side in (self.small, self.large):
                setattr(side, peak, getattr(side, up) - getattr(side, down))
        self.pending_seen = bool(self.small.pendings or self.large.pendings)
        for counter in self._rare():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """Restart the sums and the scalar counters at 0."""
        for side in (self.small, self.large):
            for _, up, down, _peak in BUSY:
                side.marks[up] = getattr(side, up)
                side.marks[down] = getattr(side, down)
        for counter in self._rare():
            counter.allocated = counter.freed = 0
        self.num_alloc_retries = self.num_ooms = self.num_oom_rejections = 0
        self.num_sync_all_streams = self.num_device_alloc = self.num_device_free = 0

    def _busy(self, up: str, down: str, peak: str) -> dict[str, dict[str, int]]:
        if not self.pending_seen:
            peak = {"active_peak": "bytes_peak", "actives_peak": "count_peak"}.get(peak, peak)
        views = {}
        for name, side in (("small_pool", self.small), ("large_pool", self.large)):
            ups, downs = getattr(side, up), getattr(side, down)
            views[name] = {
                "current": ups - downs,
                "peak": getattr(side, peak),
                "allocated": ups - side.marks.get(up, 0),
                "freed": downs - side.marks.get(down, 0),
            }
        small, large = views["small_pool"], views["large_pool"]
        total = {field: small[field] + large[field] for field in small}
        total["peak"] = getattr(self.total, peak)
        return {"all": total, **views}

    def to_dict(self, *, max_split_size: int | None, rejects: bool) -> dict[str, Any]:
        """Return the counters as torch._C._cuda_memoryStats does.

        Args:
            max_split_size: In bytes; None is written as torch does, -1.
            rejects: Whether this release counts rejections.
        """
        scalars = ["num_alloc_retries", "num_ooms", "num_sync_all_streams"]
        scalars += ["num_device_alloc", "num_device_free"]
        scalars += ["num_oom_rejections"] if rejects else []
        return {
            **{name: getattr(self, name) for name in scalars},
            "max_split_size": -1 if max_split_size is None else max_split_size,
            **{name: self._busy(up, down, peak) for name, up, down, peak in BUSY},
            "segment": self.segments.to_dict(),
            "reserved_bytes": self.reserved.to_dict(),
            "oversize_allocations": self.oversize_allocations.to_dict(),
            "oversize_segments": self.oversize_segments.to_dict(),
        }
