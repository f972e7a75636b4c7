"""What DDP and FSDP hold beside a model's own tensors: buckets, and gathered parameters.

DDP shows no bucket, but the model's parameters say how large they are. FSDP swaps a module's
parameters while they are gathered; its own records tell them from the shards that the rank owns.
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/_fully_shard/_fsdp_param.py
and torch/distributed/fsdp/_flat_param.py
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbmem.core.categories import Category
from nbmem.probes.cuda import loaded_torch
from nbmem.probes.holders.objects import attributes_of
from nbmem.probes.modules import is_tensor, named_modules, named_parameters
from nbmem.probes.tensors import Seen, address_of, of_module, requires_grad, see

if TYPE_CHECKING:
    from collections.abc import Iterator

_VIEWS = "gradient_as_bucket_view"
_FLAT = ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard")
"""What FSDP1's flat parameter gathers into, and its shard in the type that is gathered."""


def parts_of(module: Any) -> Iterator[Seen]:
    """A module's weights and buffers; what FSDP has gathered is communication, its shards are not.

    The names are relative to the module's own.
    """
    own = list(sharded(module))
    known = {(seen.device, seen.addr) for seen in own}
    yield from own
    for seen in of_module(module):
        if (seen.device, seen.addr) not in known:
            yield seen


def sharded(module: Any) -> Iterator[Seen]:
    """Shards that FSDP keeps of a module's parameters, and what is gathered of them now."""
    states = _states()
    if states is None:
        return
    for path, inner in named_modules(module):
        before = f".{path}" if path else ""
        for group in _list(states.get(id(inner)), "_fsdp_param_groups", "_fsdp_param_group"):
            for parameter in _list(group, "fsdp_params"):
                told = attributes_of(parameter) or {}
                name = f"{before}.{_text(told.get('_param_fqn'))}"
                yield from _seen(told.get("sharded_param"), Category.WEIGHTS, name)
                for gathered in _list(parameter, "all_gather_outputs"):
                    yield from _seen(gathered, Category.COMMUNICATION, f"{name} gathered")
        flat = (attributes_of((attributes_of(inner) or {}).get("_handle")) or {}).get("flat_param")
        told = attributes_of(flat) or {}
        yield from _seen(told.get("_local_shard"), Category.WEIGHTS, f"{before}._flat_param")
        for part in _FLAT:
            yield from _seen(
                told.get(part), Category.COMMUNICATION, f"{before}._flat_param gathered"
            )


def _states() -> dict[int, Any] | None:
    """FSDP's records by the module's id; None where no module is sharded.

    The dictionary is gone through: to look something up in it would ask modules for their hash.
    """
    if "torch.distributed.fsdp" not in sys.modules:
        return None
    registry = sys.modules.get("torch.distributed._composable_state")
    kept = vars(registry).get("_module_state_mapping") if registry is not None else None
    found = (attributes_of(kept) or {}).get("data")
    pairs = list(dict.items(found)) if type(found) is dict else []
    return {id(module): state() for ref, state in pairs if (module := ref()) is not None}


def _list(thing: Any, *names: str) -> list[Any]:
    """The first of these attributes that is there, as a list."""
    told = attributes_of(thing) or {}
    found: Any = next((told[name] for name in names if told.get(name) is not None), [])
    return list(found) if type(found) in (list, tuple) else [found]


def _text(value: Any) -> str:
    return value if type(value) is str else "parameter"


def _seen(tensor: Any, category: Category, name: str) -> Iterator[Seen]:
    seen = see(tensor, category, name) if is_tensor(tensor) else None
    if seen is not None:
        yield seen


def buckets_of(module: Any) -> Iterator[Seen]:
    """The buckets of a module, all of one type together, at the address 0.

    None where the gradients are views of them: a bucket is what a gradient's storage is then.
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
        yield Seen(device, 0, size, Category.COMMUNICATION, ": gradients' buckets")
