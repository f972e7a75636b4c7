"""Describe models and pipelines of libraries, by their own classes.

The classes of transformers and diffusers are known by their base class and the module that defines
it. What a class can do is read from its own attributes: no method of it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.object_members import (
    attributes_of,
    mro_of,
    name_of,
    namespace_of,
)
from nbmem.capture.interpreter.plain_values import user_names
from nbmem.capture.tensors.modules import is_module, tensors_inside
from nbmem.capture.tensors.tensors import without_torch_function
from nbmem.capture.torch_cuda import loaded_torch

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree

_BASES = {
    ("transformers.modeling_utils", "PreTrainedModel"): "transformers",
    ("diffusers.models.modeling_utils", "ModelMixin"): "diffusers",
}
"""Module and name of the base class of each library's models."""
_CAN_CHECKPOINT = ("supports_gradient_checkpointing", "_supports_gradient_checkpointing")
_CAN_SDPA = "_supports_sdpa"
_KEEPS = "logits_to_keep"
"""The parameter of a forward that computes the scores of the last positions only."""
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of models that change the scores behind their last layer."""
MAX_MODELS = 16
"""Models of one module that are described."""
_MAX_WRAPPERS = 8
_PIPELINE = "diffusers.pipelines.pipeline_utils", "DiffusionPipeline"
MAX_NAMES, MAX_PIPELINES, MAX_PARTS = 10_000, 8, 64
"""Limits of what is read to describe pipelines."""
_MATRIX = 2
"""Dimensions of a weight that maps a hidden state to the scores of words."""


def library_models(tree: ModuleTree) -> list[dict[str, Any]]:
    """List the outermost models of known libraries in a module.

    Each has its `path`, its `library`, its `class`, whether its class has a call that checkpoints
    its blocks (`checkpoints`), its `attention`, whether it could use torch's fused attention
    (`sdpa`), whether its heads share keys and values (`grouped`), whether its forward takes
    `logits_to_keep` (`keeps`), and whether its scores are those of its last layer (`plain`):
    nothing in its configuration scales them.
    """
    found: list[dict[str, Any]] = []
    for path, module in zip(tree.paths.values(), tree.modules(), strict=False):
        library = _library(type(module))
        if library is None or any(_is_inside(path, one["path"]) for one in found):
            continue
        kind = type(module)
        config = (attributes_of(module) or {}).get("config")
        found.append(
            {
                "path": path,
                "library": library,
                "class": name_of(kind),
                "checkpoints": any(_attribute(kind, name) is True for name in _CAN_CHECKPOINT),
                "attention": _attention(config),
                "sdpa": _attribute(kind, _CAN_SDPA) is True,
                "grouped": _has_grouped_heads(config),
                "keeps": _KEEPS in _parameters(_attribute(kind, "forward")),
                "plain": _has_plain_scores(config),
            }
        )
        if len(found) == MAX_MODELS:
            break
    return found


def head_of(tree: ModuleTree) -> dict[str, Any] | None:
    """Return the one linear layer that scores a vocabulary's words, or None.

    Its weight has as many rows as the largest table that an embedding looks up. It has a `path`,
    the number of `words`, the `width` of its input, and a `bias`. None if several layers have as
    many rows.
    """
    torch: Any = loaded_torch()
    shape = torch.Tensor.shape.__get__
    shapes = [
        (place, tuple(shape(one)))
        for place in tree.parameters
        if not place.listed and (one := place.ref()) is not None
    ]
    words = max((s[0] for place, s in shapes if place.lookup and len(s) == _MATRIX), default=0)
    heads = [
        (place.path.removesuffix(".weight"), s)
        for place, s in shapes
        if not place.lookup and len(s) == _MATRIX and s[0] == words > s[1]
    ]
    if len(heads) != 1:
        return None
    path, (_, width) = heads[0]
    names = {place.path for place, _ in shapes}
    return {"path": path, "words": words, "width": width, "bias": f"{path}.bias" in names}


def _library(kind: type) -> str | None:
    for base in mro_of(kind):
        key = str(namespace_of(base).get("__module__")), name_of(base)
        if key in _BASES:
            return _BASES[key]
    return None


def _attribute(kind: type, name: str) -> Any:
    """Return a class's attribute; None if no class of its MRO has it."""
    spaces = (namespace_of(base) for base in mro_of(kind))
    return next((space[name] for space in spaces if name in space), None)


def _attention(config: object) -> str | None:
    """Return the name of the attention in a configuration, if it is plain."""
    own = attributes_of(config) or {}
    found = own.get("_attn_implementation_internal", own.get("_attn_implementation"))
    return found if type(found) is str else None


def _has_grouped_heads(config: object) -> bool:
    own = attributes_of(config) or {}
    heads, shared = (own.get(f"num_{kind}_heads") for kind in ("attention", "key_value"))
    return type(heads) is int and type(shared) is int and shared < heads


def _has_plain_scores(config: object) -> bool:
    own = attributes_of(config) or {}
    return not any(name in own and own[name] not in {None, 1} for name in _SCALES)


def is_adapted(tree: ModuleTree) -> bool:
    """Return whether a module is peft's wrapper, which passes calls on."""
    module = tree.ref()
    return any(
        name_of(base) == "PeftModel" and namespace_of(base).get("__module__") == "peft.peft_model"
        for base in mro_of(type(module))
    )


def _parameters(function: Any) -> tuple[str, ...]:
    """Return the names of a function's parameters, behind its decorators."""
    for _ in range(_MAX_WRAPPERS):
        inner = (attributes_of(function) or {}).get("__wrapped__")
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None) if type(function) is type(_parameters) else None
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names


def _is_inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def pipelines(namespace: Mapping[str, Any], modules: Mapping[int, str]) -> list[dict[str, Any]]:
    """List the pipelines that variables hold, each with its models.

    Each has its `name`, whether it moves its models to the card by itself (`offloaded`), and its
    `models`: the `module`'s name in the recording, its `class`, its `bytes` on whatever device,
    and those of them in float32.

    Args:
        namespace: The notebook's names.
        modules: The names of recorded modules, by identity.
    """
    if loaded_torch() is None or _PIPELINE[0] not in sys.modules:
        return []  # most notebooks: their names are not read
    with without_torch_function():
        return [
            _pipeline_facts(*one, modules) for one in islice(_pipelines(namespace), MAX_PIPELINES)
        ]


def _pipelines(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen = set()
    for name, value in user_names(namespace)[:MAX_NAMES]:
        if type(name) is str and id(value) not in seen and _is_pipeline(type(value)):
            seen.add(id(value))
            yield name, value


def _is_pipeline(kind: type) -> bool:
    return any(
        (str(namespace_of(base).get("__module__")), name_of(base)) == _PIPELINE
        for base in mro_of(kind)
    )


def _pipeline_facts(name: str, pipeline: Any, modules: Mapping[int, str]) -> dict[str, Any]:
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
