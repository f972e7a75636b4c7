"""Remedies that make saved activations smaller or move them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbmem.core.interconnect import link_of
from nbmem.core.session.tensor_names import with_article
from nbmem.core.units import format_bytes
from nbmem.estimates.remedies.base import Remedy, SavingsModel
from nbmem.virtual.arch import arch_of

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.estimates.programs.user_names import ProgramNames
    from nbmem.virtual.cards import Card


class _ForwardContext(Remedy):
    """A context that is open from the outermost forward until backward."""

    def __init__(self) -> None:
        super().__init__()
        self._open: Any = None

    def context(self, module: Any) -> Any:
        """Return a new context, or None where it would do nothing."""
        raise NotImplementedError

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Open the context; reopen it after a forward without a backward."""
        self.finish()
        context = self.context(module)
        if context is not None:
            context.__enter__()
            self._open = context
            self.applied += 1
        return args, kwargs

    def before_backward(self) -> None:
        """Close the context: the loss has been computed."""
        self.finish()

    def finish(self) -> None:
        """Close the context if it is open."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.__exit__(None, None, None)


class Autocast(_ForwardContext):
    """Autocast to bfloat16, on cards before Ampere to float16."""

    key = "autocast"
    title = "autocast"
    price = "bfloat16: 7 bits of mantissa instead of 23 in matrix products and convolutions; faster"
    not_applicable = "No module is called in it."
    acts = SavingsModel(passing=0.4, waiting=0.45, inputs=0.0)

    def context(self, module: Any) -> Any:
        """Return an autocast, unless one is active or nothing is float32."""
        import torch

        if torch.is_autocast_enabled("cuda"):
            self.refuse("The program uses autocast already.")
            return None
        if not any(p.dtype is torch.float32 for p in module.parameters()):
            self.refuse("The model has no float32 weights to cast.")
            return None
        small = arch_of(torch.cuda.get_device_capability()).bfloat16
        return torch.autocast("cuda", torch.bfloat16 if small else torch.float16)

    def price_of(self, card: Card, steps: int) -> str:
        """Return the price; without bfloat16 units it names loss scaling."""
        del steps
        if card.arch.bfloat16:
            return self.price
        return (
            f"float16, for {with_article(card.name)} has no bfloat16 units: its range is small, "
            "so the loss is scaled; faster"
        )

    def code_of(self, card: Card) -> str:
        """Return the forward in autocast, with a GradScaler for float16."""
        own = self.own
        if card.arch.bfloat16:
            return _with(_BFLOAT16, own)
        return (
            f"{_SCALER}  # once, before the loop\n{_with(_FLOAT16, own)}\n"
            f"scaler.scale({own.loss}).backward()\n"
            f"scaler.step({own.optimizer}); scaler.update()"
        )

    def put(self, edit: Edit, card: Card) -> bool:
        """Wrap the forward; for float16, insert a GradScaler, too."""
        own = self.own
        if card.arch.bfloat16:
            return edit.wrap_forward(_BFLOAT16)
        return (
            edit.wrap_forward(_FLOAT16, f"scaler.scale({own.loss}).backward()")
            and edit.step_as(f"scaler.step({own.optimizer})\nscaler.update()")
            and edit.insert_after_model(_SCALER)
        )


_BFLOAT16 = 'torch.autocast("cuda", torch.bfloat16)'
_FLOAT16 = 'torch.autocast("cuda", torch.float16)'
_SCALER = 'scaler = torch.amp.GradScaler("cuda")'
_OFFLOADED = "torch.autograd.graph.save_on_cpu(pin_memory=True)"


def _with(context: str, own: ProgramNames) -> str:
    """Return the program's own forward lines inside a context."""
    return f"with {context}:\n" + "\n".join(f"    {line}" for line in own.forward)


class Offload(_ForwardContext):
    """Offload of saved tensors to the host's memory."""

    key = "offload"
    title = "host offload"
    price = "copies every saved activation to the host and back in each step"
    not_applicable = "Nothing is saved for backward."
    acts = SavingsModel(passing=0.0, waiting=0.95, inputs=0.0)

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0

    def context(self, module: Any) -> Any:
        """Return torch's save_on_cpu hooks with a count of the bytes moved."""
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

    def code_of(self, card: Card) -> str:
        """Return the forward inside save_on_cpu."""
        return _with(_OFFLOADED, self.own)

    def put(self, edit: Edit, card: Card) -> bool:
        """Wrap the forward in save_on_cpu."""
        return edit.wrap_forward(_OFFLOADED)

    def price_of(self, card: Card, steps: int) -> str:
        """Return the bytes that a step moves and the least time of that."""
        link = link_of(card.capability)
        if not self._bytes or link is None:
            return self.price
        each = self._bytes // max(steps, 1)
        return (
            f"copies {format_bytes(each)} to the host and back in each step: "
            f"{2 * each / link.rate:,.1f} s over {link.name}, and as much host memory"
        )


class InPlace(Remedy):
    """Activation functions that overwrite their input."""

    key = "inplace"
    title = "inplace=True"
    price = "none, where autograd allows it; it raises where it does not"
    not_applicable = "The model has no activation module with inplace=False."
    acts = SavingsModel(passing=0.0, waiting=0.2)

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, None] = {}

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Set `inplace=True` on the model's activation modules."""
        for layer in _not_in_place(module):
            layer.inplace = True
            self.applied += 1
            self._kinds[type(layer).__name__] = None
        return args, kwargs

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether no model has an activation with inplace=False."""
        return not any(_not_in_place(model) for model in models)

    def code_of(self, card: Card) -> str:
        """Return the loop that sets `inplace=True`."""
        kinds = ", ".join(f"torch.nn.{name}" for name in self._kinds)
        return (
            f"for layer in {self.own.model}.modules():\n"
            f"    if isinstance(layer, ({kinds},)):\n        layer.inplace = True"
        )

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the loop after the model is made."""
        return edit.insert_after_model(self.code_of(card))


def _not_in_place(model: Any) -> list[Any]:
    return [
        layer
        for layer in model.modules()
        if getattr(layer, "inplace", None) is False and "Dropout" not in type(layer).__name__
    ]


class ChannelsLast(Remedy):
    """Convolution models and images in channels_last memory format."""

    key = "channels_last"
    title = "channels_last"
    price = "none; faster with tensor cores"
    not_applicable = "The model has no two-dimensional convolution."
    acts = SavingsModel(passing=0.0, waiting=0.0, inputs=0.0)

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the model once, and its inputs at each call."""
        import torch

        if not _has_pictures(module):
            return args, kwargs
        if not self.applied:
            module.to(memory_format=torch.channels_last)
        self.applied += 1

        # In the tensor itself: `x = x.to(...)` in the program would release the one before.
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() == 4 and value.grad_fn is None:
                value.data = value.data.to(memory_format=torch.channels_last)
        return args, kwargs

    def code_of(self, card: Card) -> str:
        """Return the lines that convert the model and each batch."""
        model = self.own.model
        return (
            f"{model} = {model}.to(memory_format=torch.channels_last)\n"
            "x = x.to(memory_format=torch.channels_last)"
        )

    @classmethod
    def idle(cls, models: Iterable[Any], optimizers: Iterable[Any]) -> bool:
        """Return whether no model has a parameter of four dimensions."""
        return not any(_has_pictures(model) for model in models)


def _has_pictures(model: Any) -> bool:
    return any(p.dim() == 4 for p in model.parameters())
