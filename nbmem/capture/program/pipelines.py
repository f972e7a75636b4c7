"""Describe pipelines of diffusers: which models take turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from nbmem.capture.interpreter.object_members import attributes_of, mro_of, name_of, namespace_of
from nbmem.capture.interpreter.plain_values import user_names
from nbmem.capture.tensors.modules import is_module, tensors_inside
from nbmem.capture.tensors.tensors import without_torch_function
from nbmem.capture.torch_cuda import loaded_torch

_BASE = "diffusers.pipelines.pipeline_utils", "DiffusionPipeline"
MAX_NAMES, MAX_PIPELINES, MAX_PARTS = 10_000, 8, 64


def pipelines(namespace: Mapping[str, Any], modules: Mapping[int, str]) -> list[dict[str, Any]]:
    """List the pipelines that variables hold, each with its models.

    Each has its `name`, whether it moves its models to the card by itself (`offloaded`), and its
    `models`: the `module`'s name in the recording, its `class`, its `bytes` on whatever device,
    and those of them in float32.

    Args:
        namespace: The notebook's names.
        modules: The names of recorded modules, by identity.
    """
    if loaded_torch() is None:
        return []
    with without_torch_function():
        return [_described(*one, modules) for one in islice(_found(namespace), MAX_PIPELINES)]


def _found(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for name, value in user_names(namespace)[:MAX_NAMES]:
        if type(name) is str and id(value) not in seen and _is_pipeline(type(value)):
            seen.add(id(value))
            yield name, value


def _is_pipeline(kind: type) -> bool:
    return any(
        (str(namespace_of(base).get("__module__")), name_of(base)) == _BASE for base in mro_of(kind)
    )


def _described(name: str, pipeline: Any, modules: Mapping[int, str]) -> dict[str, Any]:
    own = attributes_of(pipeline) or {}
    parts = [(key, value) for key, value in own.items() if is_module(value)][:MAX_PARTS]
    hooks = own.get("_all_hooks")
    return {
        "name": name,
        "offloaded": type(hooks) is list and bool(hooks),
        "models": [
            {
                "module": modules.get(id(value), f"{name}.{key}"),
                "class": name_of(type(value)),
                **_sizes(value),
            }
            for key, value in parts
            if type(key) is str
        ],
    }


def _sizes(module: Any) -> dict[str, int]:
    torch: Any = loaded_torch()
    tensors = {id(one): one for one in tensors_inside(module)}.values()
    sizes = [(one.numel() * one.element_size(), one.dtype == torch.float32) for one in tensors]
    return {
        "bytes": sum(size for size, _ in sizes),
        "float32_bytes": sum(size for size, whole in sizes if whole),
    }
