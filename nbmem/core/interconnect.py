"""Transfer rates between a card and the host's memory."""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """A connection between a card and the host.

    Attributes:
        name: As its users know it.
        rate: Bytes a second that it moves in one direction in practice.
    """

    name: str
    rate: int


BY_CAPABILITY = (
    ((9, 0), Link("PCIe 5.0", 50 << 30)),
    ((8, 0), Link("PCIe 4.0", 25 << 30)),
    ((6, 0), Link("PCIe 3.0", 12 << 30)),
)
"""From a compute capability on: the cards' PCIe with 16 lanes; rates are an estimate, four fifths
of the line's. Pascal, Volta and Turing have 3.0, Ampere and Ada 4.0, Hopper and Blackwell 5.0
(NVIDIA's data sheets of P100, V100, T4, A100, L4, H100 and B200)."""

FAULTED = 0.43
"""Part of that rate that is left where pages come because a kernel missed them: on a GTX 1080 with
PCIe 3.0 a kernel that missed all of 2 GiB took 0.387 s, of which 0.167 s are the transfer.
https://github.com/parallelArchitect/pascal-um-benchmark/blob/2d3d2532dffce5ccfdf0878cab2254f67d214bc6/README.md
"""


def link_of(capability: tuple[int, ...] | None) -> Link | None:
    """Return the link of a card by its compute capability.

    The result is None where the capability is unknown, or below 6.0.
    """
    for least, link in BY_CAPABILITY:
        if capability is not None and capability >= least:
            return link
    return None
