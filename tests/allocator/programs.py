"""The programs that released allocators ran, and how to run them."""

import json
import lzma
from pathlib import Path

from nbmem.allocator.caching import CachingAllocator
from nbmem.allocator.heap import AllocatorOOM
from nbmem.core.session.events import Events

RECORDINGS = Path(__file__).parents[1] / "recordings"
GIVEN_BACK = ("free_requested", "free_completed", "segment_free", "segment_unmap")


def golden(release):
    """Return a released allocator's programs, with its results."""
    path = RECORDINGS / "golden" / f"torch_{release}.json.xz"
    return json.loads(lzma.open(path).read())["programs"]


class Runner:
    """Runs the operations of a golden program, one at a time."""

    def __init__(self, total, release):
        self.trace = []
        self.allocator = CachingAllocator(total_bytes=total, release=release, on_event=self._note)
        self._addresses = {}

    def _note(self, action, addr, size, stream):
        self.trace.append([action.name.lower(), addr, size, stream])

    def step(self, line):  # noqa: C901 - one case for each operation
        """Do one operation; return the address, "OOM" or None."""
        name, *rest = line.split(" ")
        allocator, addresses = self.allocator, self._addresses
        match name:
            case "A":
                try:
                    addresses[rest[0]] = allocator.malloc(int(rest[1]), int(rest[2]))
                except AllocatorOOM:
                    return "OOM"
                return addresses[rest[0]]
            case "F" if rest[0] in addresses:
                allocator.free(addresses.pop(rest[0]))
            case "R" if rest[0] in addresses:
                allocator.record_stream(addresses[rest[0]], int(rest[1]))
            case "C":
                allocator.complete_streams()
            case "E":
                allocator.empty_cache()
            case "P":
                allocator.reset_peak_stats()
            case "S":
                allocator.set_settings(rest[0])
            case "M":
                allocator.set_memory_fraction(float(rest[0]))
            case "BP":
                allocator.begin_pool(int(rest[1]))
            case "EP":
                allocator.end_pool(int(rest[1]))
            case "RP":
                allocator.release_pool(int(rest[1]))
        return None

    def row(self, returned):
        """Return the counters in the order of a golden program's columns."""
        stats = self.allocator.memory_stats()

        def value(name, field="current"):
            return stats[name]["all"][field]

        return [
            returned,
            value("allocated_bytes"),
            value("active_bytes"),
            value("requested_bytes"),
            value("reserved_bytes"),
            value("inactive_split_bytes"),
            value("segment"),
            stats["num_alloc_retries"],
            stats["num_ooms"],
            value("allocated_bytes", "peak"),
            value("reserved_bytes", "peak"),
        ]


def without_order_of_frees(trace):
    """Sort each run of frees, whose order torch leaves to a hash map."""
    found, run = [], []
    for entry in trace:
        if entry[0] in GIVEN_BACK:
            run.append(tuple(entry))
        else:
            found += [*sorted(run), tuple(entry)]
            run = []
    return [*found, *sorted(run)]


def stats_of(allocator, *names):
    """Current values of some counters over both pools."""
    stats = allocator.memory_stats()
    return tuple(stats[name]["all"]["current"] for name in names)


def events_of(rows):
    """Recorded (action, address, size, stream) as columns."""
    return Events.from_rows((*row, t_ns, -1) for t_ns, row in enumerate(rows))
