"""Read what is left of a module's call while a request of it fails.

The rest of a call is known where the model is a list of equal blocks: how many of them are left.
Only frames of torch and of transformers' generate() are read, never those of the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from types import FrameType
from typing import Any

from nbmem.capture.interpreter.object_members import attributes_of, name_of
from nbmem.capture.tensors.batch_rows import batch_rows
from nbmem.capture.tensors.kv_caches import given_caches, is_cache, tensors_of_cache
from nbmem.capture.tensors.modules import (
    children_of,
    is_tensor,
    named_modules,
    own_parameters,
)
from nbmem.capture.tensors.tensor_storages import data_of
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.oom import RunningCall

CALLS = ("_call_impl", "_wrapped_call_impl")
"""Functions of torch that call a module; their locals are the call's arguments."""
MIN_BLOCKS = 3
MAX_BEHIND = 4
"""Layers behind the blocks: a norm, a head and what has no weights."""
MAX_CACHED = 4_096
_MATRIX, _IMAGE = 2, 4
"""Dimensions of a weight of a linear layer, and of a batch of images."""
_OFFLOADED = "DynamicCache"
_CACHE = "past_key_values"
_FILE = ("generation", "utils.py")
_DECODES = "_sample"


def running_call(frames: Sequence[FrameType], modules: Sequence[Any]) -> RunningCall | None:
    """Describe the outermost module's call; None without modules.

    Args:
        frames: The frames of the request, innermost first.
        modules: The modules that are being called, innermost first.
    """
    if not modules:
        return None
    calls = [frame for frame in frames if frame.f_code.co_name in CALLS]
    given = [_arguments(frame) for frame in calls]
    outermost, around = given[-1], frames[frames.index(calls[-1]) + 1 :]
    block, blocks, behind = _place(modules)
    width, each = max(map(_width, behind), default=(0, 4))
    inside = next((cache for args, kwargs in given for cache in given_caches(args, kwargs)), None)
    tensors = tensors_of_cache(inside)[:MAX_CACHED] if is_cache(inside) else []
    torch: Any = loaded_torch()
    shape = torch.Tensor.shape.__get__
    return RunningCall(
        block=block,
        blocks=blocks,
        result=_rows(outermost) * width,
        result_bytes=each,
        labels=outermost[1].get("labels") is not None,
        cache=tuple(address for one in tensors if (address := data_of(torch, one))),
        cached=int(shape(tensors[0])[-2]) if tensors else 0,
        unread=bool(tensors) and _is_unread(outermost, around),
        offloads=_can_offload(inside),
        heads=_sharing_heads(modules),
        tokens_left=next((left for one in around if (left := _tokens_left(one)) is not None), None),
        samples=batch_rows(torch, *outermost),
    )


def _arguments(frame: FrameType) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    values = frame.f_locals
    args, kwargs = values.get("args"), values.get("kwargs")
    return args if type(args) is tuple else (), kwargs if type(kwargs) is dict else {}


def _place(modules: Sequence[Any]) -> tuple[int, int, list[Any]]:
    """Return the running block's place, the count, and the layers behind.

    Zero blocks if what runs is in no list of equal ones with little behind it.
    """
    running = {id(module) for module in modules}
    for _, owner in named_modules(modules[-1]):
        blocks = [child for _, child in children_of(owner)]
        place = next((at for at, block in enumerate(blocks) if id(block) in running), None)
        if place is None or len(blocks) < MIN_BLOCKS or len({type(one) for one in blocks}) > 1:
            continue
        last = {id(layer) for layer in _layers(blocks[-1])}
        layers = list(_layers(modules[-1]))
        end = max((at for at, layer in enumerate(layers) if id(layer) in last), default=-1)
        behind = layers[end + 1 :]
        if end >= 0 and len(behind) <= MAX_BEHIND:
            return place, len(blocks), behind
        return 0, 0, []
    return 0, 0, []


def _layers(module: Any) -> Iterator[Any]:
    return (one for _, one in named_modules(module) if next(children_of(one), None) is None)


def _width(layer: Any) -> tuple[int, int]:
    """Return the columns of a linear layer's result, and bytes of a number."""
    torch: Any = loaded_torch()
    shape, bytes_of = torch.Tensor.shape.__get__, torch.Tensor.element_size
    own = [one for one in own_parameters(layer) if len(shape(one)) == _MATRIX]
    return max(((int(shape(one)[0]), int(bytes_of(one))) for one in own), default=(0, 4))


def _rows(call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> int:
    """Return the rows of a call's result: samples, or places of sequences.

    A causal language model of transformers may be asked for the last places alone.
    """
    torch: Any = loaded_torch()
    args, kwargs = call
    shapes = [
        (tuple(torch.Tensor.shape.__get__(one)), bool(torch.is_floating_point(one)))
        for one in (*args, *kwargs.values())
        if is_tensor(one)
    ]
    keep = kwargs.get("logits_to_keep")
    rows = [_rows_of(shape, floats, keep if type(keep) is int else 0) for shape, floats in shapes]
    return max(rows, default=0)


def _rows_of(shape: tuple[int, ...], floats: bool, keep: int) -> int:  # noqa: FBT001
    """Return the rows of one argument; `keep` last places if that is not 0."""
    places = shape[:-1] if floats and len(shape) < _IMAGE else shape[: 1 if floats else _MATRIX]
    if keep and len(places) == _MATRIX:
        places = (places[0], min(places[1], keep))
    return math.prod(places)


def _is_unread(
    outermost: tuple[tuple[Any, ...], Mapping[str, Any]], around: Sequence[FrameType]
) -> bool:
    """Return whether nothing reads the cache that a call made.

    It was neither given one nor told to make one, and no code around it names a cache.
    """
    args, kwargs = outermost
    if given_caches(args, kwargs) or kwargs.get("use_cache") is not None:
        return False
    return not any(
        _CACHE in (*code.co_names, *code.co_consts) for code in (one.f_code for one in around)
    )


def _can_offload(cache: object) -> bool:
    """Return whether a cache is one that transformers can keep on the host."""
    own = attributes_of(cache) or {}
    return name_of(type(cache)) == _OFFLOADED and own.get("offloading") is False


def _sharing_heads(modules: Sequence[Any]) -> int:
    """Return how many heads share one head of keys and values."""
    for module in modules:
        own = attributes_of((attributes_of(module) or {}).get("config")) or {}
        heads, shared = (own.get(f"num_{kind}_heads") for kind in ("attention", "key_value"))
        if type(heads) is int and type(shared) is int and 0 < shared < heads:
            return heads // shared
    return 1


def _tokens_left(frame: FrameType) -> int | None:
    """Return the further calls of transformers' decoding loop, or None.

    None for a frame that is none, and where a text may end at no length.
    """
    code = frame.f_code
    if code.co_name != _DECODES or PurePath(code.co_filename).parts[-2:] != _FILE:
        return None
    values = frame.f_locals
    config, ids = values.get("generation_config"), values.get("input_ids")
    if name_of(type(config)) != "GenerationConfig" or not is_tensor(ids):
        return None
    most = (attributes_of(config) or {}).get("max_length")
    torch: Any = loaded_torch()
    shape = torch.Tensor.shape.__get__(ids)
    if type(most) is not int or len(shape) != _MATRIX:
        return None
    return max(0, most - int(shape[1]) - 1)
