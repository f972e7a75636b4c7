"""Record what each layer of a model saves, returns and computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nbmem.core.errors import UsageError


class LayerWatch:
    """A recorder of each layer's saved tensors, outputs and FLOPs."""

    def __init__(self, model: Any) -> None:
        self.saved: dict[str, int] = {}
        self.output: dict[str, int] = {}
        self.forward_flops: dict[str, int] = {}
        self.backward_flops: dict[str, int] = {}
        self.notes: list[str] = []
        self._names = {module: name for name, module in model.named_modules()}
        self._inside: list[str] = []
        held = (*model.parameters(), *model.buffers())
        self._own = {_identity(t.untyped_storage()) for t in held}
        self._kept: dict[int, Any] = {}

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Record what modules save and return while they run forward."""
        import torch

        hooks = []
        for module in self._names:
            hooks.append(module.register_forward_pre_hook(self._enter))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda packed: packed):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, module: Any, _args: Any) -> None:
        self._inside.append(self._names[module])

    def _leave(self, module: Any, _args: Any, output: Any) -> None:
        self._inside.pop()
        name = self._names[module]
        self.output[name] = self.output.get(name, 0) + sum(t.nbytes for t in tensors(output))

    def _pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        key = _identity(storage)
        if tensor.is_cuda and key not in self._own and key not in self._kept:
            self._kept[key] = storage  # held: its identity must not be given again
            name = self._inside[-1] if self._inside else ""
            self.saved[name] = self.saved.get(name, 0) + storage.nbytes()
        return tensor


def _identity(storage: Any) -> int:
    key: int = storage._cdata  # noqa: SLF001 - torch's own key of a storage
    return key


def train(watch: LayerWatch, model: Any, given: Any) -> None:
    """Run a model forward and backward and record its layers.

    Raises:
        UsageError: It does not run on the input.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    args, kwargs = ((), given) if isinstance(given, dict) else (_tuple(given), {})
    with FlopCounterMode(display=False) as counter:
        try:
            with watch.forward():
                output = model(*args, **kwargs)
        except Exception as err:  # noqa: BLE001 - whatever the user's model raises
            raise UsageError(
                f"The model does not run on that input: {type(err).__name__}: {err}"
            ) from None
        watch.forward_flops = _flops(counter, model)
        losses = [t for t in tensors(output) if t.requires_grad]
        if not losses:
            watch.notes.append("Nothing is trained in it, so there is no backward.")
            return
        torch.autograd.backward([t.float().sum() for t in losses])
    both = _flops(counter, model)
    # torch's counter treats a layer that returns its input (a dropout of 0) as one that is
    # still in its backward: a layer without forward operators has no backward operators.
    ahead = watch.forward_flops
    watch.backward_flops = {name: n - ahead[name] for name, n in both.items() if ahead.get(name)}


def _flops(counter: Any, model: Any) -> dict[str, int]:
    """Return the FLOPs of each module with its children, by dotted name."""
    root = type(model).__name__
    found: dict[str, int] = {}
    for name, counts in counter.get_flop_counts().items():
        if name == "Global":
            continue
        plain = name.removeprefix(root).removeprefix(".")
        found[plain] = int(sum(counts.values()))
    return found


def on_card(value: Any) -> Any:
    """Return an input with its tensors moved to the card."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, (list, tuple)):
        return tuple(on_card(item) for item in value)
    if hasattr(value, "items"):
        return {name: on_card(item) for name, item in value.items()}
    return value


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors inside a value."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif hasattr(value, "items"):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def shape_of(value: Any) -> str:
    """Format the shapes of an input."""
    return ", ".join(f"({', '.join(map(str, t.shape))})" for t in tensors(value))
