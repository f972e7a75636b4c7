"""Split allocated bytes by category while a traced loop runs.

For the host, a process's resident bytes are split.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbmem.core.session.categories import OF_TRAINING, Category

if TYPE_CHECKING:
    from nbmem.capture.record.progress import LoopProgress
    from nbmem.core.session.host_memory import MachineParts
    from nbmem.frontends.sidebar.messages import Entry

REST = ("rest", "activations etc.")
REST_OF_HOST = ("rest", "activations, Python etc.")


def by_category(progress: LoopProgress, device: int, allocated: int) -> tuple[Entry, ...]:
    """Split a card's allocated bytes by what the trace knows.

    The rest comes last. Empty if nothing is known.

    Args:
        progress: The recorder's progress.
        device: The card's CUDA ordinal; below 0 for the host, as in the storage registry.
        allocated: Its allocated bytes, read after `progress`.
    """
    sums = {c: progress.known.get((device, c), 0) for c in OF_TRAINING}
    sums[Category.GRADIENTS] -= progress.freed.get(device, 0)
    return stack_categories(sums, allocated, REST if device >= 0 else REST_OF_HOST)


def stack_categories(
    known: Mapping[Category, int], allocated: int, rest: tuple[str, str]
) -> tuple[Entry, ...]:
    """Return the categories in the order to stack them, with the rest.

    Args:
        known: Bytes by category; inconsistent figures (negative, or above the total) are ignored.
        allocated: The total that is split.
        rest: Key and label of uncategorized bytes.
    """
    sums = {c: known.get(c, 0) for c in OF_TRAINING}
    gradients = sums.pop(Category.GRADIENTS)
    beside = allocated - sum(sums.values())
    # zero_grad() frees one after the other, and only its end is seen: limit to the bytes that
    # exist.
    sums[Category.GRADIENTS] = max(0, min(gradients, beside))
    left = beside - sums[Category.GRADIENTS]
    if left < 0 or left == allocated:  # read before a free, or nothing read
        return ()
    named = tuple((c.key, c.label, sums[c]) for c in OF_TRAINING if sums[c])
    return (*named, (*rest, left))


def parts_of(machine: MachineParts | None) -> tuple[Entry, ...]:
    """Return the parts of the host's memory with their labels.

    The labels are the report's. Empty for a card.
    """
    if machine is None:
        return ()
    # Not for a card: %load_ext waits for no report, and not for numpy.
    from nbmem.core.session.host_memory import PARTS
    from nbmem.views.rows import HOST_PARTS

    sizes = ((key, getattr(machine, key, None)) for key in PARTS)
    return tuple((key, HOST_PARTS[key][0], size) for key, size in sizes if size)
