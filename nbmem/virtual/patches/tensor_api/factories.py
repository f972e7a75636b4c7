"""Factories of torch that make tensors on the card."""

from __future__ import annotations

from typing import Any

import torch
from torch import _C, overrides
from torch.utils import _device as default_devices

from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.patches.tensor_api.list_arguments import replace_tensors
from nbmem.virtual.patches.tensor_api.sparse_constructors import original_constructor
from nbmem.virtual.patches.tensor_api.transfers import card_device, is_card


def factory_patches() -> list[Patch]:
    """Return patches of factories that make tensors on the card.

    They build on the CPU and move the tensor: C++ would move it below every hook.
    """
    original_tensor, original_as_tensor, original_asarray = (
        torch.tensor,
        torch.as_tensor,
        torch.asarray,
    )

    def moved(make: Any, data: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        wish = kwargs.get("device")
        target = card_device(_default_device() if wish is None else wish)
        if wish is None and is_virtual(data) and make is not original_tensor:
            target = data.device
        if not is_card(target):
            if is_virtual(data) and target is not None:
                data = data.to(target)
            if not kwargs.pop("pin_memory", False):
                return make(data, **kwargs)
            needs_grad = kwargs.pop("requires_grad", False)
            return make(data, **kwargs).pin_memory().requires_grad_(needs_grad)
        needs_grad = kwargs.pop("requires_grad", False)
        dtype = kwargs.get("dtype")
        if is_virtual(data):
            copy = data.detach().to(target, dtype or data.dtype, copy=make is original_tensor)
            return copy.requires_grad_() if needs_grad else copy
        data, kwargs["device"] = _off_card(data), "cpu"
        kwargs.pop("pin_memory", None)
        fresh = make(data, **kwargs).to(target)
        return fresh.requires_grad_() if needs_grad else fresh

    def listed(make: Any, data: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        data, dtype = replace_tensors(data, kwargs.get("dtype"))
        if dtype is not None:
            kwargs["dtype"] = dtype
        return moved(make, data, kwargs)

    def tensor(data: Any, **kwargs: Any) -> torch.Tensor:
        return listed(original_tensor, data, kwargs)

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return listed(original_as_tensor, data, {"dtype": dtype, "device": device})

    def asarray(obj: Any, **kwargs: Any) -> torch.Tensor:
        return listed(original_asarray, obj, kwargs)

    names = {"tensor": tensor, "as_tensor": as_tensor, "asarray": asarray}
    # Before the patches: its cache must hold torch's own functions. It is not replaced itself, for
    # Dynamo follows what is cached, and guards that.
    default_devices._device_constructors()
    factories = [*patches_of(torch, names), *_integer_device_patches()]
    return [*factories, *_scripted(factories)]


def _default_device() -> torch.device | None:
    """Return the default device; None if none was set.

    `with torch.device(...)` or set_default_device sets it.
    """
    for mode in overrides._get_current_function_mode_stack():
        if isinstance(mode, default_devices.DeviceContext):
            return mode.device
    return None


NUMBERED = (
    "empty", "empty_strided", "zeros", "ones", "full", "arange", "linspace", "logspace", "eye",
    "rand",
    "randn", "randint", "randperm", "scalar_tensor", "zeros_like", "ones_like", "full_like",
    "empty_like", "rand_like", "randn_like", "randint_like", "hann_window", "hamming_window",
)  # fmt: skip


def _check_generator(generator: torch.Generator) -> None:
    """Refuse a CPU generator for numbers on a card.

    Raises:
        RuntimeError: The generator is on the CPU.
    """
    if generator.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def _integer_device_patches() -> list[Patch]:
    """Return patches that read `device=0` as the first card.

    Without a card torch cannot read a number: there is no accelerator that it could mean.
    """

    def taught(original_factory: Any) -> Any:
        def factory(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if type(kwargs.get("device")) is int:
                kwargs["device"] = card_device(kwargs["device"])
            generator = kwargs.get("generator")
            if generator is not None and is_card(card_device(kwargs.get("device"))):
                _check_generator(generator)
            return original_factory(*args, **kwargs)

        return factory

    original_parse = _C._nn._parse_to

    def parse(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (card_device(args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = card_device(kwargs["device"])
        return original_parse(*args, **kwargs)

    factories = {name: taught(getattr(torch, name)) for name in NUMBERED if hasattr(torch, name)}
    return [
        *patches_of(torch, factories),
        Patch(_C._nn, "_parse_to", parse),
        Patch(torch, "device", _numbered_device()),
    ]


def _scripted(factories: list[Patch]) -> list[Patch]:
    """Return patches that let torch.jit.script find patched functions.

    It compares torch's functions by identity, so a patched one is looked up as the original.
    """
    from torch.jit import _builtins, _recursive

    _builtins._get_builtin_table()  # made at the first question, of the functions that are there
    original_find = _builtins._find_builtin
    stands_for = {id(p.value): getattr(torch, p.name) for p in factories if p.target is torch}

    def find(function: Any) -> Any:
        return original_find(stands_for.get(id(function)) or original_constructor(function))

    return [Patch(module, "_find_builtin", find) for module in (_builtins, _recursive)]


def _numbered_device() -> Any:
    """Return a torch.device that reads `torch.device(0)` as a card, too.

    The devices that it makes are torch's own.
    """
    original = torch.device

    class DeviceType(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> torch.device:
            if len(args) == 1 and type(args[0]) is int and not kwargs:
                return original("cuda", args[0])
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    return DeviceType("device", (), {"__module__": "torch"})


def _off_card(data: Any) -> Any:
    """Copy a virtual tensor or a storage to the CPU; keep other data.

    A storage that is not on a card is returned itself.
    """
    on_card = is_virtual(data) or isinstance(data, torch.UntypedStorage)
    return data.cpu() if on_card else data  # a storage is returned itself if it is not on a card
