"""Collectives of c10d: memory that NCCL takes, and results where known.

No tensor is sent. Every rank runs the same program, so another rank is taken to have the
values of this one. A sum leaves known values as they are, and a gathered tensor holds this
rank's values in each part.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp

Known limit: a list that is gathered or scattered has its flat copy until the call ends.
NCCL retains that of an asynchronous call until the program waits for it.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual import rank_messages
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.operator_model.communication_log import record_collective
from nbmem.virtual.operator_model.operator import Executor, Operator
from nbmem.virtual.tensors.storages import DataKernels

if TYPE_CHECKING:
    from nbmem.virtual.tensors.operator_call import OperatorCall


class CompletedFuture:
    """A completed future, as `work.get_future()` returns it.

    torch's own future takes no tensors of a virtual card.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        """Return the collective's tensors, or what a `then` callback returned."""
        return self._value

    wait = value

    def done(self) -> bool:
        """Return True: the collective has completed."""
        return True

    def then(self, callback: Any) -> CompletedFuture:
        """Return a completed future of the callback's result."""
        return CompletedFuture(callback(self))

    def add_done_callback(self, callback: Any) -> None:
        """Call the callback at once."""
        callback(self)


MAX_MESSAGE_INTEGERS = 16
"""Integers of a message that is sent to a rank which runs beside this one."""
_MAX_WORKS = 64
"""Collectives whose tensors a program may still read; hooks read them at once."""
_tensors_by_work: OrderedDict[int, tuple[Any, list[weakref.ref[torch.Tensor]]]] = OrderedDict()
"""By the id of the work, which is unique while it is retained: C++ returns the same object."""


def create_group(rank: int, size: int) -> Any:
    """Create a process group without peers.

    torch 2.6 has a constructor in place of a method.
    """
    from torch._C import _distributed_c10d as c10d

    fake = c10d.FakeProcessGroup
    return getattr(fake, "_create_internal", fake)(rank, size)


def completed_work() -> Any:
    """Return a work object of c10d that has completed.

    torch 2.6 creates one only through a process group.
    """
    from torch._C import _distributed_c10d as c10d

    return c10d.FakeWork() if hasattr(c10d, "FakeWork") else create_group(0, 1).barrier()


def _work(tensors: list[torch.Tensor]) -> Any:
    """Create completed work for these tensors, boxed as C++ passes it on.

    `get_future` finds the tensors by the work's id.
    """
    work = completed_work()
    _tensors_by_work[id(work)] = work, [weakref.ref(tensor) for tensor in tensors]
    if len(_tensors_by_work) > _MAX_WORKS:
        _tensors_by_work.popitem(last=False)
    return work.boxed()


def make_get_future(work_class: Any) -> Callable[[Any], Any]:
    """Return a `get_future` for a class of works.

    The method returns a completed future of the collective's tensors. If the class is shared
    with other backends, their works use the class's own method.

    Args:
        work_class: The class of `completed_work`; torch 2.6 has one class for every backend.
    """
    original = work_class.get_future

    def get_future(work: Any) -> Any:
        _, sent = _tensors_by_work.get(id(work), (None, None))
        if sent is None and work_class.__name__ == "Work":
            return original(work)
        return CompletedFuture([tensor for told in sent or () if (tensor := told()) is not None])

    return get_future


def run_in_place(executor: Executor, call: OperatorCall) -> Any:
    """Run all_reduce, reduce or broadcast, which leaves values as they are."""
    call.gpu.workspaces.nccl()
    return _finish_call(call, call.args[0])


def run_gather(executor: Executor, call: OperatorCall) -> Any:
    """Run a gather, a scatter or an exchange of the first two arguments.

    Equally many outputs and inputs are paired. Otherwise every output holds the first input.
    Outputs are unknown on a rank that has no inputs.
    """
    call.gpu.workspaces.nccl()
    outputs, inputs = (_flat(value) for value in call.args[:2])
    if not outputs or not inputs:  # Only one rank has the other side of a gather or a scatter.
        for output in outputs:
            executor.values.forget(output)
        return _finish_call(call, call.args[0])
    if len(outputs) != len(inputs):
        _share(executor, outputs, inputs[0])
    else:
        for output, source in zip(outputs, inputs, strict=True):
            _share(executor, [output], source)
    return _finish_call(call, call.args[0])


def run_list_gather(executor: Executor, call: OperatorCall) -> Any:
    """Run a gather or scatter of lists, with a flat copy of each list.

    NCCL takes a flat copy of a list whose tensors have equally many elements.
    """
    call.gpu.workspaces.nccl()
    several = call.args[0] if call.func._schema.name == "c10d::allgather_" else call.args[1]
    for tensors in several:
        if len({tensor.numel() for tensor in tensors}) == 1:
            call.gpu.give(call.gpu.take(sum(t.numel() * t.element_size() for t in tensors)))
    return run_gather(executor, call)


def run_receive(executor: Executor, call: OperatorCall) -> Any:
    """Receive a few integers from a rank that runs, else unknown values.

    A float tensor, a larger one, or one from a rank that does not run is unknown afterwards.
    """
    call.gpu.workspaces.nccl()
    for tensor in call.args[0]:
        executor.values.forget(tensor)
        if _is_exchanged(tensor) and rank_messages.folder() is not None:
            me, peer = _ends(call)
            value = rank_messages.receive(me, peer)
            if value is not None:
                executor.values.teach(tensor, torch.tensor(value, dtype=tensor.dtype, device="cpu"))
    return _finish_call(call, call.args[0])


def run_send(executor: Executor, call: OperatorCall) -> Any:
    """Send a tensor to another rank if it is a few integers."""
    call.gpu.workspaces.nccl()
    for tensor in call.args[0]:
        if _is_exchanged(tensor) and rank_messages.folder() is not None:
            cpu_values = executor.values.cpu_values(tensor)
            rank_messages.send(*_ends(call), None if cpu_values is None else cpu_values.tolist())
    return _finish_call(call, call.args[0])


def run_barrier(executor: Executor, call: OperatorCall) -> Any:
    """Run a barrier."""
    call.gpu.workspaces.nccl()
    return _finish_call(call, call.args[0])


def _is_exchanged(tensor: torch.Tensor) -> bool:
    """Return whether ranks exchange a tensor's values: a few integers.

    Programs make decisions by such messages.
    """
    return not tensor.dtype.is_floating_point and tensor.numel() <= MAX_MESSAGE_INTEGERS


def _ends(call: OperatorCall) -> tuple[int, int]:
    """Return the global ranks of this process and of its peer."""
    c10d = torch.distributed.distributed_c10d
    group = c10d.ProcessGroup.unbox(call.args[1])
    return torch.distributed.get_rank(), c10d.get_global_rank(group, call.args[2])


def _finish_call(call: OperatorCall, first: Any) -> Any:
    """Count the call's traffic and return what the operator returns.

    By its schema that is the first argument and its work, the work alone, or None.
    """
    record_collective(call)
    returned = len(call.func._schema.returns)
    work = _work(_flat(first)) if returned else None
    return (first, work) if returned > 1 else work


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _flat(item)]


def _share(executor: Executor, outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
    """Set outputs to repeated values of the source, or to unknown."""
    value = executor.values.cpu_values(source) if is_virtual(source) else None
    storages: dict[int, list[torch.Tensor]] = {}
    for output in outputs:
        if is_virtual(output):
            executor.values.forget(output)
            storages.setdefault(output.untyped_storage()._cdata, []).append(output)
    if value is None or not value.numel():
        return
    for written in storages.values():
        whole = written[0].untyped_storage().nbytes() // written[0].element_size()
        if sum(part.numel() for part in written) == whole:
            with DataKernels():
                flat = written[0].as_strided((whole,), (1,), 0)
            executor.values.teach(
                flat, value.reshape(-1).repeat(-(-whole // value.numel()))[:whole]
            )


OPERATORS = (
    Operator(
        (*("c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::broadcast_"), "c10d::reduce_"),
        run=run_in_place,
    ),
    Operator(
        (
            *("c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::alltoall_base_"),
            *("c10d::alltoall_", "c10d::allgather_into_tensor_coalesced_", "c10d::scatter_"),
            *("c10d::reduce_scatter_tensor_coalesced_", "c10d::gather_"),
        ),
        run=run_gather,
    ),
    Operator(
        ("c10d::allgather_", "c10d::allgather_coalesced_", "c10d::reduce_scatter_"),
        run=run_list_gather,
        source="ProcessGroupNCCL.cpp newLikeFlat",
    ),
    Operator(("c10d::recv_", "c10d::recv_any_source_"), run=run_receive),
    Operator(("c10d::send",), run=run_send),
    Operator(("c10d::barrier", "c10d::monitored_barrier_"), run=run_barrier),
)
