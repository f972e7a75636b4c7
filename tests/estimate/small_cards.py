"""Cards with so little memory that a search takes few runs."""

import dataclasses

from nbmem import virtual
from nbmem.core.units import MIB


def small_card(mib):
    """Return a T4 with so many MiB."""
    card = virtual.find_card("T4")
    return dataclasses.replace(card, total_bytes=mib * MIB, nvml_total=mib * MIB)
