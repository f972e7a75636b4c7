"""Tensor parallelism on a program of one card, with FSDP2.

Layers that belong together are cut, the first by columns and the last by rows. The model declares
them (transformers' plans), or its structure shows them: Linears into a wider layer, and one back.
Attention without a plan stays whole, since its forward counts heads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nbmem.estimates.remedies.parallel import in_host
from nbmem.estimates.remedies.sharding import Sharded

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

LARGEST = 8
"""Cards that work on one batch at most: more are seldom linked fast enough."""
_STYLES = {
    "colwise": "ColwiseParallel()",
    "rowwise": "RowwiseParallel()",
    "colwise_rep": "ColwiseParallel(output_layouts=Replicate())",
    "colwise_gather_output": "ColwiseParallel(output_layouts=Replicate())",
}
"""transformers' names, as torch's styles."""
_IMPORTS = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module)"""
_BETWEEN = ("ReLU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid", "ELU", "LeakyReLU", "Hardswish")


class TensorParallel(Sharded):
    """Tensor parallelism within a machine, FSDP2 over the rest."""

    key = "tp"
    title = "tensor parallel"
    imports = _IMPORTS
    options = ', mesh=mesh["dp"]'

    def __init__(self) -> None:
        super().__init__()
        self._plan: dict[str, str] = {}
        self._degree = 1
        self._mesh: Any = None

    def cut(self, model: Any) -> None:
        """Parallelize the layers over one batch's cards, then shard the rest.

        FSDP2 shards everything over the batches.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = declared_plan(model) or inferred_plan(model)
        strange = sorted({style for style in plan.values() if style not in _STYLES})
        if strange:
            self.refuse(f"Its plan has styles that torch has not ({', '.join(strange)}).")
            return
        if not plan:
            self.refuse(
                "No layers of the model could be told that can be cut: it has no plan, and no "
                "Linears into a wider layer and back in one module."
            )
            return
        degree = _degree(model, plan)
        if degree < 2:
            self.refuse("No number of cards divides the layers that could be cut.")
            return
        world = int(os.environ["WORLD_SIZE"])
        made = {
            "colwise": ColwiseParallel,
            "rowwise": RowwiseParallel,
            "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
            "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        }
        self._plan, self._degree = plan, degree
        self._mesh = init_device_mesh(
            "cuda", (world // degree, degree), mesh_dim_names=("dp", "tp")
        )
        styles = {name: made[style]() for name, style in plan.items()}
        parallelize_module(model, self._mesh["tp"], styles)
        if world > degree:
            super().cut(model)
        else:
            self._lines = self.written(model, ())
            self.applied += 1

    def made_optimizer(self, optimizer: Any) -> None:
        """Turn foreach and fused off if all cards work on one batch.

        torch mixes no cut and whole parameters in a list.
        """
        super().made_optimizer(optimizer)
        if self._alone:
            for group in (optimizer.defaults, *optimizer.param_groups):
                group.update({name: False for name in ("foreach", "fused") if name in group})

    @property
    def _alone(self) -> bool:
        """True if all cards work on one batch.

        Some parameters are whole on each of them then.
        """
        return 1 < self._degree == int(os.environ["WORLD_SIZE"])

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines, and `foreach=False` if all cards share a batch."""
        return super().put(edit, card) and (
            not self._alone or edit.with_keyword("foreach", "False")
        )

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `fully_shard`."""
        return {"mesh": self._mesh["dp"]}

    @property
    def called(self) -> str:
        """The title with the degree."""
        world = int(os.environ["WORLD_SIZE"])
        rest = f" x FSDP2 of {world // self._degree}" if world > self._degree else ""
        return f"TP of {self._degree}{rest}" if self._degree > 1 else self.title

    def price_of(self, card: Card, steps: int) -> str:
        """Return the price with the effect on the batch."""
        return (
            f"{self._degree} cards work on one batch, so a step takes 1/{self._degree} of what it "
            "does with the others; each cut block is all-reduced in forward and in backward, while "
            f"all wait; {in_host(self._bytes)}"
        )

    def written(self, model: Any, blocks: Sequence[Any]) -> str:
        """Return the lines for the mesh, the cut layers and FSDP2."""
        world, own = int(os.environ["WORLD_SIZE"]), self.own.model
        plan = "".join(f'\n    "{name}": {_STYLES[style]},' for name, style in self._plan.items())
        sizes = (world // self._degree, self._degree)
        found = (
            f'mesh = init_device_mesh("cuda", {sizes}, mesh_dim_names=("dp", "tp"))\n'
            f'parallelize_module({own}, mesh["tp"], {{{plan}\n}})'
        )
        if world > self._degree:
            return f"{found}\n{super().written(model, blocks)}"
        return f"{found}\n# and foreach=False for the optimizer: torch mixes no cut and whole ones"


def declared_plan(model: Any) -> dict[str, str]:
    """Return the plan of a transformers model by module name, else empty.

    The names start at the model.
    """
    config = getattr(model, "config", None)
    within = getattr(config, "base_model_tp_plan", None) or {}
    prefix = getattr(model, "base_model_prefix", "")
    inside = f"{prefix}." if prefix and hasattr(model, prefix) else ""
    own = getattr(type(model), "_tp_plan", None) or {}
    names = [name for name, _ in model.named_modules()]
    found = {**{f"{inside}{name}": style for name, style in within.items()}, **own}
    return {k: style for k, style in found.items() if any(_means(k, name) for name in names)}


def inferred_plan(model: Any) -> dict[str, str]:
    """Find a plan in a model's structure.

    It has Linears into a wider layer and the one back, without a layer between that mixes features.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        inside = _pair(module)
        for child, style in inside.items():
            path = f"{name}.{child}" if name else child
            found[re.sub(r"(?<![^.])\d+(?=\.)", "*", path)] = style
    modules = dict(model.named_modules())
    fits = {k for k in found if all(_linear(m) for n, m in modules.items() if _means(k, n))}
    return found if fits == found.keys() else {}


def _pair(module: Any) -> dict[str, str]:
    from torch import nn

    linears = {n: m for n, m in module.named_children() if _linear(m)}
    if len(linears) < 2:
        return {}
    last = next(reversed(linears))
    down = linears.pop(last)
    wide, narrow = down.in_features, down.out_features
    fits = all((up.in_features, up.out_features) == (narrow, wide) for up in linears.values())
    if not fits or wide <= narrow:
        return {}
    if isinstance(module, nn.Sequential):
        children = dict(module.named_children())
        names = list(children)
        first = names.index(next(iter(linears)))
        between = [children[n] for n in names[first + 1 : names.index(last)]]
        if len(linears) > 1 or not all(_passes(m) for m in between):
            return {}
    return {**dict.fromkeys(linears, "colwise"), last: "rowwise"}


def _linear(module: Any) -> bool:
    from torch import nn

    return type(module) is nn.Linear


def _passes(module: Any) -> bool:
    """Return whether a module treats each element by itself."""
    return type(module).__name__ in {*_BETWEEN, "Dropout", "Identity"}


def _means(pattern: str, name: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(
        w in {"*", p} for p, w in zip(parts, wanted, strict=True)
    )


def _degree(model: Any, plan: dict[str, str]) -> int:
    """Return the most cards that divide the ranks and every cut layer.

    At most `LARGEST`, in one machine.
    """
    config = getattr(model, "config", None)
    heads = [getattr(config, n, None) for n in ("num_attention_heads", "num_key_value_heads")]
    sizes = [n for n in heads if isinstance(n, int) and any("attn" in k for k in plan)]
    for name, module in model.named_modules():
        for pattern, style in plan.items():
            if _means(pattern, name):
                rows = style == "rowwise"
                sizes.append(module.in_features if rows else module.out_features)
    local, world = (int(os.environ[n]) for n in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    numbers = [*sizes, local, world]
    return next(d for d in range(LARGEST, 0, -1) if all(size % d == 0 for size in numbers))
