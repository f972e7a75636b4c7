"""Read the allocator's settings from untrusted data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbmem.core.session.tensor_names import printable_text

_LAST_NUMBER = 1 << 64
_MAX_SETTINGS = 100
_LONGEST = 600
"""Characters of PYTORCH_CUDA_ALLOC_CONF: errors quote all of it."""
_SETTINGS: dict[str, tuple[type, ...]] = {
    "PYTORCH_CUDA_ALLOC_CONF": (str,),
    "max_split_size": (int,),
    "garbage_collection_threshold": (int, float),
    "expandable_segments": (bool, int),
    "roundup_power2_divisions": (dict,),
}
"""Settings that are read, by their types in torch; others are retained and not read."""
_DIVISIONS = {0, *(1 << bits for bits in range(7))}


def plain_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the valid allocator settings.

    Values are texts and numbers, and the divisions, which are a dict of numbers.

    A setting on which the allocator's rules rely is omitted if it has another type.
    """
    found: dict[str, Any] = {}
    for key, value in list(raw.items())[:_MAX_SETTINGS]:
        wanted = _SETTINGS.get(key) if type(key) is str else ()
        if wanted is not None and type(value) not in wanted:
            continue
        if type(value) is dict:
            found[printable_text(key)] = {
                bits: number
                for bits, number in list(value.items())[:_MAX_SETTINGS]
                if type(bits) is str and type(number) is int and number in _DIVISIONS
            }
        elif type(value) is str:
            found[printable_text(key)] = printable_text(value, _LONGEST)
        elif type(value) in (bool, type(None)) or (
            type(value) in (int, float) and -_LAST_NUMBER <= value <= _LAST_NUMBER
        ):
            found[printable_text(key)] = value
    return found
