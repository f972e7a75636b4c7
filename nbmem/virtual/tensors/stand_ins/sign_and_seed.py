"""Record the sign and the seed of unknown floats of a storage."""

from __future__ import annotations

from typing import NamedTuple


class SignAndSeed(NamedTuple):
    """Sign and seed of a storage's unknown floats.

    Attributes:
        seed: The seed that makes them differ from those of other storages.
        signed: Whether some are negative.
    """

    seed: int
    signed: bool


POSITIVE = SignAndSeed(0, signed=False)
SIGNED = SignAndSeed(0, signed=True)
