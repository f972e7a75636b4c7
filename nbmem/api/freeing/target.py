"""An object that an action frees: its name, its cut and its release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbmem.capture.heap import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An object that can be freed.

    Attributes:
        what: What the user calls it: `checkpoint['model']`.
        cut: What the heap is without it.
        reached: The storages that it leads to, as (CUDA ordinal, address), held by others or not.
        release: Frees it; returns sentences about what else the user should know.
    """

    what: str
    cut: Cut
    reached: set[tuple[int, int]]
    release: Callable[[], list[str]]
