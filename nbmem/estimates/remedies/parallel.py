"""Data parallelism on a program of one card: DDP and ZeRO-1.

The program was written for one card. A remedy does the same as its lines of code would: before the
model is moved, or where its optimizer is made. Each card then takes the program's batch.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.core.units import format_bytes
from nbmem.estimates.remedies.base import Remedy
from nbmem.estimates.remedies.optimizers import given, name_of

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

_JOIN = """\
import os
import torch
import torch.distributed as dist
{imports}
local = int(os.environ["LOCAL_RANK"])  # started with torchrun
torch.cuda.set_device(local)
dist.init_process_group("nccl")
"""


class Parallel(Remedy):
    """A parallelism that trains one program on many cards.

    Attributes:
        imports: Lines of code that its own lines need.
    """

    group = "cards"
    not_applicable = "The program makes no model that it trains by calling it."
    imports: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self._done: dict[int, Any] = {}
        self._optimizers: list[Any] = []

    @classmethod
    def unfit(cls, world: int, local: int) -> str | None:
        """Return why it does not suit a world, or None.

        A world has so many ranks, and so many of them in a machine.
        """
        del world, local
        return None

    def prepare(self) -> None:
        """Join the world, as the lines at the top do."""
        import torch

        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group("nccl")

    def spread(self, model: Any) -> None:
        """Spread a model over the ranks, as the lines do."""
        raise NotImplementedError

    def lines(self) -> str:
        """Return the lines that spread the model after it is made."""
        raise NotImplementedError

    def before_optimizer(self, params: Any) -> Any:
        """Spread the model of these parameters; return its new parameters."""
        items = list(params)
        for model in _roots({id(p) for p in parameters_of(items)}):
            items = self._once(model, items)
        return items

    def outermost(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Spread a training model at its call, if it is not spread yet.

        That is one that was trained already when the program began.
        """
        import torch

        if torch.is_grad_enabled() and module.training and _trained(module):
            self._with_optimizers(module)
        return args, kwargs

    def made_optimizer(self, optimizer: Any) -> None:
        """Record an optimizer: its parameters may be replaced later."""
        self._optimizers.append(optimizer)

    def _with_optimizers(self, model: Any) -> None:
        """Spread a model and replace parameters in existing optimizers."""
        groups = self._once(model, [g for o in self._optimizers for g in o.param_groups])
        for optimizer in self._optimizers:
            count = len(optimizer.param_groups)
            optimizer.param_groups[:], groups = groups[:count], groups[count:]

    def _once(self, model: Any, params: list[Any]) -> list[Any]:
        """Spread a model if it is not spread yet; return the new parameters."""
        if id(model) in self._done:
            return params
        self._done[id(model)] = model
        names = {id(p): name for name, p in model.named_parameters()}
        self.spread(model)
        now = dict(model.named_parameters())
        if not now.keys() >= set(names.values()):
            return params
        return [_replaced(item, {old: now[name] for old, name in names.items()}) for item in params]

    def code_of(self, card: Card) -> str:
        """Return all lines: at the top of the program and after the model."""
        return f"{self.joining()}\n{self.lines()}"

    def joining(self) -> str:
        """Return the lines at the top of the program."""
        return _JOIN.format(imports=self.imports)

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines at the top and after the model."""
        return edit.insert_at_top(self.joining()) and edit.insert_before_optimizer(self.lines())


class DataParallel(Parallel):
    """DDP: each card has the whole model."""

    key = "ddp"
    title = "DDP"
    price = (
        "each card holds the whole model, its gradients and the optimizer's state; the gradients "
        "are all-reduced each step, while backward runs"
    )
    imports = "from torch.nn.parallel import DistributedDataParallel as DDP"

    def __init__(self) -> None:
        super().__init__()
        self._wrappers: dict[int, Any] = {}
        self._on_host = False

    def before_optimizer(self, params: Any) -> Any:
        """Wrap the model if it is on the card; DDP takes none on the host."""
        items = list(params)
        self._on_host = not all(p.is_cuda for p in parameters_of(items))
        return items if self._on_host else super().before_optimizer(items)

    def spread(self, model: Any) -> None:
        """Wrap a model in DDP."""
        from torch.nn.parallel import DistributedDataParallel

        self._wrappers[id(model)] = DistributedDataParallel(
            model, device_ids=[int(os.environ["LOCAL_RANK"])]
        )

    def replacement(self, module: Any) -> Any:
        """Return the DDP wrapper to call in the place of its module."""
        wrapper = self._wrappers.get(id(module))
        self.applied += wrapper is not None
        return module if wrapper is None else wrapper

    def lines(self) -> str:
        """Return the line that wraps the model."""
        line = f"{self.own.model} = DDP({self.own.model}, device_ids=[local])"
        return f"{line}  # behind the line that moves it to the card" if self._on_host else line

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines at the top and after the model.

        Return False where the optimizer is made before the move: the position is then unknown.
        """
        return not self._on_host and super().put(edit, card)


class ZeroOptimizer(DataParallel):
    """ZeRO-1: each card steps a part of the parameters."""

    key = "zero1"
    title = "ZeRO-1"
    price = (
        "as DDP, with a part of the optimizer's state on each card; after the step each sends the "
        "weights of its part to all others"
    )
    imports = (
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP"
    )

    def __init__(self) -> None:
        super().__init__()
        self._making = False
        self._fullest = 0
        self._line = ""

    def before_optimizer(self, params: Any) -> Any:
        """Wrap the model, unless a part's own optimizer is being made."""
        return params if self._making else super().before_optimizer(params)

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn the optimizer into a ZeroRedundancyOptimizer."""
        from torch.distributed.optim import ZeroRedundancyOptimizer

        if self._making or isinstance(optimizer, ZeroRedundancyOptimizer):
            return
        if next(parameters_of(optimizer.param_groups), None) is None:
            return  # it has no parameters: torch makes no empty optimizer
        super().made_optimizer(optimizer)
        self._making = True
        try:
            kind = type(optimizer)
            same = {"lr": optimizer.defaults["lr"], **given(optimizer)}
            parts = ZeroRedundancyOptimizer(optimizer.param_groups, kind, **same)
        finally:
            self._making = False
        sizes = [sum(p.numel() for g in part for p in g["params"]) for part in _parts(parts)]
        self._fullest = sizes.index(max(sizes))
        words = "".join(f", {name}={value!r}" for name, value in same.items())
        own = self.own
        self._line = (
            f"{own.optimizer} = ZeroRedundancyOptimizer("
            f"{own.model}.parameters(), {name_of(kind)}{words})"
        )
        optimizer.__class__ = ZeroRedundancyOptimizer
        optimizer.__dict__ = vars(parts)

    @property
    def fullest(self) -> int:
        """The rank with the largest part of the parameters.

        Parameters go to the ranks whole, the largest first: one may get more than the first.
        """
        return self._fullest

    def lines(self) -> str:
        """Return the lines that wrap the model and make the optimizer."""
        return f"{super().lines()}\n{self._line}"

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines at the top and replace the optimizer."""
        top = not self._on_host and edit.insert_at_top(self.joining())
        return top and edit.replace_optimizer(self.lines(), several=True)


def in_host(model_bytes: int) -> str:
    """Describe the host memory that ranks take to build whole models."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return (
        f"each rank builds the whole model in its machine's memory ({local} x "
        f"{format_bytes(model_bytes)}; the meta device would not)"
    )


def _parts(optimizer: Any) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = optimizer._partition_parameters()  # noqa: SLF001 - no other way to see them
    return found


def _trained(model: Any) -> bool:
    return any(p.requires_grad for p in model.parameters())


def parameters_of(params: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors among parameters, groups and named parameters."""
    import torch

    for item in params:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, dict):
            inside = item["params"]
            if not isinstance(inside, torch.Tensor):
                inside = item["params"] = list(inside)  # a generator is read once
            yield from parameters_of([inside] if isinstance(inside, torch.Tensor) else inside)
        else:
            yield item[1]  # a name and its parameter


def _replaced(item: Any, now: dict[int, Any]) -> Any:
    import torch

    if isinstance(item, torch.Tensor):
        return now.get(id(item), item)
    if isinstance(item, dict):
        inside = item["params"]
        several = not isinstance(inside, torch.Tensor)
        found = [_replaced(p, now) for p in inside] if several else _replaced(inside, now)
        return {**item, "params": found}
    return (item[0], now.get(id(item[1]), item[1]))


def _roots(wanted: set[int]) -> list[Any]:
    """Return the outermost modules that hold some of these parameters."""
    from torch import nn

    modules = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    inside = {id(child) for module in modules for child in module.children()}
    return [
        module
        for module in modules
        if id(module) not in inside and any(id(p) in wanted for p in module.parameters())
    ]
