"""Remedies for what forward keeps for backward: keep it smaller, elsewhere, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmem.core.units import format_bytes
from nbmem.estimates.remedies.base import Remedy

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card

PCIE = 25e9
"""Bytes per second that a PCIe 4.0 x16 slot carries one way in practice: 31.5 GB/s by the
standard, of which copies from pinned memory reach about four fifths."""


class _Around(Remedy):
    """A context that is open from the outermost forward until backward begins."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Any = None

    def context(self, module: Any) -> Any:
        """A new context, or None where it would do nothing."""
        raise NotImplementedError

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Open it, after a forward without a backward anew."""
        self.finish()
        context = self.context(module)
        if context is not None:
            context.__enter__()
            self._open = context
            self.applied += 1
        return args, kwargs

    def before_backward(self) -> None:
        """Close it: the loss has been computed."""
        self.finish()

    def finish(self) -> None:
        """Close it if it is open."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.__exit__(None, None, None)


class Autocast(_Around):
    """bfloat16 where it is safe."""

    key = "autocast"
    title = "autocast to bfloat16"
    price = "7 bits of mantissa instead of 23 in matrix products and convolutions; faster"
    code = 'with torch.autocast("cuda", torch.bfloat16):\n    loss = ...  # forward and loss'
    nothing = "No module is called in it."

    def context(self, module: Any) -> Any:
        """The autocast, unless there is one or nothing to cast."""
        import torch

        if torch.is_autocast_enabled("cuda"):
            self.refuse("The program uses autocast already.")
            return None
        if not any(p.dtype is torch.float32 for p in module.parameters()):
            self.refuse("The model has no float32 weights to cast.")
            return None
        return torch.autocast("cuda", torch.bfloat16)

    def price_of(self, card: Card, steps: int) -> str:
        """Cards before Ampere have no bfloat16 units."""
        del steps
        if card.capability >= (8, 0):
            return self.price
        return (
            f"a {card.name} has no bfloat16 units: use torch.float16 and a GradScaler, which takes "
            "as much memory and is faster there"
        )


class Offload(_Around):
    """Saved tensors wait in the host's memory."""

    key = "offload"
    title = "saved activations on the host"
    price = "copies every saved activation to the host and back in each step"
    code = (
        "with torch.autograd.graph.save_on_cpu(pin_memory=True):\n"
        "    loss = ...  # forward and loss"
    )
    nothing = "Nothing is saved for backward."

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0

    def context(self, module: Any) -> Any:
        """Torch's own hooks, counting what they move."""
        del module
        import torch

        if not torch.is_grad_enabled():
            return None
        hooks = torch.autograd.graph.save_on_cpu(pin_memory=False)
        pack = hooks.pack_hook

        def counted(tensor: Any) -> Any:
            self._bytes += tensor.nbytes if tensor.is_cuda else 0
            return pack(tensor)

        hooks.pack_hook = counted
        return hooks

    def price_of(self, card: Card, steps: int) -> str:
        """The bytes that a step moves, and how long that takes at least."""
        del card
        each = self._bytes // max(steps, 1)
        ms = 2 * each / PCIE * 1e3
        return (
            f"copies {format_bytes(each)} to the host and back in each step: "
            f"{ms:,.0f} ms at 25 GB/s, and as much host memory"
        )


class Checkpoint(Remedy):
    """Blocks keep their input only."""

    key = "checkpoint"
    title = "checkpoint the repeated blocks"
    price = "runs the blocks' forward again in backward: about a third more arithmetic"
    code = (
        "from torch.utils.checkpoint import checkpoint\n"
        "for block in blocks:  # in forward()\n"
        "    x = checkpoint(block, x, use_reentrant=False)"
    )
    nothing = "No module trains in it."

    def __init__(self) -> None:
        super().__init__()
        self._done: set[int] = set()

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wrap the blocks of a model that is seen for the first time."""
        import torch

        if id(module) not in self._done and module.training and torch.is_grad_enabled():
            self._done.add(id(module))
            self._wrap(module)
        return args, kwargs

    def _wrap(self, model: Any) -> None:
        if getattr(model, "is_gradient_checkpointing", False):
            self.refuse("The model checkpoints its blocks already.")
            return
        own = getattr(model, "gradient_checkpointing_enable", None)
        if own is not None and getattr(model, "supports_gradient_checkpointing", True):
            own(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.applied += 1
            return
        blocks = repeated_blocks(model)
        if not blocks:
            self.refuse("The model has no repeated blocks in a ModuleList or Sequential.")
        for block in blocks:
            block.forward = _checkpointed(block)
            self.applied += 1


def repeated_blocks(model: Any) -> list[Any]:
    """Children of lists and sequences that are of one class, have layers inside, and weights."""
    from torch import nn

    found: list[Any] = []
    for child in model.children():
        within = repeated_blocks(child) if not isinstance(child, _lists()) else None
        if within is not None:
            found += within
            continue
        found += _blocks_of(child)
    return found if not isinstance(model, (nn.Sequential, nn.ModuleList)) else _blocks_of(model)


def _blocks_of(container: Any) -> list[Any]:
    kinds = [type(child) for child in container.children()]
    found: list[Any] = []
    for child in container.children():
        inside = next(child.children(), None) is not None
        if inside and kinds.count(type(child)) > 1 and next(child.parameters(), None) is not None:
            found.append(child)
        else:
            found += repeated_blocks(child)
    return found


def _lists() -> tuple[type, ...]:
    from torch import nn

    return (nn.Sequential, nn.ModuleList)


def _checkpointed(block: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return again


class InPlace(Remedy):
    """Activation functions write over their input."""

    key = "inplace"
    title = "activation functions in place"
    price = "none, where autograd allows it; it raises where it does not"
    code = "nn.ReLU(inplace=True)"
    nothing = "The model has no activation module with inplace=False."

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn the switches of all of its activation modules."""
        for layer in module.modules():
            if getattr(layer, "inplace", None) is False and "Dropout" not in type(layer).__name__:
                layer.inplace = True
                self.applied += 1
        return args, kwargs


class ChannelsLast(Remedy):
    """Pictures with their channels innermost."""

    key = "channels_last"
    title = "channels_last"
    price = "none; faster with tensor cores"
    code = (
        "model = model.to(memory_format=torch.channels_last)\n"
        "x = x.to(memory_format=torch.channels_last)"
    )
    nothing = "The model has no two-dimensional convolution."

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Lay out the model, once, and its inputs."""
        import torch

        if not any(p.dim() == 4 for p in module.parameters()):
            return args, kwargs
        if not self.applied:
            module.to(memory_format=torch.channels_last)
        self.applied += 1

        def turned(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.dim() == 4:
                return value.to(memory_format=torch.channels_last)
            return value

        return tuple(map(turned, args)), {name: turned(v) for name, v in kwargs.items()}
