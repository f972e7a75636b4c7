"""Advise how another framework can give unused memory to torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nbmem.core.units import format_bytes
from nbmem.report.model import Command, Finding

if TYPE_CHECKING:
    from nbmem.core.session.frameworks import Share

FREE = Command(name="free", arguments=("frameworks",))
GIVES_BACK = {
    "cupy": "import cupy\n\ncupy.get_default_memory_pool().free_all_blocks()   # what is not used",
}
"""Call that releases an owner's unused bytes at once, for owners with such a call."""
NO_PREALLOCATION = (
    'import os\n\nos.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"   # before jax is imported'
)
GROWTH = (
    "import tensorflow as tf\n\n"
    'for gpu in tf.config.list_physical_devices("GPU"):   # before its first operation\n'
    "    tf.config.experimental.set_memory_growth(gpu, True)"
)


@dataclass(frozen=True, slots=True)
class _FrameworkAdvice:
    """Advice that frees a framework's unused bytes: rule, title and code."""

    rule: str
    title: str
    code: str
    command: Command | None


_WAYS = {
    name: _FrameworkAdvice(
        "framework_cache", "Let {}'s pool give back {} that it does not use", code, FREE
    )
    for name, code in GIVES_BACK.items()
} | {
    "jax": _FrameworkAdvice(
        "preallocated",
        "Let {} not preallocate: {} of its pool are not used",
        NO_PREALLOCATION,
        None,
    )
}


def releasable_bytes(share: Share) -> int:
    """Return the unused bytes that a framework could give up.

    Zero if no such call is known.
    """
    return share.cached if share.name in _WAYS else 0


def framework_finding(share: Share, ground: Literal["simulated", "estimated"]) -> Finding:
    """Build the finding that lets a framework give up unused bytes.

    Call it only for a share that could release some memory.

    Args:
        share: The framework's share.
        ground: Evidence that the request then fits.
    """
    way, size = _WAYS[share.name], format_bytes(share.cached)
    return Finding(
        rule=way.rule,
        title=way.title.format(share.label, size),
        evidence=f"{share.label} holds {format_bytes(share.held)} of the card and uses "
        f"{format_bytes(share.held - share.cached)} of it; with the rest free the request is "
        "served.",
        low=share.cached,
        high=share.cached,
        ground=ground,
        code=way.code,
        command=way.command,
    )


def other_frameworks_text(shares: Sequence[Share]) -> str:
    """Describe memory that other frameworks hold, or return an empty text.

    A text that is not empty begins with a blank.
    """
    listed = " and ".join(
        f"{share.label} {format_bytes(share.held)}"
        + (f" ({format_bytes(share.cached)} of it unused)" if share.cached else "")
        for share in shares
        if share.held
    )
    return f" Beside torch, this process holds memory of the card by {listed}." if listed else ""
