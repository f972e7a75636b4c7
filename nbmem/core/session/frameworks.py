"""Memory of other allocators in this process, over time and at a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmem.core.session.events import Columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameworkReadings(Columns):
    """Memory of other allocators over time, one row for each change.

    Attributes:
        t_ns: When, nanoseconds since the epoch; that of the card's reading beside it.
        owner: Index into the session's names: `cupy`.
        held: Bytes of the card that it holds from the driver, its pool with what is free in it.
        used: Those of them that are in use; NOT_KNOWN where it does not say.
        managed: Bytes of managed memory beside them; on the card or not, nobody says.
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
        used: Those of them that are in use; None where it does not say.
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
"""By the keys of probes/owners; a file may have others."""
