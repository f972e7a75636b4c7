"""Tensors on the virtual card: a shape and an address, but no data.

In C++ such a tensor is on the device `lazy:0` (the second card's on `lazy:1`) and has CUDA's
dispatch keys. The device makes the autograd engine use its CPU queue, so that no CUDA driver is
needed. The keys make autocast, Parameter and `.data` treat it as a CUDA tensor. In Python `.device`
is `cuda:0` (virtual/patches/tensor_api/tensor_attributes.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import _C

from nbmem.virtual.devices import CPU, CUDA, LAZY, cpp_device, is_virtual
from nbmem.virtual.tensors.shapes import ArgumentResult, Shares, TensorSpec
from nbmem.virtual.tensors.stand_ins.sign_and_seed import POSITIVE, SignAndSeed

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU

_make = torch.Tensor._make_subclass
original_nbytes: Any = vars(_C.StorageBase)["nbytes"]
original_wrapper = torch.Tensor._make_wrapper_subclass


class _Wrapper(torch.Tensor):
    """The class that torch needs to create a tensor without data.

    Instances do not leave this module.
    """

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types, args, kwargs
        raise RuntimeError(f"{func} reached a bare virtual tensor")


class DataKernels:
    """A context in which operators run shape-only kernels.

    They do so for virtual tensors, too.
    """

    __slots__ = ("_dispatch", "_keys")

    def __enter__(self) -> None:
        self._dispatch = _C._DisableTorchDispatch()
        self._keys = _C._PreserveDispatchKeyGuard()
        self._dispatch.__enter__()
        self._keys.__enter__()
        _C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *exc: object) -> None:
        self._keys.__exit__(None, None, None)
        self._dispatch.__exit__(None, None, None)


def dataless_tensor(  # noqa: PLR0913 - what a tensor is
    size: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    nbytes: int,
    ordinal: int,
) -> torch.Tensor:
    """Create a tensor on a card whose storage has no memory yet."""
    wrapper = original_wrapper(
        _Wrapper, size, stride, offset, dtype=dtype, device=LAZY[ordinal], storage_size=nbytes
    )
    with DataKernels():
        return _make(torch.Tensor, wrapper, False, device_for_backend_keys=CUDA[0])


def dataless_result(spec: TensorSpec, ordinal: int) -> torch.Tensor:
    """Create a tensor without memory for a result's spec."""
    return dataless_tensor(spec.size, spec.stride, spec.offset, spec.dtype, spec.nbytes, ordinal)


def dataless_sparse(size: tuple[int, ...], dtype: torch.dtype, part: torch.Tensor) -> torch.Tensor:
    """Create an empty COO tensor on the card of its parts (sparse.py)."""
    wrapper = original_wrapper(
        _Wrapper, size, (0,) * len(size), 0, dtype=dtype, device=cpp_device(part),
        layout=torch.sparse_coo, storage_size=0,
    )  # fmt: skip
    with DataKernels():
        return _make(torch.Tensor, wrapper, False, device_for_backend_keys=CUDA[0])


class KnownValues(NamedTuple):
    """Known facts of a storage's values, for another process.

    Attributes:
        cpu_values: The bytes; None if they are unknown.
        healthy, assumed, by_equality, most, below, sign_and_seed: As in `CardMemory`.
    """

    cpu_values: bytes | None = None
    healthy: bool | None = None
    assumed: bool | None = None
    by_equality: bool = False
    most: int | None = None
    below: int | None = None
    sign_and_seed: tuple[int, bool] | None = (0, False)


class CardMemory(weakref.ref):  # type: ignore[type-arg]
    """The card's memory of one storage; freed with the storage.

    Attributes:
        key, home: The storage's identity, and the table that lists the block under it.
        gpu, addr: The card, and the address there, 0 for no bytes.
        cpu_values: The storage's values on the CPU if they are known, else None.
        healthy: What a condition on these values is in a run without NaN or overflow, if that is
            known. For counts it is False if they are 0.
        assumed: What a condition, or its number, is taken to be if nothing is known of it; None: a
            condition is false, and a number is not zero.
        by_equality: Whether that follows from no two unknown numbers being equal, which a loop
            meets more rarely than an order: a token that ends a text is one of a vocabulary.
        drawn: Whether they are unknown floats that a random generator made.
        most: The most elements that can be nonzero, if the values are unknown; None: all.
        sign_and_seed: Of the numbers if they are unknown; None: there is one number, 1.0.
        below: No integer in it is negative or as large as this; None: unknown.
        owned: Whether the memory is freed with the storage; False: it belongs to a CUDA graph.
        overwritten: torch's error text for reads after a CUDA graph has overwritten it. "": no
            error is raised, as on a card; None: it was not overwritten.
        resized: Bytes since `storage.resize_`, which C++ does not have; None: C++ has the bytes.
    """

    __slots__ = (
        *("addr", "assumed", "below", "by_equality", "drawn", "gpu", "healthy", "home", "key"),
        *("sign_and_seed", "most", "overwritten", "owned", "resized", "cpu_values"),
    )
    __hash__ = object.__hash__  # a reference's own hash reads the storage, which is freed by then
    __eq__ = object.__eq__

    key: int
    home: dict[int, CardMemory]
    gpu: VirtualGPU
    addr: int
    cpu_values: torch.UntypedStorage | None
    healthy: bool | None
    assumed: bool | None
    by_equality: bool
    drawn: bool
    sign_and_seed: SignAndSeed | None
    most: int | None
    below: int | None
    owned: bool
    overwritten: str | None
    resized: int | None

    def forget_values(self) -> None:
        """Forget the values, but not the sign and seed of stand-ins."""
        self.cpu_values = self.healthy = self.assumed = self.most = self.below = None
        self.by_equality = self.drawn = False

    def copy_values_from(self, other: CardMemory) -> None:
        """Take over what is known of another block's values."""
        self.cpu_values, self.healthy = other.cpu_values, other.healthy
        self.sign_and_seed = other.sign_and_seed
        self.most, self.below, self.resized = other.most, other.below, other.resized
        self.assumed, self.by_equality = other.assumed, other.by_equality
        self.drawn = other.drawn

    def known_values(self) -> KnownValues:
        """Return what is known of the values, as data that can be pickled."""
        cpu_values = None
        if self.cpu_values is not None:
            with _C._DisableTorchDispatch():
                plain = torch.empty(0, dtype=torch.uint8, device=CPU).set_(self.cpu_values)
                cpu_values = bytes(plain.numpy())
        made = self.sign_and_seed
        sign_and_seed = None if made is None else (made.seed, made.signed)
        return KnownValues(
            *(cpu_values, self.healthy, self.assumed, self.by_equality, self.most, self.below),
            sign_and_seed,
        )

    def learn_values(self, known: KnownValues) -> None:
        """Set what is known of the values."""
        self.forget_values()
        if known.cpu_values:
            with _C._DisableTorchDispatch():
                plain = torch.frombuffer(bytearray(known.cpu_values), dtype=torch.uint8)
                self.cpu_values = plain.untyped_storage()
        self.healthy, self.assumed = known.healthy, known.assumed
        self.by_equality = known.by_equality
        self.most, self.below = known.most, known.below
        made = known.sign_and_seed
        self.sign_and_seed = None if made is None else SignAndSeed(*made)

    def unregister(self) -> None:
        """Remove the block from its table, unless it was replaced there."""
        if self.home.get(self.key) is self:
            del self.home[self.key]


def build(shape: Any, made: list[torch.Tensor], tensors: list[torch.Tensor]) -> Any:
    """Build what a call returns from fresh results and arguments.

    Args:
        shape: The structure of the return value: see Results.shape.
        made: The fresh results.
        tensors: The tensors that the call was given.
    """
    if isinstance(shape, TensorSpec):
        return made[shape.number]
    if isinstance(shape, ArgumentResult):
        return tensors[shape.tensor]
    if isinstance(shape, Shares):
        base = made[shape.result] if shape.result is not None else tensors[shape.tensor or 0]
        spec = shape.spec
        if not is_virtual(base):
            return base
        with DataKernels():
            return base.as_strided(spec.size, spec.stride, spec.offset)
    if isinstance(shape, (list, tuple)):
        return type(shape)([build(item, made, tensors) for item in shape])
    return shape


DIES_FOR_GOOD = torch.__version__ >= "2.10"
"""Before, the garbage collector frees a storage's Python object if only a cycle holds it, although
tensors hold the storage, too."""


class Storages:
    """The table of storages and their blocks of card memory."""

    def __init__(self) -> None:
        self.overwritten = False  # by a CUDA graph, any of them ever
        self._blocks: dict[int, CardMemory] = {}
        self._lost: dict[int, CardMemory] = {}

    def adopt(self, tensor: torch.Tensor, gpu: VirtualGPU) -> CardMemory:
        """Allocate memory of its card for a new tensor's storage.

        Raises:
            torch.OutOfMemoryError: The card is full.
        """
        storage = tensor.untyped_storage()
        addr = gpu.take(storage.nbytes())
        if (
            before := self._lost.pop(storage._cdata, None)
        ) is not None:  # It was freed without a callback: its address is reused.
            before.gpu.give(before.addr)
        block = self._watch(storage, gpu, addr)
        block.sign_and_seed = POSITIVE if tensor.dim() else None
        return block

    def _watch(
        self, storage: torch.UntypedStorage, gpu: VirtualGPU, addr: int, *, owned: bool = True
    ) -> CardMemory:
        died: Any = gpu.on_storage_freed if DIES_FOR_GOOD else self._died
        block = CardMemory(storage, died if owned else CardMemory.unregister)
        block.key, block.home = storage._cdata, self._blocks
        block.gpu, block.addr, block.owned = gpu, addr, owned
        block.forget_values()
        block.sign_and_seed, block.resized, block.overwritten = POSITIVE, None, None
        if owned and gpu.block_uses is not None:
            gpu.block_uses.made(addr, storage.nbytes())
        # A dead storage with this key has unregistered already, or sees that it was replaced.
        with gpu.lock:
            self._blocks[block.key] = block
        return block

    def borrow(self, tensor: torch.Tensor, gpu: VirtualGPU, addr: int) -> None:
        """Place a new tensor's storage at an address that it does not own."""
        self._watch(tensor.untyped_storage(), gpu, addr, owned=False)

    def own(self, key: int, *, wanted: bool) -> None:
        """Set whether the block of a live storage is freed with it.

        Args:
            key: The storage's identity.
            wanted: False: its memory belongs to a CUDA graph's pool, which frees it.
        """
        before = self._blocks.get(key)
        storage = None if before is None else before()
        if before is None or storage is None or before.owned == wanted:
            return
        self._watch(storage, before.gpu, before.addr, owned=wanted).copy_values_from(before)

    def overwrite(self, key: int, text: str) -> None:
        """Set the error text for reads of an overwritten storage.

        See `CardMemory.overwritten`; the first text stays.
        """
        block = self._blocks.get(key)
        if block is not None and block.overwritten is None:
            block.overwritten = text
            self.overwritten = self.overwritten or bool(text)

    def owns(self, key: int) -> bool:
        """Return whether a storage's block is freed with it."""
        block = self._blocks.get(key)
        return block is not None and block.owned

    def at(self, key: int) -> int:
        """Return a storage's address by its identity; 0 if there is none."""
        block = self._blocks.get(key)
        return 0 if block is None else block.addr

    def _died(self, block: CardMemory) -> None:
        block.unregister()
        if _C._storage_Use_Count(block.key) > 1:
            self._lost[block.key] = block  # It is watched again when one is next used.
        else:
            block.gpu.give(block.addr)

    def of(self, tensor: torch.Tensor) -> CardMemory | None:
        """Return a tensor's block; None for one of an earlier activation."""
        return self.of_storage(tensor.untyped_storage())

    def of_storage(self, storage: torch.UntypedStorage) -> CardMemory | None:
        """Return a storage's block; None for one of an earlier activation."""
        block = self._blocks.get(storage._cdata)
        if block is not None and block() is None:
            return None  # The block of a freed storage that is not unregistered yet.
        if block is None and storage._cdata in self._lost:
            lost = self._lost.pop(storage._cdata)
            block = self._watch(storage, lost.gpu, lost.addr)
            block.copy_values_from(lost)
        return block

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Replace a storage's memory by none or by a block of another size.

        C++ retains the largest size that it ever had, since it refuses larger views of a storage
        without data.

        Raises:
            torch.OutOfMemoryError: The card is full; the storage is as it was.
        """
        block = self.of_storage(storage)
        if block is None:
            return
        addr = block.gpu.take(nbytes) if nbytes else 0
        block.gpu.give(block.addr)
        block.addr, block.resized = addr, nbytes
        block.forget_values()
        if nbytes > original_nbytes(storage):
            view = dataless_tensor((0,), (1,), 0, torch.uint8, 0, block.gpu.index)
            with DataKernels():
                view.set_(storage, 0, (nbytes,), (1,))

    def renew(self, storage: torch.UntypedStorage) -> None:
        """Move a storage to a new block of the same size.

        That is what replacing it by a copy does to memory.
        """
        block = self.of_storage(storage)
        if block is not None and block.owned and block.resized is None:
            addr = block.gpu.take(storage.nbytes())
            block.gpu.give(block.addr)
            block.addr = addr

    def live_bytes(self) -> int:
        """Count the requested bytes of all live storages that own their block."""
        living = (block() for block in tuple(self._blocks.values()) if block.owned)
        return sum(storage.nbytes() for storage in living if storage is not None)

    def forget(self) -> None:
        """Forget all blocks at deactivation."""
        self._blocks.clear()
        self._lost.clear()
