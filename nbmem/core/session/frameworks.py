"""Memory of other allocators in this process, over time and at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.events import Columns

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameworkReadings(Columns):
    """Memory of other allocators over time, one row for each change.

    Attributes:
        t_ns: When the card was read with it, nanoseconds since the epoch.
        owner: Index into the session's names: `cupy`.
        held: Bytes of the card that it holds from the driver, including free bytes of its pool.
        used: Bytes of these that are in use; NOT_KNOWN if it does not report them.
        managed: Bytes of managed memory beside them; whether they are on the card is unknown.
    """

    t_ns: Ints
    owner: Ints
    held: Ints
    used: Ints
    managed: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Memory of the card that one other framework holds at a moment.

    Attributes:
        name: Its key: `cupy`.
        held: Bytes that it holds from the driver.
        used: Bytes of these that are in use; None if it does not report them.
        managed: Bytes of managed memory beside them, on the card or not.
    """

    name: str
    held: int
    used: int | None
    managed: int = 0

    @property
    def cached(self) -> int:
        """Bytes that the framework holds without using them, as far as it reports."""
        return 0 if self.used is None else self.held - self.used

    @property
    def label(self) -> str:
        """The framework's display name."""
        return LABELS.get(self.name, self.name)


LABELS = {
    "cupy": "CuPy",
    "rmm": "RMM",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "numba": "Numba",
    "cuda_pool": "CUDA's default pool",
}
"""By the names in capture/frameworks; a file may have others."""
