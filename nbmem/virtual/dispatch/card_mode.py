"""The dispatch mode that runs every operator on virtual cards.

The mode is below autograd. One mode serves all cards: a tensor's C++ device is
`lazy:<ordinal>`, so autograd, its accumulation and `foreach` already separate the cards.
`OperatorCall.gpu` is the card of a call. Only hardware/machine.py handles several
cards; a card (hardware/gpu.py) does not depend on the others.

A subclass of Tensor consists of tensors, and the card receives only those. Its call is
returned to it.

Kernels for CUDA's dispatch key would need no mode; README.md says why there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._prims  # its operators are named below
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode

from nbmem.core.runtime.bounded_cache import RecentAnswers
from nbmem.virtual.devices import cpp_device
from nbmem.virtual.dispatch.access_log import record_access, record_uses
from nbmem.virtual.dispatch.dtype_checks import refuse_types
from nbmem.virtual.dispatch.graph_capture import check_captured_call, refuse_overwritten
from nbmem.virtual.dispatch.higher_order import call_functions, is_higher_order
from nbmem.virtual.dispatch.host_code import run_python
from nbmem.virtual.dispatch.overlaps import refuse_overlaps
from nbmem.virtual.dispatch.tracing import run_in_tracing_mode, run_without_jit_trace, with_tensors
from nbmem.virtual.frames import leave_operator
from nbmem.virtual.hardware.deferred_free import defer_interrupt
from nbmem.virtual.operator_model import autograd_formulas
from nbmem.virtual.operator_model.running_node import RunningNode
from nbmem.virtual.operator_model.value_checks import cpu_shape_error, refuse_in_fork
from nbmem.virtual.operator_model.view_writes import WrittenViews
from nbmem.virtual.operators import quantized, sparse, table
from nbmem.virtual.operators.elementwise.float8 import refuse as refuse_float8
from nbmem.virtual.tensors.host.lazy_tensors import LazyTensors
from nbmem.virtual.tensors.host.pinned import Pinned
from nbmem.virtual.tensors.leaf_streams import note_streams
from nbmem.virtual.tensors.operator_call import COMPOSITE, OperatorCall, facts_of, has_own_composite
from nbmem.virtual.tensors.shapes import Results, TensorSpec, check_devices, infer, key_of
from nbmem.virtual.tensors.sparse import is_foreign
from nbmem.virtual.tensors.storages import DataKernels, Storages, build, dataless_result
from nbmem.virtual.tensors.unsupported import no_shape_rule
from nbmem.virtual.tensors.values import Values

if TYPE_CHECKING:
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine
    from nbmem.virtual.operator_model.operator import MemoryPlan

_DEVICE_PUT = torch.ops.prims.device_put.default
"""What tracers make of a move."""
_TO_DEVICE = (torch.ops.aten.to.device, _DEVICE_PUT)
"""Their device is no keyword. Under inference_mode, without autograd, `to` is not decomposed."""
_CARD_DEVICES = frozenset({"cuda", "lazy"})
_MOST_KNOWN = 60_000
"""Tensors in the calls whose results are cached: at most 60 MiB, with the results."""


class CardMode(TorchDispatchMode):
    """A dispatch mode that runs operators by shape and memory alone.

    No tensor is held past a call, so every storage is freed when it would be on a real card.

    Attributes:
        machine: The cards; None after deactivation, when threads may still have the mode.
        storages: The blocks behind virtual storages.
        values: The values that are known.
        host: The large tensors on the CPU that have not been read.
        pinned: The tensors on the CPU that were allocated as pinned.
        nodes: The autograd node that the engine runs.
        views: The views that the program has written to.
    """

    supports_higher_order_operators = True

    def __init__(self, machine: Machine, *, defer: bool = False) -> None:
        super().__init__()
        self.machine: Machine | None = machine
        self._cards = machine.by_device
        self.storages = Storages()
        self.host = LazyTensors(table.host_of, machine.lock, everything=defer)
        self.pinned = Pinned(machine.lock)
        self.values = Values(machine.gpus[0].note, self.storages, self.host, table.values_of)
        self.nodes = RunningNode(set())
        self.views = WrittenViews()
        self._known: RecentAnswers[tuple[Results, MemoryPlan | None]] = RecentAnswers(_MOST_KNOWN)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled code runs although the mode is on."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, without frames of nbmem in an error.

        An error has the frames that it would have if C++ had run the operator.
        """
        kwargs = kwargs or {}
        if self.machine is None:
            return func(*args, **kwargs)
        if is_higher_order(func):
            return call_functions(self, func, args, kwargs)
        if torch._C._len_torch_dispatch_stack():  # torch's own tracing modes alone are left
            traced = run_in_tracing_mode(self, func, types, args, kwargs)
            if traced is not NotImplemented:
                return traced
        if types and is_foreign(func, types):
            return NotImplemented  # Its own dispatch unwraps it.
        try:
            return self._run(func, args, kwargs)
        except BaseException as err:
            leave_operator(err)
            raise  # which adds no frame

    @run_without_jit_trace
    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = OperatorCall(func, args, kwargs)
        gpu = self._card_of(call)
        if gpu is None:
            if args and not call.tensors:
                args = with_tensors(func, args)
                call = OperatorCall(func, args, kwargs)
            if pinned := bool(kwargs.get("pin_memory")):
                call = OperatorCall(func, args, {**kwargs, "pin_memory": False})
            if (device := kwargs.get("device")) is None or device.type == "cpu":
                made = self.host.run(call, pinned=pinned)
                return self.pinned.pin(made) if pinned else made
            return func(*args, **kwargs)
        if kwargs.get("pin_memory") and str(kwargs.get("device")) == "cpu":  # as empty_like has it
            return self.pinned.pin(self._run(func, args, {**kwargs, "pin_memory": False}))
        call.gpu = gpu
        if gpu.bad_fork:
            refuse_in_fork(call)
        gpu.launched = True
        note_streams(call)
        self.views.on_call_start(call)
        answer = self._on_card(call)
        self.views.on_call_end(call)
        if gpu.access_log is not None:
            record_access(self.storages, call, gpu.access_log)
        if gpu.block_uses is not None:
            record_uses(self.storages, call, answer, gpu.block_uses)
        if facts_of(func).counts:
            increment_version([tensor for tensor in args[0] if not tensor.is_inference()])
        return answer

    @defer_interrupt  # else a block could be taken that no storage has yet
    def _on_card(self, call: OperatorCall) -> Any:
        """Run a call by the first rule that answers it.

        Without such a rule, the operator's shape and memory plan decide. The rules, in order:

        - sparse: one of its tensors is sparse, and kernels work on the parts of that.
        - quantized: one of its tensors is quantized.
        - formulas and written views: autograd takes another path than on a card.
        - composite: CUDA makes other operators of it.
        - autograd: a formula would write in place.
        - run: the operator is no kernel with a shape and some memory.
        - host code: another library's operator, without a record, whose kernel is Python.
        """
        self.host.write_small(call)
        if call.gpu.capture:
            check_captured_call(call)
        if (
            sparse.has_sparse(call)
            and (answer := sparse.run_sparse(self, call)) is not NotImplemented
        ):
            return answer
        if quantized.has_quantized(call):
            return quantized.run_quantized(self, call)
        refuse_float8(call)
        refuse_overlaps(call)
        if self.storages.overwritten:
            refuse_overwritten(self.storages, call)
        for behind_autograd in (autograd_formulas.run_formula, self.views.new_gradient):
            if (answer := behind_autograd(self, call)) is not NotImplemented:
                return answer
        if call.func is _DEVICE_PUT:
            with self:
                return torch.ops.aten._to_copy.default(call.args[0], device=call.args[1])
        operator = table.record_of(call.func)
        if operator.composite is not None:
            with self:
                return operator.composite(*call.args, **call.kwargs)
        for answering in (operator.autograd, operator.run):
            if answering is not None and (answer := answering(self, call)) is not NotImplemented:
                return answer
        foreign = operator is table.PLAIN and facts_of(call.func).foreign
        answer = run_python(self, call) if foreign else NotImplemented
        return self.execute(call) if answer is NotImplemented else answer

    def _card_of(self, call: OperatorCall) -> VirtualGPU | None:
        """Return the card that the call names, or that of its tensors.

        None: the call is about no card.
        """
        device = call.argument("device") if call.func in _TO_DEVICE else call.kwargs.get("device")
        if device is not None and device.type in _CARD_DEVICES and self.machine is not None:
            return self.machine.gpu(device)
        cards = self._cards
        for tensor in call.tensors:
            if (gpu := cards.get(cpp_device(tensor))) is not None:
                return gpu
        return None

    def execute(self, call: OperatorCall) -> Any:
        """Run a call by its shape rule and take its kernel's memory.

        Views run torch's shape-only kernels. A composite, or an operator without a rule, is
        decomposed.
        """
        facts = facts_of(call.func)
        if facts.composite:
            return self._decompose(call)
        if facts.view or facts.reshapes:
            with DataKernels():
                return call.func(*call.args, **call.kwargs)
        answer = self._results(call)
        return self._decompose(call) if answer is None else self._deliver(call, *answer)

    def _results(self, call: OperatorCall) -> tuple[Results, MemoryPlan | None] | None:
        """Return the results and memory plan, or None without a shape rule."""
        key = key_of(call)
        if key is not None and (known := self._known.get(key)) is not None:
            return known
        operator = table.record_of(call.func)
        check_devices(call, with_cpu=operator.mixes_devices)
        if operator.refuse is not None:
            operator.refuse(call)
        refuse_types(call)
        try:
            results = infer(call) if operator.shape is None else operator.shape(call)
        except NotImplementedError:
            if not facts_of(call.func).mutates or call.func._schema.returns:
                return None
            results = Results(None, ())  # It only writes to its arguments.
        except (RuntimeError, AssertionError, IndexError, TypeError, ValueError):
            if (error := cpu_shape_error(call)) is None:
                raise
            raise error from None
        answer = (results, table.plan_of(call, results))
        if key is not None:
            self._known.put(key, answer, 1 + len(call.tensors) + len(results.fresh))
        return answer

    def deliver(self, call: OperatorCall, results: Results, plan: MemoryPlan | None = None) -> Any:
        """Allocate in the kernel's order and build what the call returns.

        Args:
            call: The call.
            results: What it returns.
            plan: The kernel's order; None: that of the operator's record.
        """
        return self._deliver(call, results, plan or table.plan_of(call, results))

    def _deliver(self, call: OperatorCall, results: Results, plan: MemoryPlan | None) -> Any:
        made = self.allocate(call.gpu, results.fresh, plan)
        self.values.follow(call, made)
        return build(results.shape, made, call.tensors)

    def allocate(
        self, gpu: VirtualGPU, fresh: tuple[TensorSpec, ...], plan: MemoryPlan | None = None
    ) -> list[torch.Tensor]:
        """Allocate new results on a card, in the order of a memory plan.

        Temporaries that the plan does not drop are freed at the end.

        Raises:
            torch.OutOfMemoryError: The card is full; what was taken has been freed.
        """
        if plan is None:
            return [self._make(gpu, spec) for spec in fresh]
        made: dict[int, torch.Tensor] = {}
        temporaries: dict[object, int] = {}
        try:
            for step in plan.steps:
                if step.kind == "out" or (step.kind == "host" and gpu.capture):
                    made[step.number] = self._make(gpu, fresh[step.number])
                elif step.kind == "host":
                    spec = fresh[step.number]
                    made[step.number] = torch.zeros(spec.size, dtype=spec.dtype, device="cpu")
                elif step.kind == "temporary":
                    temporaries[step.name] = gpu.take(step.nbytes)
                elif step.kind == "drop":
                    gpu.give(temporaries.pop(step.name, 0))
                elif step.kind == "dnn":
                    gpu.workspaces.dnn(step.kernels)
                else:
                    gpu.workspaces.blas(lt=step.kind == "blaslt")
            return [made[n] if n in made else self._make(gpu, fresh[n]) for n in range(len(fresh))]
        finally:
            for addr in reversed(temporaries.values()):
                gpu.give(addr)

    def _make(self, gpu: VirtualGPU, spec: TensorSpec) -> torch.Tensor:
        tensor = dataless_result(spec, gpu.index)
        self.storages.adopt(tensor, gpu)
        return tensor

    def _decompose(self, call: OperatorCall) -> Any:
        """Run an operator without a shape rule as smaller operators."""
        rule = torch._decomp.decomposition_table.get(call.func)
        with self:
            # First the path that autograd takes: a composite's C++, not Python's for tracers.
            if has_own_composite(call.func):
                return call.func._op_dk(COMPOSITE, *call.args, **call.kwargs)
            if call.func._can_decompose():
                return call.func.decompose(*call.args, **call.kwargs)
            if rule is not None:
                return rule(*call.args, **call.kwargs)
        raise no_shape_rule(call.func)
