"""Collect facts about modules, optimizers and settings for the tips.

They are plain data. Nothing here runs the user's code: attributes are read from the dictionaries of
instances and classes if a property could be the user's. No object of the user's is retained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmem.capture.distributed.communicators import communicators
from nbmem.capture.distributed.parallel_wrappers import units_of
from nbmem.capture.distributed.zero import bucket_sizes
from nbmem.capture.interpreter.object_members import attributes_of
from nbmem.capture.program.library_models import head_of, is_adapted, library_models
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.tensors.batch_rows import batch_rows
from nbmem.capture.tensors.modules import (
    children_of,
    is_tensor,
    is_training,
    own_attributes,
    param_groups,
    parameters_of_group,
    states,
    tensors_inside,
)
from nbmem.capture.tensors.tensor_storages import locate_storage
from nbmem.capture.tensors.tensors import (
    gradient_of,
    is_made,
    requires_grad,
)
from nbmem.capture.torch_cuda import initialized_torch, loaded_torch

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree

MAX_BLOCKS = 16
"""Lists of equal blocks that are described for one module."""
MIN_BLOCKS = 2
MAX_SIZES = 64
"""Sizes of weights on the host that are told apart, the largest ones."""
MAX_GIVEN = 64
"""Arguments of a call that are read for a graph."""
_IN_PLACE = ("ReLU", "LeakyReLU", "ELU")
"""Modules whose backward needs their result and not their input."""
_SWITCHES = (
    "foreach",
    "fused",
    "amsgrad",
    "momentum",
    "centered",
    "maximize",
    "capturable",
    "differentiable",
)


class CallFacts(NamedTuple):
    """Facts about one call of an outermost module.

    Attributes:
        training: Whether the module was in training mode.
        grad: Whether a graph was recorded: gradients were on, and a weight or an input required
            one.
        autocast: The dtype that autocast uses; None if it was off.
        rows: Rows of the batch; None if unknown.
        chained: Whether a tensor that it was given, or one in a tuple, has a graph.
        of_inputs: Whether one that it was given asks for a gradient of its own, as for a saliency
            map or an adversarial example.
    """

    training: bool
    grad: bool
    autocast: str | None
    rows: int | None
    chained: bool
    of_inputs: bool


def call_facts(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallFacts:
    """Collect facts about one call of an outermost module, at its end.

    It reads a few attributes, in a microsecond or two.
    """
    torch: Any = loaded_torch()
    on = bool(torch.is_grad_enabled() and not torch.is_inference_mode_enabled())
    return CallFacts(
        training=is_training(module),
        grad=on and _wants_gradients(module, args, kwargs),
        autocast=_autocast(torch),
        rows=batch_rows(torch, args, kwargs),
        chained=on and any(map(is_made, _given(args, kwargs))),
        of_inputs=on and any(map(_asks, _given(args, kwargs))),
    )


def module_facts(module: Any, tree: ModuleTree) -> dict[str, Any]:
    """Collect the class, parameters and repeated blocks of a module.

    The settings of DDP, FSDP and ZeRO are included.
    """
    registry = active_registry()
    key = "facts", None if registry is None else registry.kind
    lasting, in_place = tree.remembered.get(key) or _static_facts(tree)
    if tree.is_plain:
        tree.remembered[key] = lasting, in_place
    activations = (tree.ref_at(index)() for index in in_place)
    not_in_place = [
        type(one).__name__
        for one in activations
        if (attributes_of(one) or {}).get("inplace") is False
    ]
    found: dict[str, Any] = {
        "class": type(module).__name__,
        "training": is_training(module),
        **lasting,
        "relu_not_inplace": len(not_in_place),
        "relu_classes": sorted(set(not_in_place)),
    }
    checkpointed = _checkpointed(tree)
    if checkpointed is not None:
        found["checkpointed"] = checkpointed
    if type(module).__name__ == "DistributedDataParallel":
        found["gradient_as_bucket_view"] = bool(module.__dict__.get("gradient_as_bucket_view"))
    if type(module).__name__ == "FullyShardedDataParallel":
        found["limit_all_gathers"] = bool(module.__dict__.get("limit_all_gathers"))
    units = units_of(module)
    if units:
        found["fsdp_units"] = [size for _, size in units]
        found["fsdp_paths"] = [path for path, _ in units]
    sent = bucket_sizes(module)
    if sent is not None:
        found["zero"] = sent
    return found


def _checkpointed(tree: ModuleTree) -> dict[str, Any] | None:
    """Describe modules whose blocks are said to be checkpointed, or None.

    Classes of transformers, of diffusers and of many trainers have the attribute, and ask for it
    and for training mode. The result has the `count` of such modules, how many are in `training`
    mode, and the path of the outermost module in eval mode around one (`evaluating`, or None).
    """
    inside = [*zip(tree.paths.values(), map(own_attributes, tree.modules()), strict=False)]
    places = [path for path, own in inside if own.get("gradient_checkpointing") is True]
    if not places:
        return None
    modes = {path: bool(own.get("training", True)) for path, own in inside}
    outer = next((place for place in places if not modes[place]), None)
    return {
        "count": len(places),
        "training": sum(modes[place] for place in places),
        "evaluating": None if outer is None else _outermost_evaluating(outer, modes),
    }


def _outermost_evaluating(path: str, modes: Mapping[str, bool]) -> str:
    """Return the path of the outermost module in eval mode around a path."""
    parts = path.split(".") if path else []
    around = (".".join(parts[:n]) for n in range(len(parts) + 1))
    return next((one for one in around if modes.get(one) is False), path)


def _static_facts(tree: ModuleTree) -> tuple[dict[str, Any], list[int]]:
    """Collect the facts that hold while the module tree is unchanged.

    Also returns the indices of the modules that may work in place.
    """
    torch: Any = loaded_torch()
    parameters = list(tree.parameters_once())
    on_card = [p for p in parameters if locate_storage(torch, p) is not None]
    there = set(map(id, on_card))
    on_host = [p for p in parameters if id(p) not in there and p.device.type == "cpu"]
    found = {
        "parameters": len(parameters),
        "bytes": _bytes(on_card),
        "float32_bytes": _bytes([p for p in on_card if p.dtype == torch.float32]),
        "host_bytes": _bytes(on_host),
        "host_is_float32": all(p.dtype == torch.float32 for p in on_host),
        "host_is_half": all(p.dtype in {torch.float16, torch.bfloat16} for p in on_host),
        "host_sizes": sorted({p.numel() * p.element_size() for p in on_host})[-MAX_SIZES:],
        "blocks": _blocks(torch, tree),
        "libraries": library_models(tree),
        "head": head_of(tree),
        "peft": is_adapted(tree),
    }
    kinds = [type(one).__name__ for one in tree.modules()]
    return found, [index for index, kind in enumerate(kinds) if kind in _IN_PLACE]


def optimizer_facts(optimizer: Any) -> dict[str, Any]:
    """Collect the class, switches and parameters of an optimizer.

    For each parameter: its bytes, its shape, and whether it has a gradient. `states` is 0
    until the optimizer has stepped.
    """
    torch: Any = loaded_torch()
    groups = param_groups(optimizer)
    found = [p for group in groups for p in parameters_of_group(group)]
    parameters = [p for p in found if locate_storage(torch, p) is not None]
    first = groups[0] if groups else {}
    return {
        "class": type(optimizer).__name__,
        "torch": type(optimizer).__module__.startswith("torch."),
        "switches": {k: _plain(first[k]) for k in _SWITCHES if k in first},
        "parameters": [p.numel() * p.element_size() for p in parameters],
        "shapes": [list(p.shape) for p in parameters],
        "with_gradient": [gradient_of(p) is not None for p in parameters],
        "float32": all(p.dtype == torch.float32 for p in parameters),
        "states": len(states(optimizer)),
    }


def machine_facts() -> dict[str, Any]:
    """Collect pinned memory, NCCL's bytes and settings of cuDNN and cuBLAS.

    Empty before torch has initialized CUDA.
    """
    torch: Any = initialized_torch()
    if torch is None:
        return {}
    found: dict[str, Any] = {
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cublas_workspace_config": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
    pinned = _pinned(torch)
    if pinned is not None:
        found["pinned"] = pinned
    told = communicators(torch)
    if told:
        found["communicators"] = told
    return found


def _wants_gradients(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a weight or an input of a call requires a gradient.

    The first weight decides, except in a frozen net.
    """
    given = (value for value in (*args, *kwargs.values()) if is_tensor(value))
    return any(map(requires_grad, chain(tensors_inside(module), given)))


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the first tensors of a call, with those in its tuples and lists."""
    given = (*args, *kwargs.values())
    parts = chain.from_iterable(v if type(v) in (tuple, list) else (v,) for v in given)
    return filter(is_tensor, islice(parts, MAX_GIVEN))


def _asks(tensor: Any) -> bool:
    """Return whether a tensor is no result and requires a gradient."""
    return requires_grad(tensor) and not is_made(tensor)


def _autocast(torch: Any) -> str | None:
    if not torch.is_autocast_enabled():
        return None
    read = getattr(torch, "get_autocast_dtype", None)  # since torch 2.4
    return "on" if read is None else str(read("cuda")).removeprefix("torch.")


def _blocks(torch: Any, tree: ModuleTree) -> list[dict[str, Any]]:
    """Find lists of repeated blocks, around which checkpointing goes.

    Such a list is a ModuleList or Sequential of at least `MIN_BLOCKS` modules of one
    class, of which the first has children.
    """
    found = []
    for path, inner in zip(tree.paths.values(), tree.modules(), strict=False):
        if not issubclass(type(inner), (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = [child for _, child in children_of(inner)]
        kinds = {type(child) for child in children}
        if len(children) >= MIN_BLOCKS and len(kinds) == 1 and any(children_of(children[0])):
            found.append({"path": path, "class": kinds.pop().__name__, "count": len(children)})
            if len(found) == MAX_BLOCKS:
                break
    return found


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())


def _pinned(torch: Any) -> dict[str, int | None] | None:
    """Return the pinned host bytes that torch holds and uses, or None.

    None if torch is too old to count them.
    """
    read = getattr(torch._C, "_cuda_hostMemoryStats", None)  # noqa: SLF001
    return None if read is None else pinned_bytes(read())


def pinned_bytes(stats: Mapping[str, Any]) -> dict[str, int | None] | None:
    """Return held and used bytes by the counters of torch's host allocator.

    None if it has other counters.

    Torch renamed them after 2.9: held bytes were "reserved", used bytes "allocated". Until 2.11 a
    block that is returned lowers the bytes in use by minus one. Then the number of blocks shows
    whether all are in use, or none; between the two the bytes in use are None.
    """
    names = ("segment", "reserved_bytes", "allocation", "allocated_bytes")
    if "reserved_bytes" not in stats:
        names = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
    counters = [c for c in map(stats.get, names) if isinstance(c, dict)]
    if len(counters) < len(names):
        return None
    blocks, held, live, used = ({"current": 0, "freed": 0, **c} for c in counters)
    in_use: int | None = int(used["current"])
    if used["freed"] < 0:
        in_use = {0: 0, blocks["current"]: int(held["current"])}.get(live["current"])
    return {"held": int(held["current"]), "used": in_use}


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(type(value))
