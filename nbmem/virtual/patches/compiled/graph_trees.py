"""CUDA graphs of compiled regions, on the virtual card's memory.

The graph trees are torch's module, unchanged. They decide which function is warmed up, recorded or
replayed, and which outputs of an earlier one are live. Replaced here are the C++ functions that
they call: tensors at an address that they do not own, and the allocator's state of a private pool.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/cudagraph_trees.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/cuda/Module.cpp
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.multiprocessing.reductions import StorageWeakRef

from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.tensors.storages import DataKernels, Storages, dataless_tensor

if TYPE_CHECKING:
    from nbmem.allocator.checkpoints import PoolState
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.machine import Machine

_TREES = "torch._inductor.cudagraph_trees"


class GraphTrees:
    """C++ functions of a card that torch's graph trees call."""

    def __init__(self, mode: CardMode, machine: Machine) -> None:
        self._mode = mode
        self._machine = machine
        self._marked = 0

    def mark_step_begin(self) -> None:
        """Mark the beginning of a step.

        From here on, what the last step left in the graphs' pools may be overwritten.
        """
        trees = sys.modules.get(_TREES)
        if trees is None:
            self._marked += 1  # Nothing has been compiled yet; the import takes seconds.
        else:
            trees.mark_step_begin()

    def patches(self) -> list[Patch]:
        """Return the patches that apply once something is compiled."""
        from torch._inductor import cudagraph_trees as trees

        for _ in range(self._marked):
            trees.mark_step_begin()
        self._marked = 0

        outputs = _outputs(trees.CUDAGraphNode, self._mode.storages)
        return patches_of(trees.CUDAGraphNode, outputs)

    def end(self) -> None:
        """Forget every graph, while its card still exists."""
        trees = sys.modules.get(_TREES)
        if trees is not None:
            trees.reset_cudagraph_trees()

    def _forbid(self, tensor: torch.Tensor, text: str) -> None:
        """Replace the storage of an earlier run's output.

        Reading the new storage is an error with this text.
        """
        storages = self._mode.storages
        before = storages.of(tensor)
        if before is None:
            return
        nbytes = tensor.untyped_storage().nbytes()
        empty = dataless_tensor((0,), (1,), 0, torch.uint8, nbytes, before.gpu.index)
        storages.borrow(empty, before.gpu, before.addr)
        shape = tensor.storage_offset(), tensor.size(), tensor.stride()
        with torch.no_grad(), DataKernels(), _unsafe_preserve_version_counter(tensor):
            tensor.set_(empty.untyped_storage(), *shape)
        storages.overwrite(empty.untyped_storage()._cdata, text)

    def functions(self) -> dict[str, Any]:
        """Return the torch._C functions that graph trees call.

        A program may have trees of its own that call them.
        """
        storages = self._mode.storages

        def storage_at(addr: int, device: Any, nbytes: int) -> Any:
            gpu = self._machine.gpu(device)
            tensor = dataless_tensor((0,), (1,), 0, torch.uint8, nbytes, gpu.index)
            storages.borrow(tensor, gpu, addr)
            return tensor.untyped_storage()

        def tensor_of(facts: dict[str, Any], storage: Any) -> torch.Tensor:
            index = self._machine.gpu(facts["device"]).index
            tensor = dataless_tensor((0,), (1,), 0, facts["dtype"], 0, index)
            with DataKernels():
                tensor.set_(storage, facts["storage_offset"], facts["size"], facts["stride"])
            return tensor

        def free(key: int) -> None:
            self._machine.give(storages.at(key))
            storages.own(key, wanted=False)

        def addresses_are(tensors: Sequence[Any], known: Sequence[Any], at: Sequence[int]) -> bool:
            return all(tensors[i].data_ptr() == known[i] for i in at)

        def checkpoint(device: int, pool: Any) -> PoolState:
            return self._machine.gpu(device).pools.checkpoint(pool)

        def restore(
            device: int, state: PoolState, stale: Sequence[int], living: Sequence[int]
        ) -> None:
            done = self._machine.gpu(device).pools.restore(state)
            for key in stale:
                if storages.at(key) in done.freed:
                    storages.own(key, wanted=False)
            for key in living:
                if storages.at(key) in done.made:
                    storages.own(key, wanted=True)

        return {
            "_construct_storage_from_data_pointer": storage_at,
            "_construct_CUDA_Tensor_From_Storage_And_Metadata": tensor_of,
            "_free_And_Remove_DeleterFn": free,
            "_has_Standard_Deleter": storages.owns,
            "_set_storage_access_error_msg": self._forbid,
            "_set_storage_data_ptr_access_error_msg": storages.overwrite,
            "_tensors_data_ptrs_at_indices_equal": addresses_are,
            "_cuda_getCheckpointState": checkpoint,
            "_cuda_setCheckpointPoolState": restore,
            "_cuda_get_conv_benchmark_empty_cache": lambda: True,
            "_cudnn_set_conv_benchmark_empty_cache": lambda _wanted: None,
        }


def missing_attributes() -> list[Patch]:
    """Return attributes of torch._C that a build without CUDA lacks.

    torch's modules about CUDA graphs import them. They are added from the start: where a card is
    active, `torch._dynamo.reset()` imports those modules.
    """
    names = {
        "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
        "_set_cached_tensors_enabled": lambda _enabled: None,
    }
    return [Patch(torch._C, n, v) for n, v in names.items() if not hasattr(torch._C, n)]


def _outputs(node: Any, storages: Storages) -> dict[str, Any]:
    """Return methods that make the tensors of each replay anew.

    torch returns one tensor object at each replay, and makes autograd in C++ not count it. Here
    each replay makes its own, which is counted correctly. Its storage is that of the previous
    replay while that is still live (a gradient that is added up).
    """
    original_tensor: Any = node._reconstruct_from_tensor_metadata

    def begin(self: Any) -> None:
        self.cached_tensor_outputs.extend(None for _ in self.outputs_metadata)
        self.storages_of_replays = {}

    def tensor(self: Any, facts: dict[str, Any], storage: Any = None) -> torch.Tensor:
        known = getattr(self, "storages_of_replays", None)
        if storage is not None or known is None:
            made: torch.Tensor = original_tensor(self, facts, storage)
            return made
        before = known.get(id(facts))
        if before is not None and not before.expired():
            storage = torch.UntypedStorage._new_with_weak_ptr(before.cdata)
        made = original_tensor(self, facts, storage)
        known[id(facts)] = StorageWeakRef(made.untyped_storage())
        storages.overwrite(made.untyped_storage()._cdata, "")  # a later read raises no error
        return made

    return {"_initialize_cached_tensors": begin, "_reconstruct_from_tensor_metadata": tensor}
