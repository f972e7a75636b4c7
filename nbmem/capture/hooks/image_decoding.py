"""Read what a VAE of diffusers decodes while a request of it fails."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import FrameType
from typing import Any

from nbmem.capture.interpreter.object_members import attributes_of, name_of
from nbmem.capture.tensors.modules import is_module, is_tensor
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.oom import ImageDecoding

_FILE = "autoencoder_kl.py"
_DECODE, _CLASS = "decode", "AutoencoderKL"
_LATENT_DIMENSIONS = 4
_COPIES = 4
"""Tensors of the largest size that its last blocks hold at once, for any size of an image: 2,048
bytes a pixel of 16 bits where the last but one block has 256 channels (diffusers 0.42)."""


def image_decoding(
    frames: Iterable[FrameType], namespace: Mapping[str, Any]
) -> ImageDecoding | None:
    """Return what a VAE of diffusers decodes; None outside of one.

    Args:
        frames: The frames of the request, innermost first. Only diffusers' own are read.
        namespace: The notebook's names, to name the VAE by.
    """
    found = None
    for frame in frames:
        code = frame.f_code
        if code.co_name == _DECODE and PurePath(code.co_filename).name == _FILE:
            found = frame
            break
    if found is None:
        return None
    vae, latents = found.f_locals.get("self"), found.f_locals.get("z")
    own = attributes_of(vae) or {}
    torch: Any = loaded_torch()
    if not is_module(vae) or name_of(type(vae)) != _CLASS or not is_tensor(latents):
        return None
    shape = tuple(torch.Tensor.shape.__get__(latents))
    channels, tile = _channels(own), own.get("tile_sample_min_size")
    if len(shape) != _LATENT_DIMENSIONS or len(channels) < _COPIES // 2 or type(tile) is not int:
        return None
    scale = 2 ** (len(channels) - 1)
    return ImageDecoding(
        name=_name(vae, namespace),
        images=int(shape[0]),
        pixels=int(shape[2]) * int(shape[3]) * scale**2,
        tile=tile**2,
        pixel_bytes=_COPIES * channels[1] * int(torch.Tensor.element_size(latents)),
        sliced=own.get("use_slicing") is True,
        tiled=own.get("use_tiling") is True,
    )


def _channels(own: Mapping[str, Any]) -> list[int]:
    """Return the channels of the decoder's blocks, from its configuration."""
    settings = own.get("_internal_dict")
    found: Any = dict.get(settings, "block_out_channels") if isinstance(settings, dict) else ()
    return [one for one in found or () if type(one) is int]


def _name(vae: Any, namespace: Mapping[str, Any]) -> str | None:
    """Return the program's name for a VAE, alone or in its pipeline."""
    for name, value in list(namespace.items()):
        if value is vae:
            return name
    for name, value in list(namespace.items()):
        if (attributes_of(value) or {}).get("vae") is vae:
            return f"{name}.vae"
    return None
