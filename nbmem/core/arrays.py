"""Types of arrays, for annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    Codes = NDArray[np.uint8]
    """Members of an enumeration, by number."""
