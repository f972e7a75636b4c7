"""Transfer rates between a card and the host's memory."""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """A connection between a card and the host.

    Attributes:
        name: Its common name.
        rate: Bytes a second that it transfers in one direction in practice.
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
"""Fraction of that rate that remains if pages are transferred on a kernel's page faults. On a GTX
1080 with PCIe 3.0, a kernel that faulted on all of 2 GiB took 0.387 s. The transfer was 0.167 s of
that.
https://github.com/parallelArchitect/pascal-um-benchmark/blob/2d3d2532dffce5ccfdf0878cab2254f67d214bc6/README.md
"""


def link_of(capability: tuple[int, ...] | None) -> Link | None:
    """Return the link of a card by its compute capability.

    The result is None if the capability is unknown, or below 6.0.
    """
    for least, link in BY_CAPABILITY:
        if capability is not None and capability >= least:
            return link
    return None
