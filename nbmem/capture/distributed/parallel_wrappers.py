"""Find the buckets and gathered parameters of DDP, FSDP and ZeRO.

They exist besides a model's own tensors.

DDP does not expose its buckets, but their size follows from the model's parameters. FSDP replaces a
module's parameters while they are gathered. Its own records distinguish them from the rank's
shards.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param.py
and torch/distributed/fsdp/_flat_param.py
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nbmem.capture.distributed import zero
from nbmem.capture.interpreter.object_members import attributes_of, entries_of, is_a
from nbmem.capture.tensors.modules import is_tensor, named_modules, named_parameters
from nbmem.capture.tensors.tensors import (
    ObservedStorage,
    address_of,
    observe,
    requires_grad,
    storages_of_module,
)
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import GATHERED

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree

KEPT = "kept after forward"
"""Suffix of a parameter's name that is sharded among fewer ranks until backward
(`reshard_after_forward=8`)."""
_FSDP = "torch.distributed.fsdp"
_FACES = ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")
_VIEWS = "gradient_as_bucket_view"
FLAT = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
"""What FSDP1's flat parameter gathers into, and its shard in the dtype that is gathered."""


def weights_and_buffers(module: Any, tree: ModuleTree | None = None) -> Sequence[ObservedStorage]:
    """Return a module's weights and buffers, also of FSDP and ZeRO.

    Gathered parameters count as communication; the shards count as weights.

    The names are relative to the module's own.

    Args:
        module: The module.
        tree: Its current tree; None to read the module.
    """
    own = list(shards_and_gathered(module))
    if not own:
        return storages_of_module(module, tree)
    known = {(seen.device, seen.addr) for seen in own}
    return [*own, *(s for s in storages_of_module(module, tree) if (s.device, s.addr) not in known)]


def shards_and_gathered(module: Any) -> Iterator[ObservedStorage]:
    """Yield a module's shards of FSDP or ZeRO, and gathered parameters.

    The shards are those of this rank. The gathered parameters are those that exist now. ZeRO's
    gradient shards and send buckets are included.
    """
    yield from zero.zero_storages(module)
    for root, parameter in _parameters(module):
        attributes = attributes_of(parameter) or {}
        path = attributes.get("_param_fqn")
        name = f"{root}.{path if type(path) is str else 'parameter'}"
        yield from _observed(attributes.get("sharded_param"), Category.WEIGHTS, name)
        kept = attributes.get("_sharded_post_forward_param_data")
        yield from _observed(kept, Category.COMMUNICATION, f"{name} {KEPT}")
        for gathered in items_of(attributes.get("all_gather_outputs")):
            yield from _observed(gathered, Category.COMMUNICATION, f"{name} {GATHERED}")
    for path, handle in _handles(module):
        before = f".{path}" if path else ""
        flat = (attributes_of(handle) or {}).get("flat_param")
        attributes = attributes_of(flat) or {}
        yield from _observed(
            attributes.get("_local_shard"), Category.WEIGHTS, f"{before}._flat_param"
        )
        for part in FLAT:
            name = f"{before}._flat_param {GATHERED}"
            yield from _observed(attributes.get(part), Category.COMMUNICATION, name)


def is_sharded(module: Any) -> bool:
    """Return True if FSDP or ZeRO shards any of a module's parameters.

    This walks through the module.
    """
    if zero.is_cut(module) or any(True for _ in _parameters(module)):
        return True
    return any(True for _ in _handles(module))


def _handles(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the FSDP1 handles of wrapped modules, each with its path."""
    torch: Any = loaded_torch()
    own = vars(torch.nn.Module)["__dict__"].__get__
    for path, inner in named_modules(module) if _FSDP in sys.modules else ():
        handle = own(inner).get("_handle")
        if handle is not None:
            yield path, handle


def fsdp2_substitutes(module: Any) -> Iterator[list[Any]]:
    """Yield the tensors that FSDP2 substitutes for each parameter.

    Yields one list for each parameter, with its shard first.
    """
    for _, parameter in _parameters(module):
        attributes = attributes_of(parameter) or {}
        faces = (attributes.get(name) for name in _FACES)
        yield [face for face in faces if is_tensor(face)]


def units_of(module: Any) -> list[tuple[str, int]]:
    """List a module's FSDP2 units: path, and bytes gathered at once."""
    states = _states()
    found = []
    for path, inner in named_modules(module) if states else ():
        for group in _list(states.get(id(inner)), "_fsdp_param_groups", "_fsdp_param_group"):
            parts = items_of((attributes_of(group) or {}).get("fsdp_params"))
            found.append((path, sum(map(_whole, parts))))
    return found


def _whole(parameter: Any) -> int:
    """Return the bytes of an FSDP2 parameter before sharding."""
    attributes = attributes_of(parameter) or {}
    shape = [size for size in items_of(attributes.get("_orig_size")) if type(size) is int]
    return math.prod(shape) * int(getattr(attributes.get("orig_dtype"), "itemsize", 0))


def _parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield FSDP2's parameter records, each with its FSDP root's path."""
    states = _states()
    root: str | None = None
    for path, inner in named_modules(module) if states else ():
        state = states.get(id(inner))
        if state is None:
            continue
        before = f".{path}" if path else ""
        if root is None or not f"{before}.".startswith(f"{root}."):
            root = before
        for group in _list(state, "_fsdp_param_groups", "_fsdp_param_group"):
            for parameter in items_of((attributes_of(group) or {}).get("fsdp_params")):
                yield root, parameter


def _states() -> dict[int, Any]:
    """Return FSDP2's states by module id; empty if no module is sharded.

    The dictionary is iterated, because a lookup in it would call the modules' own `__hash__`.
    """
    if _FSDP not in sys.modules:
        return {}
    registry = sys.modules.get("torch.distributed._composable_state")
    kept = vars(registry).get("_module_state_mapping") if registry is not None else None
    found = (attributes_of(kept) or {}).get("data")
    pairs = entries_of(found) if type(found) is dict else []
    return {id(module): state() for ref, state in pairs if (module := ref()) is not None}


def items_of(value: Any) -> list[Any]:
    """Return the items of a list or tuple; none for any other value.

    Instances of subclasses count as well, such as named tuples.
    """
    return list(value) if is_a(type(value), list) or is_a(type(value), tuple) else []


def _list(obj: Any, *names: str) -> list[Any]:
    """Return the first of these attributes that is set, as a list.

    Empty if none is set.
    """
    attributes = attributes_of(obj) or {}
    found: Any = next((attributes[name] for name in names if attributes.get(name) is not None), [])
    return items_of(found) if type(found) in (list, tuple) else [found]


def _observed(tensor: Any, category: Category, name: str) -> Iterator[ObservedStorage]:
    seen = observe(tensor, category, name) if is_tensor(tensor) else None
    if seen is not None:
        yield seen


def ddp_buckets(module: Any) -> Iterator[ObservedStorage]:
    """Yield the size of DDP's gradient buckets, per device and dtype.

    Their address is 0. Yields nothing if gradients are views of the buckets, because a bucket is
    then a gradient's storage.
    """
    if (attributes_of(module) or {}).get(_VIEWS) is not False:
        return
    torch: Any = loaded_torch()
    sizes: dict[tuple[int, int], int] = {}
    for _, parameter in named_parameters(module):
        place = address_of(parameter)
        if place is not None and requires_grad(parameter):
            key = place[0], id(torch.Tensor.dtype.__get__(parameter))
            size = torch.Tensor.numel(parameter) * torch.Tensor.element_size(parameter)
            sizes[key] = sizes.get(key, 0) + size
    for (device, _), size in sizes.items():
        yield ObservedStorage(device, 0, size, Category.COMMUNICATION, ": gradients' buckets")
