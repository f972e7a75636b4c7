"""Read parts of modules and optimizers without running user code.

`named_parameters()`, `modules()`, `state` and `param_groups` may be overridden, and the user's
versions may be slow, raise or exit. Reading torch's entries in the instance's own dictionary
cannot. Module instances are distinguished by identity, because `__eq__` and `__hash__` are the
user's, too.

Classes are read with `type()`, because `isinstance` reads `__class__`. Tensors are read through
torch's getters in C.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from nbmem.capture.interpreter.object_members import attributes_of, entries_of
from nbmem.capture.torch_cuda import loaded_torch


def is_module(obj: object) -> bool:
    """Return True for a module of torch's, by its true class.

    `isinstance` would read `__class__`.
    """
    torch: Any = loaded_torch()
    return torch is not None and issubclass(type(obj), torch.nn.Module)


def is_optimizer(obj: object) -> bool:
    """Return True for an optimizer of torch's, by its true class."""
    torch: Any = loaded_torch()
    return torch is not None and issubclass(type(obj), torch.optim.Optimizer)


def is_tensor(obj: object) -> bool:
    """Return True for a tensor, by its true class."""
    torch: Any = loaded_torch()
    return torch is not None and issubclass(type(obj), torch.Tensor)


def is_plain_sequence(obj: object) -> bool:
    """Return True for a list or a tuple, but not for a subclass.

    `in` would call a metaclass's `__eq__`.
    """
    kind = type(obj)
    return kind is list or kind is tuple


def is_parameter(tensor: object) -> bool:
    """Return True if a tensor is a parameter.

    For a subclass torch notes that in an attribute.
    """
    torch: Any = loaded_torch()
    own = attributes_of(tensor) or {}
    return issubclass(type(tensor), torch.nn.Parameter) or own.get("_is_param") is True


def named_modules(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module and its submodules with their paths.

    Each comes once, outer ones first.
    """
    kind: Any = cast("Any", loaded_torch()).nn.Module
    seen = set()
    queue = [("", module)]
    while queue:
        path, inner = queue.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        yield path, inner
        children = items_of(inner, "_modules")
        if children:
            before = f"{path}." if path else ""
            found = [(f"{before}{n}", c) for n, c in children if issubclass(type(c), kind)]
            queue += reversed(found)


def path_of(module: Any, outer: Any, likely: str) -> str | None:
    """Return a module's path inside another; None if it is not inside.

    The likely path is tried first, so that a large model is not walked for each of its parts.
    """
    inner = outer
    for name in likely.split("."):
        children: Any = (attributes_of(inner) or {}).get("_modules")
        inner = dict.get(children, name) if issubclass(type(children), dict) else None
    if inner is module:
        return likely
    return next((path for path, inner in named_modules(outer) if inner is module), None)


def children_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module's direct children with their names."""
    return ((name, child) for name, child in items_of(module, "_modules") if is_module(child))


def tensors_inside(module: Any) -> Iterator[Any]:
    """Yield parameters and buffers of a module and its submodules.

    They come without paths, each as soon as it is found. Callers need only the first ones, in each
    call of a model.
    """
    seen = set()
    queue = [module]
    while queue:
        inner = queue.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        for part in ("_parameters", "_buffers"):
            for _, tensor in items_of(inner, part):
                if is_tensor(tensor):
                    yield tensor
        queue += [child for _, child in reversed(items_of(inner, "_modules")) if is_module(child)]


def named_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of a module and its submodules with paths.

    Each comes once.
    """
    seen = set()
    for path, inner in named_modules(module):
        before = f"{path}." if path else ""
        for name, tensor in items_of(inner, "_parameters"):
            if is_tensor(tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{before}{name}", tensor


def is_embedding(module: object) -> bool:
    """Return True for an embedding, which only looks up weight rows."""
    torch: Any = loaded_torch()
    return issubclass(type(module), torch.nn.Embedding | torch.nn.EmbeddingBag)


def is_parameter_list(module: object) -> bool:
    """Return True for a module that only lists parameters.

    The module that contains it computes with them.
    """
    torch: Any = loaded_torch()
    return issubclass(type(module), torch.nn.ParameterList | torch.nn.ParameterDict)


def own_parameters(module: Any) -> Iterator[Any]:
    """Yield the parameters that a module itself registers."""
    return (tensor for _, tensor in items_of(module, "_parameters") if is_tensor(tensor))


def is_training(module: Any) -> bool:
    """Return True if a module is in training mode."""
    return bool(own_attributes(module).get("training", True))


def own_attributes(module: Any) -> dict[str, Any]:
    """Return a module's own dictionary.

    Every torch module has it in the same slot.
    """
    torch: Any = loaded_torch()
    found: dict[str, Any] = vars(torch.nn.Module)["__dict__"].__get__(module)
    return found


def param_groups(optimizer: Any) -> list[dict[str, Any]]:
    """Return an optimizer's parameter groups."""
    groups = (attributes_of(optimizer) or {}).get("param_groups")
    return [g for g in groups if issubclass(type(g), dict)] if type(groups) is list else []


def parameters_of_group(group: dict[str, Any]) -> list[Any]:
    """Return the tensors of a parameter group."""
    found = dict.get(group, "params")
    return [p for p in found if is_tensor(p)] if type(found) is list else []


def parameters_behind(owner: Any) -> Iterator[Any]:
    """Yield the parameters of a module, or those of an optimizer."""
    if is_module(owner):
        yield from (parameter for _, parameter in named_parameters(owner))
    else:
        yield from (p for group in param_groups(owner) for p in parameters_of_group(group))


def states(optimizer: Any) -> list[tuple[Any, dict[Any, Any]]]:
    """Return an optimizer's state of each of its parameters.

    Only states that are dictionaries are returned.
    """
    return [(p, s) for p, s in all_states(optimizer) if issubclass(type(s), dict)]


def all_states(optimizer: Any) -> list[tuple[Any, Any]]:
    """Return what an optimizer keeps, of whatever kind, each with its key."""
    kept: Any = (attributes_of(optimizer) or {}).get("state")
    return entries_of(kept) if issubclass(type(kept), dict) else []


def items_of(module: Any, part: str) -> list[tuple[str, Any]]:
    """Return one of a module's dictionaries (`_modules`) as names and values.

    Scripted modules have torch's own class instead.
    """
    found: Any = own_attributes(module).get(part)
    if type(found) is dict and not found:
        return []
    if issubclass(type(found), dict):
        items = entries_of(found)
    elif type(found).__module__ == "torch.jit._script":
        items = list(found.items())
    else:
        return []
    return [(name, value) for name, value in items if type(name) is str]
