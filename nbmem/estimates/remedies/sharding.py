"""FSDP2 on a program of one card: ZeRO-3, ZeRO-2 and HSDP.

Weights, gradients and the optimizer's state are cut over the cards.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from nbmem.estimates.remedies.blocks import repeated_blocks, written
from nbmem.estimates.remedies.parallel import Parallel, in_host, parameters_of

if TYPE_CHECKING:
    from nbmem.estimates.programs.source_edits import Edit
    from nbmem.virtual.cards import Card

_IMPORT = "from torch.distributed.fsdp import fully_shard"


class Sharded(Parallel):
    """ZeRO-3: the weights of a block are whole only while it runs.

    Attributes:
        options: What `fully_shard` is called with, as it is written.
    """

    key = "zero3"
    title = "FSDP2 (ZeRO-3)"
    price = "the weights are gathered twice a step, for forward and for backward"
    imports = _IMPORT
    options: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self._lines = ""
        self._bytes = 0
        self._units = 0
        self._at_optimizer = False

    def before_optimizer(self, params: Any) -> Any:
        """Shard the model of these parameters.

        If it is on the host, its lines go before the optimizer.
        """
        given, done = list(params), len(self._done)
        on_host = not all(p.is_cuda for p in parameters_of(given))
        given = super().before_optimizer(given)
        self._at_optimizer = self._at_optimizer or (on_host and len(self._done) > done)
        return given

    def moving(self, module: Any) -> None:
        """Shard a model before it is moved: it is never whole on a card."""
        if any(p.requires_grad for p in module.parameters()):
            self._with_optimizers(module)

    def spread(self, model: Any) -> None:
        """Shard a model and record its bytes."""
        self._bytes += sum(p.numel() * p.element_size() for p in model.parameters())
        self.cut(model)

    def cut(self, model: Any) -> None:
        """Shard the model's blocks, then the rest of it."""
        options = self.settings()
        blocks = repeated_blocks(model)
        self._lines = self.written(model, blocks)
        for unit in (*blocks, model):
            cut_unit(unit, options)
        self._units += len(blocks)
        self.applied += 1

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `fully_shard`."""
        return {}

    def written(self, model: Any, blocks: Sequence[Any]) -> str:
        """Return the lines that shard a model."""
        own, more = self.own.model, self.options
        found = [f"fully_shard({own}{more})"]
        if blocks:
            head = f"for block in {written(own, model, blocks)}:"
            found = [head, f"    fully_shard(block{more})", *found]
        return "\n".join(found)

    def price_of(self, card: Card, steps: int) -> str:
        """Describe the cost, with the host memory that it takes.

        A note is added if the whole model is one unit.
        """
        alone = "" if self._units else (
            "; no repeated blocks were found, so the whole model is one unit and is gathered whole"
        )  # fmt: skip
        return f"{self.price}; {in_host(self._bytes)}{alone}"

    def lines(self) -> str:
        """Return the lines that shard the model."""
        return self._lines

    def put(self, edit: Edit, card: Card) -> bool:
        """Insert the lines at the top, and where the model is sharded.

        That is before the model is moved to the card, or before its optimizer is made.
        """
        place = edit.insert_before_optimizer if self._at_optimizer else edit.insert_before_move
        return edit.insert_at_top(self.joining()) and place(self.lines())


class ShardedGradients(Sharded):
    """ZeRO-2: gathered weights stay until backward has used them."""

    key = "zero2"
    title = "FSDP2, reshard off (ZeRO-2)"
    price = "the weights are gathered once a step, and stay whole until backward has used them"
    options = ", reshard_after_forward=False"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `fully_shard`."""
        return {"reshard_after_forward": False}


class Hybrid(Sharded):
    """HSDP: shards over a machine's cards, replicas between machines."""

    key = "hsdp"
    title = "HSDP"
    price = (
        "cut over the cards of a machine, so weights are gathered over its fast links; between "
        "machines one part's gradients are all-reduced each step"
    )
    imports = f"{_IMPORT}\nfrom torch.distributed.device_mesh import init_device_mesh"
    options = ", mesh=mesh"

    def __init__(self) -> None:
        super().__init__()
        self._mesh: Any = None

    @classmethod
    def unfit(cls, world: int, local: int) -> str | None:
        """Return why it does not suit a single machine, or None."""
        return "All cards are in one machine: it would be FSDP2." if world == local else None

    def prepare(self) -> None:
        """Join the world and create a mesh of machines and their cards."""
        from torch.distributed.device_mesh import init_device_mesh

        super().prepare()
        names = ("replicate", "shard")
        self._mesh = init_device_mesh("cuda", self.sizes, mesh_dim_names=names)

    @property
    def sizes(self) -> tuple[int, int]:
        """Machines, and cards of each."""
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return int(os.environ["WORLD_SIZE"]) // local, local

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments of `fully_shard`."""
        return {"mesh": self._mesh}

    def lines(self) -> str:
        """Return the lines that create the mesh and shard the model."""
        names = '("replicate", "shard")'
        mesh = f'mesh = init_device_mesh("cuda", {self.sizes}, mesh_dim_names={names})'
        return f"{mesh}\n{super().lines()}"


def cut_unit(unit: Any, options: dict[str, Any]) -> None:
    """Shard a module and free its old whole parameters on the card.

    They are freed even if something still refers to them.
    """
    from torch.distributed.fsdp import fully_shard

    before = list(unit.parameters())
    fully_shard(unit, **options)
    kept = {id(p) for p in unit.parameters()}
    for old in before:
        # The edited program makes its optimizer later, of the new parameters.
        if id(old) not in kept and old.is_cuda and not hasattr(old, "device_mesh"):
            old.untyped_storage().resize_(0)
