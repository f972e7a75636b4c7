"""Read the allocator's history of a call on the virtual card."""

import torch


def allocations(call):
    """Return sizes that a call allocates and, negative, frees; its result."""
    entries, result = _record(call)
    signs = {"alloc": 1, "free_completed": -1}
    return [signs[e["action"]] * e["size"] for e in entries if e["action"] in signs], result


def allocation_sizes(call):
    """Return sizes that a call allocates and, negative, frees."""
    return allocations(call)[0]


def own_allocations(call):
    """Return sizes that a call allocates and, negative, frees of these."""
    entries, _ = _record(call)
    live, sizes = set(), []
    for entry in entries:
        if entry["action"] == "alloc":
            live.add(entry["addr"])
            sizes.append(entry["size"])
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            live.remove(entry["addr"])
            sizes.append(-entry["size"])
    return sizes


def requested_sizes(call):
    """Return the sizes that a call requests, in order; and its result."""
    entries, result = _record(call)
    return [entry["size"] for entry in entries if entry["action"] == "alloc"], result


def bytes_by_pool(key):
    """Return the sums of a figure of the segments (`total_size`) by pool."""
    sums = {}
    for segment in torch.cuda.memory_snapshot():
        pool = tuple(segment["segment_pool_id"])
        sums[pool] = sums.get(pool, 0) + segment[key]
    return sums


def _record(call):
    """Return a call's history entries and its result.

    The result lives until the history ends, so that its release is no entry.
    """
    memory = torch.cuda.memory
    memory._record_memory_history(enabled=None)
    memory._record_memory_history(max_entries=10_000, context=None)
    result = call()
    entries = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(enabled=None)
    return entries, result
