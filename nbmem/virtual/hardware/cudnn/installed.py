"""The installed cuDNN, and whether a virtual card can ask it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.virtual.hardware.cudnn import client

if TYPE_CHECKING:
    from pathlib import Path

_LEAST = (9, 8)
"""The release since which cuDNN chooses for a card that is only described."""
_RULES = "nbmem's rules choose a virtual card's convolution kernels"


def sentence() -> str:
    """Say which cuDNN chooses the kernels of convolutions on a virtual card."""
    path = client.library_path()
    if path is None:
        return f"cuDNN is not installed: {_RULES}."
    release = _release(path)
    name = f"cuDNN {release}".strip()
    if release and tuple(map(int, release.split(".")[:2])) < _LEAST:
        return f"{name} cannot be asked without a card, which 9.8 and newer can: {_RULES}."
    chosen = f"{name} chooses a virtual card's convolution kernels ({path})"
    if any(path.parents[2].glob("*/lib/libcublasLt.so.*")):
        return f"{chosen}."
    return f"{chosen}. cuBLASLt is not beside it, so kernels that are products are left out."


def _release(path: Path) -> str:
    """Return the release of a library's package; "" without its record."""
    found = sorted(path.parents[3].glob("nvidia_cudnn_cu*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else ""
