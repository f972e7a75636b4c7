"""Tell the parts of a model's weights: adapters, base, quantized weights.

The constants of quantized weights (scales, codes) are no parameters. They are attributes of the
parameter, or of the module that has it, and belong to the weight.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nbmem.capture.interpreter.object_members import (
    attributes_of,
    entries_of,
    mro_of,
    name_of,
    namespace_of,
)
from nbmem.capture.tensors.modules import own_attributes
from nbmem.capture.tensors.tensor_paths import Budget, reachable_tensors
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.tensor_parts import ADAPTERS, BASE, FROZEN, TRAINED, quantized

if TYPE_CHECKING:
    from nbmem.capture.tensors.module_tree import ModuleTree, TensorPlace

_LORA = "lora_"
"""Prefix of the names of LoRA's weights, in peft and in code written after the paper."""
_BITS = {"Params4bit": 4, "Int8Params": 8}
"""Bits of bitsandbytes' classes of parameters, which store two of 4 bits in a byte."""
MAX_CONSTANTS = 64
"""Values that are visited for the constants of one weight."""


def trained_weights(tree: ModuleTree) -> bytes:
    """Return which of a tree's parameters require a gradient, a byte each."""
    torch: Any = loaded_torch()
    found = tree.parameters_once()
    return bytes(map(torch.Tensor.requires_grad.__get__ if tree.is_plain else _is_trained, found))


def _is_trained(parameter: Any) -> bool:
    torch: Any = loaded_torch()
    try:
        return parameter is not None and bool(torch.Tensor.requires_grad.__get__(parameter))
    except Exception as err:  # noqa: BLE001 - a wrapper without attributes
        reraise_if_from_signal(err)
        return False


def parts_of_weights(tree: ModuleTree) -> dict[int, str]:
    """Return the part of each parameter, by its id; empty if all are alike."""
    adapters = _adapter_names(tree)
    known = {key: one for key, place in tree.places.items() if (one := place.ref()) is not None}
    added = {key for key in known if _is_adapter(tree.places[key], adapters)}
    trained = {key for key, one in known.items() if _is_trained(one)}
    parts: dict[int, str] = {}
    for key, one in known.items():
        if key in added:
            parts[key] = ADAPTERS
            continue
        part = BASE if added and key not in trained else ""
        if not part and 0 < len(trained) < len(known):
            part = TRAINED if key in trained else FROZEN
        bits = bits_of(one)
        parts[key] = part if bits is None else quantized(part, bits)
    return parts if any(parts.values()) else {}


def _is_adapter(place: TensorPlace, names: frozenset[str]) -> bool:
    words = place.path.split(".")
    return any(word.startswith(_LORA) or word in names for word in words)


def _adapter_names(tree: ModuleTree) -> frozenset[str]:
    """Return the names that peft's layers give to what they add."""
    if "peft" not in sys.modules:
        return frozenset()
    kinds = {id(type(module)): type(module) for module in tree.modules()}
    listed = (
        namespace_of(base).get("adapter_layer_names")
        for kind in kinds.values()
        for base in mro_of(kind)
    )
    return frozenset(name for names in listed if type(names) is tuple for name in names)


def bits_of(parameter: Any) -> int | None:
    """Return the bits of a quantized parameter's values; None for others."""
    torch: Any = loaded_torch()
    kinds = [_BITS.get(name_of(base)) for base in mro_of(type(parameter))]
    try:
        dtype = torch.Tensor.dtype.__get__(parameter)
    except Exception as err:  # noqa: BLE001 - a wrapper without attributes
        reraise_if_from_signal(err)
        return None
    if dtype.is_floating_point or dtype.is_complex:  # not quantized yet
        return None
    return next((bits for bits in kinds if bits), 8 if dtype is torch.int8 else None)


def constants_of_weights(tree: ModuleTree) -> Iterator[tuple[str, Any, Any]]:
    """Yield the constants of quantized weights: path, tensor and parameter."""
    for place in tree.places.values():
        parameter = place.ref()
        if parameter is None or bits_of(parameter) is None:
            continue
        module = tree.ref_at(place.inner)()
        own = [(f"{place.path}.{n}", v) for n, v in entries_of(attributes_of(parameter) or {})]
        before = place.path.rpartition(".")[0]
        before = f"{before}." if before else ""
        if module is not None:
            kept = own_attributes(module)
            own += [
                (f"{before}{name}", value)
                for name, value in entries_of(kept)
                if name not in {"_parameters", "_buffers", "_modules"}
            ]
        for path, tensor in reachable_tensors(own, Budget(MAX_CONSTANTS)):
            if tensor is not parameter:
                yield path, tensor, parameter
