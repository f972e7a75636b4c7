"""DataParallel on virtual cards.

These are the copies that torch's C++ makes between cards.

https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/cuda/comm.cpp
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import _utils
from torch.nn.parallel import _functions

from nbmem.virtual.devices import CUDA, is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.hardware.machine import Machine

    Tensors = Sequence[torch.Tensor]


NCCL = (
    "_nccl_reduce", "_nccl_all_reduce", "_nccl_broadcast", "_nccl_all_gather",
    "_nccl_reduce_scatter",
)  # fmt: skip
"""Collectives of torch.cuda.nccl: they work on tensors that exist."""


class CardCollectives:
    """Broadcast, scatter and gather between one machine's cards."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._copying: dict[int, Any] = {}

    def broadcast(self, tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        """Return a copy on every card; on its own card the tensor itself."""
        home = tensor.get_device()
        copies = {
            index: torch.empty_like(tensor, device=CUDA[index])
            for index in devices
            if index != home
        }
        self.communicate(tensor, *copies.values())
        for copy in copies.values():
            copy.copy_(tensor)
        return [copies.get(index, tensor) for index in devices]

    def broadcast_out(self, tensor: torch.Tensor, out: Tensors) -> list[torch.Tensor]:
        """Copy a tensor into given ones."""
        for copy in out:
            copy.copy_(tensor)
        return list(out)

    def broadcast_coalesced(
        self, tensors: Tensors, devices: Sequence[int], buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """Copy many tensors to each card through flat buffers.

        On other cards the copies stay parts of the buffers. The first card uses the tensors
        themselves.

        Raises:
            RuntimeError: A tensor is not on the first card.
        """
        if any(tensor.get_device() != devices[0] for tensor in tensors):
            raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
        copied: list[list[torch.Tensor]] = [[] for _ in devices]
        taken: list[torch.Tensor] = []
        for chunk in _utils._take_tensors(tensors, buffer_size):
            taken += chunk
            flat = self.broadcast(_utils._flatten_dense_tensors(chunk), devices)
            for copies, buffer in zip(copied[1:], flat[1:], strict=True):
                copies += [t.data for t in _utils._unflatten_dense_tensors(buffer, chunk)]
                del buffer
            del flat  # before the next one is made
        place = {id(tensor): at for at, tensor in enumerate(taken)}
        ordered = [[copies[place[id(t)]] for t in tensors] for copies in copied[1:]]
        return [list(tensors), *ordered]

    def scatter(
        self,
        tensor: torch.Tensor,
        devices: Sequence[int],
        sizes: Sequence[int] | None = None,
        dim: int = 0,
        streams: Sequence[Any] | None = None,
    ) -> list[torch.Tensor]:
        """Return a part for each card; a part already there is a view."""
        parts = list(tensor.split(list(sizes), dim) if sizes else tensor.chunk(len(devices), dim))
        for at, (part, index) in enumerate(zip(parts, devices, strict=False)):
            if index == tensor.get_device():
                continue
            stream = streams[at] if streams and at < len(streams) else None
            with torch.cuda.stream(stream):
                parts[at] = part.to(CUDA[index], non_blocking=True)
        return parts

    def scatter_out(
        self, tensor: torch.Tensor, out: Tensors, dim: int, streams: Any = None
    ) -> list[torch.Tensor]:
        """Copy the parts of a tensor into given ones."""
        del streams
        parts = tensor.split([part.size(dim) for part in out], dim)
        for part, source in zip(out, parts, strict=True):
            part.copy_(source)
        return list(out)

    def gather(self, tensors: Tensors, dim: int, destination: int | None = None) -> torch.Tensor:
        """Concatenate tensors on one card; destination -1 is the CPU."""
        first = tensors[0]
        size = list(first.size())
        size[dim] = sum(part.size(dim) for part in tensors)
        last = first.dim() == 4 and all(
            part.is_contiguous(memory_format=torch.channels_last) and not part.is_contiguous()
            for part in tensors
        )
        result = torch.empty(
            size,
            dtype=first.dtype,
            device="cpu" if destination == -1 else CUDA[self._machine.gpu(destination).index],
            memory_format=torch.channels_last if last else torch.contiguous_format,
        )
        return self.gather_out(tensors, result, dim)

    def gather_out(self, tensors: Tensors, out: torch.Tensor, dim: int) -> torch.Tensor:
        """Copy tensors into the parts of a given one."""
        for part, source in zip(
            out.split([part.size(dim) for part in tensors], dim), tensors, strict=True
        ):
            part.copy_(source)
        return out

    def communicate(self, *tensors: torch.Tensor) -> None:
        """Create NCCL's communicator on each card that holds a tensor.

        It stays from then on.
        """
        for tensor in tensors:
            if is_virtual(tensor):
                self._machine.of(tensor).workspaces.nccl()

    def copying_stream(self, index: int) -> Any:
        """Return the stream on which a card receives inputs from the CPU."""
        if index not in self._copying:
            self._copying[index] = torch.cuda.Stream(index)
        return self._copying[index]


def data_parallel_patches(machine: Machine) -> list[Patch]:
    """Return patches of the C functions and of the node Scatter."""
    cards = CardCollectives(machine)

    def scatter(ctx: Any, targets: Any, sizes: Any, dim: int, source: torch.Tensor) -> Any:
        # torch's own function gets a stream of a real card.
        indices = [machine.gpu(target).index for target in targets]
        from_cpu = source.device.type == "cpu"
        ctx.dim, ctx.input_device = dim, -1 if from_cpu else source.get_device()
        streams = [cards.copying_stream(index) for index in indices] if from_cpu else None
        parts = tuple(cards.scatter(source, indices, sizes, dim, streams))
        for part, index, stream in zip(parts, indices, streams or (), strict=False):
            with torch.cuda.device(index):
                torch.cuda.current_stream().wait_stream(stream)
                part.record_stream(torch.cuda.current_stream())
        return parts

    functions: dict[str, Any] = {
        "_broadcast": cards.broadcast,
        "_broadcast_out": cards.broadcast_out,
        "_broadcast_coalesced": cards.broadcast_coalesced,
        "_scatter": cards.scatter,
        "_scatter_out": cards.scatter_out,
        "_gather": cards.gather,
        "_gather_out": cards.gather_out,
        **dict.fromkeys(NCCL, lambda inputs, *_rest: cards.communicate(*inputs)),
    }
    return [
        *patches_of(torch._C, functions),
        Patch(_functions.Scatter, "forward", staticmethod(scatter)),
    ]
