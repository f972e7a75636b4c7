"""Gradient buckets of DistributedDataParallel's reducer.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/reducer.cpp
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

MIB = 1 << 20
BROADCAST = 250 * MIB
"""Bytes that one flat copy of a broadcast holds at most (broadcast_bucket_size)."""
FIRST_BUCKET = MIB
"""kDefaultFirstBucketBytes."""
BUCKET_MIB = 25
"""bucket_cap_mb."""


def limits_of(cap: float | None, caps: Sequence[float] | None) -> list[int]:
    """Return the bytes at which each bucket is closed, in order.

    The last limit holds for all further buckets. The first one is small only where the program
    names no limit (bucket_cap_mb) and no list of them (bucket_cap_mb_list).
    """
    if caps:
        return [int(each * MIB) for each in caps]
    return [FIRST_BUCKET, BUCKET_MIB * MIB] if cap is None else [int(cap * MIB)]


class GradientBucket:
    """A bucket for a communication hook (torch.distributed.GradBucket)."""

    def __init__(
        self, flat: torch.Tensor, parameters: list[nn.Parameter], at: tuple[int, int]
    ) -> None:
        self._flat, self._parameters, self._at = flat, parameters, at

    def buffer(self) -> torch.Tensor:
        """Return all gradients of the bucket as one flat tensor."""
        return self._flat

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the flat tensor of the bucket's gradients."""
        self._flat = buffer

    def index(self) -> int:
        """Return the number of the bucket."""
        return self._at[0]

    def is_last(self) -> bool:
        """Return whether the bucket is the last one of the pass."""
        return self._at[0] == self._at[1] - 1

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients the bucket holds."""
        return self._parameters

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients one by one, as views of the flat tensor."""
        parts = self._flat.split([p.numel() for p in self._parameters])
        return [part.view(p.shape) for part, p in zip(parts, self._parameters, strict=True)]


class ReducerBuckets:
    """The gradient buckets of one model's reducer.

    Attributes:
        flat: The buckets.
        in_pass: Whether a gradient has come since the last pass was finished.
        hook: The program's communication hook with its state; None: an all_reduce of each.
        nodes: The parameters' nodes, which the reducer retains. So hooks always run on the stream
            on which the model was wrapped.
    """

    def __init__(  # noqa: PLR0913 - the options of torch's reducer
        self,
        parameters: Sequence[nn.Parameter],
        cap: float | None,
        *,
        caps: Sequence[float] | None = None,
        views: bool,
        unused: bool,
        static: bool = False,
        group: Any = None,
    ) -> None:
        self._parameters = [weakref.ref(p) for p in parameters]
        self._device = parameters[0].device
        self._limits = limits_of(cap, caps)
        self._views, self._group = views, group
        self._unused, self._first = unused, static
        self._ready: list[int] = []
        self._rebuilt = unused
        self._places: dict[int, tuple[int, int]] = {}
        self._waits: dict[int, set[int]] = {}
        self.in_pass = False
        self.nodes: list[Any] = []
        self._promises: list[Any] = []
        self.hook: tuple[Any, Any] | None = None
        self.flat: list[torch.Tensor] = []
        one = [sys.maxsize]  # of each type: the order of the gradients is not known yet
        first = self._by_size(range(len(parameters)), self._limits if caps or unused else one)
        self._fill(sorted(first, key=min, reverse=True))

    def ready(self, number: int) -> None:
        """Record a parameter's gradient; send its bucket once complete.

        In the first pass of a static graph nothing is sent before `finish()`.
        """
        if not self._rebuilt and not self._first:
            self._ready.append(number)
        if not self.in_pass:
            self.in_pass = True
            self._waits = {at: set() for at in range(len(self.flat))}
            for known, (at, _) in self._places.items():
                self._waits[at].add(known)
        parameter = self._parameters[number]()
        bucket, start = self._places[number]
        if self._views and parameter is not None:
            view = self.flat[bucket][start : start + parameter.numel()]
            parameter.grad = view.view(parameter.size())
        waits = self._waits[bucket]
        waits.discard(number)
        if not waits and not self._first:
            self._send(bucket)

    def _send(self, bucket: int) -> None:
        self._waits.pop(bucket, None)
        flat = self.flat[bucket]
        if self.hook is None:
            call_collective(torch.distributed.all_reduce, flat, group=self._group, async_op=True)
            return
        state, hook = self.hook
        mine = sorted((start, n) for n, (at, start) in self._places.items() if at == bucket)
        parameters = [p for _, n in mine if (p := self._parameters[n]()) is not None]
        promise = hook(state, GradientBucket(flat, parameters, (bucket, len(self.flat))))
        self._promises.append(promise)  # Its result is live until backward is done.

    def finish(self) -> None:
        """Send the remaining buckets and the map of used parameters.

        Called when backward is done. The map is sent with find_unused_parameters, and in the first
        pass of a static graph.
        """
        for bucket in tuple(self._waits):
            self._send(bucket)
        if self._unused or self._first:
            used = allocate_bytes(4 * len(self._parameters), self._device)
            call_collective(torch.distributed.all_reduce, used, group=self._group)
        self._first = self.in_pass = False
        self._promises.clear()

    def rebuild(self) -> None:
        """Replace the first pass's buckets by buckets in gradient order.

        Nothing happens if they are rebuilt already, or if a parameter has had no gradient yet.
        """
        if self._rebuilt or len(self._ready) < len(self._parameters):
            return
        self._rebuilt = True
        order = list(dict.fromkeys(self._ready))
        self._ready.clear()
        groups = self._by_size(order, self._limits)
        # All ranks agree on the order: the indices, then how many are in each bucket.
        held = [allocate_bytes(4 * count, self._device) for count in (len(order) + 1, len(groups))]
        for numbers in held:
            call_collective(torch.distributed.broadcast, numbers, 0, group=self._group)
        held.clear()
        self.flat.clear()
        self._fill(groups)

    def _by_size(self, order: Iterable[int], limits: Sequence[int]) -> list[list[int]]:
        """Group parameters into buckets, each closed at its limit.

        As torch's compute_bucket_assignment_by_size does, by type.
        """
        groups: list[list[int]] = []
        open_: dict[torch.dtype, tuple[list[int], int]] = {}
        closed: Counter[torch.dtype] = Counter()
        for number in order:
            parameter = self._parameters[number]()
            if parameter is None:
                continue
            group, size = open_.pop(parameter.dtype, ([], 0))
            group.append(number)
            size += parameter.numel() * parameter.element_size()
            if size >= limits[min(closed[parameter.dtype], len(limits) - 1)]:
                groups.append(group)
                closed[parameter.dtype] += 1
            else:
                open_[parameter.dtype] = (group, size)
        return groups + [group for group, _ in open_.values()]

    def _fill(self, groups: list[list[int]]) -> None:
        for group in groups:
            total, dtype = 0, torch.float32
            for number in group:
                parameter = self._parameters[number]()
                if parameter is not None:
                    self._places[number] = (len(self.flat), total)
                    total += parameter.numel()
                    dtype = parameter.dtype
            self.flat.append(torch.empty(total, dtype=dtype, device=self._device))


def allocate_bytes(nbytes: int, device: torch.device) -> torch.Tensor:
    """Allocate bytes on the card that are not read."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def call_collective(collective: Any, tensor: torch.Tensor, *args: Any, **options: Any) -> None:
    """Call a collective, unless there is no process group.

    Observers of collectives see the call. Buckets can be tested without any group.
    """
    if torch.distributed.is_initialized():
        collective(tensor, *args, **options)


def broadcast(tensors: Iterable[torch.Tensor], device: torch.device, group: Any = None) -> None:
    """Broadcast flat copies by type, of which two are alive at a time.

    As torch's broadcast_coalesced does.
    """
    groups: dict[torch.dtype, list[int]] = {}
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        sizes = groups.setdefault(tensor.dtype, [0])
        if sizes[-1] and sizes[-1] + size > BROADCAST:
            sizes.append(0)
        sizes[-1] += size
    in_flight: list[torch.Tensor] = []
    for size in (size for sizes in groups.values() for size in sizes if size):
        in_flight = [*in_flight[-1:], allocate_bytes(size, device)]
        call_collective(torch.distributed.broadcast, in_flight[-1], 0, group=group)
