"""Classify the storages of modules, calls and the notebook's names.

The categories are weights, buffers, gradients, inputs and the notebook's own tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from nbmem.capture.interpreter.plain_values import leading_names
from nbmem.capture.tensors import weight_parts
from nbmem.capture.tensors.active_registry import active_registry
from nbmem.capture.tensors.frames import with_place
from nbmem.capture.tensors.module_tree import ModuleTree, tree_of
from nbmem.capture.tensors.modules import (
    is_module,
    is_optimizer,
    is_parameter,
    named_parameters,
    own_attributes,
    tensors_inside,
)
from nbmem.capture.tensors.tensor_paths import Budget, reachable_tensors
from nbmem.capture.tensors.tensor_storages import form_of, locate_storage, parts_of, unwrapped
from nbmem.capture.torch_cuda import loaded_torch
from nbmem.core.runtime.interrupts import reraise_if_from_signal
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import LOCAL, VIEW, common_path, without_shape
from nbmem.core.session.tensor_parts import LOGITS, is_logits_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    Member = Callable[[Any], object | None]

MAX_OF_CALL = 256
"""Values that are visited in the arguments of one module call; this happens in every step."""
MAX_OF_LOOP = 1_000
"""Values that are visited in the variables of all running functions, innermost first: 3 ms."""


class ObservedStorage(NamedTuple):
    """A storage with its category and name, as it is now.

    Attributes:
        device: CUDA ordinal.
        addr: Address of the storage.
        size: Bytes of the storage.
        category: Its category.
        name: Its name and form. If it belongs to a module or an optimizer, the part after the
            owner's name.
        before: The prefix of the name of that module or optimizer.
        of: The object with whose name it begins, if it was found in another one: an optimizer's
            state is named after the parameter.
        part: The part of its category (core/session/tensor_parts.py); empty without one.
    """

    device: int
    addr: int
    size: int
    category: Category
    name: str
    before: str = ""
    of: Any = None
    part: str = ""


def observe(
    tensor: Any, category: Category, name: str, *, form: bool = True
) -> ObservedStorage | None:
    """Return a tensor's storage with its category and name, or None.

    None if it is on no card or has no storage.

    Args:
        tensor: Any tensor; it is not retained.
        category: Its category.
        name: Its name.
        form: Add shape and dtype to the name.
    """
    torch: Any = loaded_torch()
    place = locate_storage(torch, tensor)
    if place is None:
        return None
    return ObservedStorage(
        *place, category, f"{name} {form_of(torch, tensor, place[2])}" if form else name
    )


def observe_parts(
    tensor: Any, category: Category, name: str, deep: int = 4
) -> Iterator[ObservedStorage]:
    """Yield the storage of a tensor, or those of its parts.

    A sparse tensor or a wrapper without a storage of its own has parts.

    Only the values of a sparse gradient are yielded: the indices of an embedding's are the batch
    that was looked up.
    """
    seen = observe(tensor, category, name)
    if seen is not None:
        yield seen
        return
    values = category is Category.GRADIENTS
    for part, inner in parts_of(loaded_torch(), tensor, values=values) if deep else ():
        yield from observe_parts(inner, category, f"{name}.{part}", deep - 1)


def address_of(tensor: Any) -> tuple[int, int, int] | None:
    """Return the CUDA ordinal, address and bytes of a tensor's storage.

    None if it is on no card.
    """
    return locate_storage(loaded_torch(), tensor)


def without_torch_function() -> AbstractContextManager[Any]:
    """Disable __torch_function__ of subclasses and modes during a read."""
    torch: Any = loaded_torch()
    return nullcontext() if torch is None else torch._C.DisableTorchFunction()  # noqa: SLF001


def gradient_of(tensor: Any) -> Any | None:
    """Return a leaf's gradient; None if it has none.

    None for any tensor that is not a leaf. The tensor must be this thread's own.
    """
    return _read(tensor, "grad") if _read(tensor, "is_leaf") else None


def is_made(tensor: Any) -> bool:
    """Return whether a graph computed a tensor."""
    return _read(tensor, "grad_fn") is not None


def requires_grad(tensor: Any) -> bool:
    """Return whether a tensor requires a gradient.

    True for a wrapper that cannot be read.
    """
    return bool(_read(tensor, "requires_grad", otherwise=True))


def is_wrapped(tensor: Any) -> bool:
    """Return whether a tensor is the wrapper of a torch.func transform.

    Such a wrapper ends with the transform's call.
    """
    return unwrapped(loaded_torch(), tensor) is not tensor


def version_of(tensor: Any) -> int | None:
    """Return how often a tensor was changed in place.

    None for a tensor of inference mode, which has no counter.
    """
    version: int | None = _read(tensor, "_version")
    return version


def _read(tensor: Any, attribute: str, otherwise: Any = None) -> Any:
    """Read a tensor's attribute through torch.Tensor's own descriptor.

    A subclass's own property may do anything.
    """
    torch: Any = loaded_torch()
    try:
        return getattr(torch.Tensor, attribute).__get__(tensor)
    except Exception as err:  # noqa: BLE001 - a wrapper without attributes
        reraise_if_from_signal(err)
        return otherwise


def storages_of_module(module: Any, tree: ModuleTree | None = None) -> Sequence[ObservedStorage]:
    """Return the weights and buffers of a module, tied ones once.

    Their names are relative to the module's own.

    Args:
        module: The module.
        tree: Its tree as it is now; None to read it.
    """
    tree = tree or tree_of(module)
    registry = active_registry()
    kind = None if registry is None else registry.kind
    key = "of_module", kind, weight_parts.trained_weights(tree)
    seen = tree.remembered.get(key)
    if seen is None:
        seen = list(_of_tree(tree))
        if tree.is_plain:
            tree.remembered[key] = seen
    elif registry is not None:
        registry.register_tree(tree)
    return seen


def _of_tree(tree: ModuleTree) -> Iterator[ObservedStorage]:
    parts = weight_parts.parts_of_weights(tree)
    for path, tensor, parameter in weight_parts.constants_of_weights(tree):
        for seen in observe_parts(tensor, Category.WEIGHTS, f".{path}"):
            yield seen._replace(part=parts.get(id(parameter), ""))
    for category, members in (
        (Category.WEIGHTS, tree.named_parameters()),
        (Category.BUFFERS, tree.named_buffers()),
    ):
        found = (
            seen._replace(part=parts.get(id(tensor), ""))
            for name, tensor in members
            for seen in observe_parts(tensor, category, f".{name}")
        )
        yield from by_storage(found)


def by_storage(found: Iterable[ObservedStorage | None]) -> Iterator[ObservedStorage]:
    """Merge tensors that share a storage under their common name.

    The weights of a recurrent layer share one storage.
    """
    together: dict[tuple[int, int], list[ObservedStorage]] = {}
    for seen in found:
        if seen is not None:
            together.setdefault(seen[:2], []).append(seen)
    for first, *others in together.values():
        if not others:
            yield first
            continue
        paths = [without_shape(seen.name) for seen in (first, *others) if seen.of is first.of]
        yield first._replace(name=f"{common_path(paths)}.* of {len(others) + 1} tensors")


def gradients_of_module(module: Any) -> Iterator[ObservedStorage]:
    """Yield the gradients of a module's parameters."""
    for member, parameter in named_parameters(module):
        gradient = gradient_of(parameter)
        if gradient is not None:
            yield from observe_parts(gradient, Category.GRADIENTS, f".{member}.grad")


def inputs_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[ObservedStorage]:
    """Yield the tensors given to a module call that no graph computed.

    Parameters are omitted.
    """
    for name, tensor in _given(args, kwargs):
        if not is_made(tensor) and not is_parameter(tensor):
            yield from observe_parts(tensor, Category.INPUTS, f"input {name}")


def is_on_host(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    of_host: bool = False,
    in_forward: bool = True,
) -> bool:
    """Return whether a module call involves no tracked tensor.

    Then it is no phase: the module receives no tracked tensor and owns none.

    Examples are transforms of data sets, a blur with a kernel of its own, and a model that measures
    its strides before it is moved. These cases differ:

    - A module whose `forward` was replaced does not count: offloading code does that, to move the
      inputs.
    - A criterion on the host counts: it owns nothing, and a graph computed its inputs. But if no
      forward has begun (`in_forward`), it is a layer of a model on the host, and does not count.
    - If the host itself is recorded (`of_host`), only a module that owns nothing counts, such as a
      transform.
    """
    moves, owns = "forward" in own_attributes(module), False
    for tensor in tensors_inside(module):
        owns = True
        if of_host or moves or not _on_host(tensor):
            return False
    return all(
        address_of(tensor) is None and (owns or not in_forward or not is_made(tensor))
        for _, tensor in _given(args, kwargs)
    )


def _given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a call is given, each with its name there."""
    named = [*((f"args[{i}]", a) for i, a in enumerate(args)), *kwargs.items()]
    plain: Any = cast("Any", loaded_torch()).Tensor
    if all(type(value) is plain for _, value in named):  # as in most calls
        return iter(named[:MAX_OF_CALL])
    return reachable_tensors(named, Budget(MAX_OF_CALL))


def _on_host(tensor: Any) -> bool:
    """Return whether a tensor is in host memory that is not tracked."""
    device = _read(tensor, "device")
    return device is not None and device.type == "cpu" and address_of(tensor) is None


class NameCallbacks(NamedTuple):
    """Callbacks for a search through the notebook's names.

    Attributes:
        met: As for `reachable_tensors`.
        member: Returns the module that has a tensor; its gradient then has a better name.
        call: Called with each name and its tensor.
        module: Called with each path to a module.
        made: Called with every tensor that has a graph.
    """

    met: Callable[[str, Any], None] | None = None
    member: Member = lambda _: None
    call: Callable[[str, Any], None] | None = None
    module: Callable[[str, Any], None] | None = None
    made: Callable[[Any], None] | None = None


def in_namespace(
    namespace: Mapping[str, Any],
    names: NameCallbacks = NameCallbacks(),  # noqa: B008 - it is immutable
) -> Iterator[ObservedStorage]:
    """Yield the tensors that the notebook's names lead to, and gradients."""
    return _named_tensors(
        reachable_tensors(_user_entries(namespace), None, names.met, names.module), names
    )


def in_frames(
    frames: Sequence[tuple[str, Mapping[str, Any]]],
    names: NameCallbacks = NameCallbacks(),  # noqa: B008 - it never changes
) -> Iterator[ObservedStorage]:
    """Yield the tensors that the variables of running functions lead to.

    A name is, for example, `local x of train()`.

    Args:
        frames: The suffix of the names (` of train()`), and the variables; innermost first.
        names: The callbacks.
    """
    found: list[list[ObservedStorage]] = []
    shares = Budget(MAX_OF_LOOP).shares(len(frames))
    for (where, variables), share in zip(frames, shares, strict=True):
        before = LOCAL if where else ""
        named = [(f"{before}{n}", v) for n, v in _user_entries(variables)]
        led = partial(with_place, names.module, where) if names.module is not None else None
        found.append(
            list(_named_tensors(reachable_tensors(named, share, names.met, led), names, where))
        )
        if led is not None and share.left <= 0:  # a library's trainer leads to thousands
            for name, module in modules_in(variables):
                led(f"{before}{name}", module)
    # The last name is used: views come before whole storages, outer and longer names before others.
    every = chain.from_iterable(map(reversed, reversed(found)))
    yield from sorted(every, key=lambda one: not one.name.endswith(VIEW))


def _named_tensors(
    found: Iterable[tuple[str, Any]], names: NameCallbacks, where: str = ""
) -> Iterator[ObservedStorage]:
    for name, tensor in found:
        if names.made is not None and is_made(tensor):
            names.made(tensor)
        if names.call is not None:
            names.call(f"{name}{where}", tensor)
        own = is_parameter(tensor) and names.member(tensor) is None  # no module has it
        kind = Category.WEIGHTS if own else Category.USER_TENSORS
        for seen in observe_parts(tensor, kind, f"{name}{where}"):
            yield seen._replace(part=LOGITS) if is_logits_path(name) else seen
        gradient = gradient_of(tensor)
        if gradient is not None and names.member(tensor) is None:
            yield from observe_parts(gradient, Category.GRADIENTS, f"{name}.grad{where}")


def modules_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the notebook's modules, each with its name."""
    return ((n, v) for n, v in _user_entries(namespace) if is_module(v))


def optimizers_in(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the notebook's optimizers, each with its name."""
    return ((n, v) for n, v in _user_entries(namespace) if is_optimizer(v))


def _user_entries(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries that may be the user's own.

    Of IPython's names for a result only `Out` is used.
    """
    results = names.get("Out")
    aliases = {"_oh", "_", "__", "___"} if type(results) is dict else set()
    for name, value in leading_names(names):
        if type(name) is not str or (name.startswith("__") and name.endswith("__")):
            continue
        if aliases and (name in aliases or (name[:1] == "_" and name[1:].isdecimal())):
            continue
        yield name, value
