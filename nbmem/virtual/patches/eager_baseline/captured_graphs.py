"""Eager-mode memory of a planned region, from its captured graph.

The graph runs as it is, once, forward and backward, at the first call of the region, on cards of
its own. Nothing of the program runs twice, and nothing is left on its card. Autograd saves what it
saves in eager mode, since these are the program's own operators. The Python variables of the
program's functions do not exist here. How long they would hold their values is read from the source
(variable_lifetimes.py).

Known limit: if a region returns a number and other results, the number is treated as the loss.

The program's own operators are put back into the graph. Dynamo replaces some of them by other
operators. An optimizer's `_foreach_lerp_` becomes a difference, a product and a sum, of which the
difference is as large as all gradients. Only the source line of a node names the operator that was
called.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_dynamo/polyfills/__init__.py
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import linecache
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule, Interpreter
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from nbmem.virtual.devices import CPU, is_virtual
from nbmem.virtual.hardware.eager_baseline import PeakBytes, PeakTracker
from nbmem.virtual.hardware.gpu import VirtualGPU
from nbmem.virtual.patches.eager_baseline.variable_lifetimes import kept_until
from nbmem.virtual.tensors.shapes import TensorSpec, spec_of

if TYPE_CHECKING:
    from torch.fx import Graph, Node

    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.patches.patcher import Patches

_FRAME = re.compile(r'File "([^"]*)", line (\d+), in ')
_LERP = "_foreach_lerp_"
_WRITES = frozenset({"_foreach_addcmul_", "_foreach_add_"})
"""How such a lerp ends: in 2.13 and later, and before."""


def restore_operators(graph: Graph) -> None:
    """Replace what Dynamo wrote for `_foreach_lerp_` by that operator.

    The graph is changed in place.
    """
    sub: Node | None = None
    for node in list(graph.nodes):
        name = getattr(node.target, "__name__", "")
        if name == "_foreach_sub" and _LERP in _line(node):
            sub = node
        elif sub is not None and name in _WRITES and _line(node) == _line(sub):
            _as_lerp(graph, sub, node)
            sub = None


def _as_lerp(graph: Graph, sub: Node, writes: Node) -> None:
    end, own = sub.args
    lerp: Any = torch._foreach_lerp_
    with graph.inserting_before(writes):
        # The weight is a value; memory does not depend on it, so any number will do.
        made = graph.call_function(lerp, (own, end, 0.5))
    made.meta.update(writes.meta)
    node = writes
    while True:
        before = node.prev
        if not node.users and node is not made:
            graph.erase_node(node)
        if node is sub:
            return
        node = before


def _line(node: Node) -> str:
    """Return the text of the innermost line that a node comes from.

    Empty if it is not known.
    """
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return linecache.getline(found[-1][0], int(found[-1][1])) if found else ""


_ENDLESS = 1 << 50
_CHECKPOINT = "tag_activation_checkpoint"


class RegionMemory(NamedTuple):
    """Bytes that a region takes in eager mode.

    Attributes:
        forward: The most in forward.
        kept: What forward leaves: its results, and what autograd saves.
        backward: The most in backward; None without one.
        beside: Bytes of results beside a loss, which the program may have released by then.
        inputs: Which of the arguments from an earlier region autograd saves, by number.
        results: Which results autograd saves.
    """

    forward: PeakBytes
    kept: int
    backward: PeakBytes | None
    beside: int
    inputs: frozenset[int]
    results: frozenset[int]


class CapturedRegion:
    """A region as Dynamo captured it.

    Args:
        graph: The captured graph; it is copied, for Inductor changes its own.
        inputs: Placeholders for its arguments.

    Attributes:
        dynamic: Whether its arguments may have other sizes from call to call.
        follows: Which arguments were computed before it, for backward, too.
    """

    def __init__(self, graph: GraphModule, inputs: Sequence[Any]) -> None:
        own = copy.deepcopy(graph.graph)
        restore_operators(own)
        self._graph: GraphModule | None = GraphModule(graph, own)
        self.dynamic = any(isinstance(one, torch.SymInt) for one in inputs)
        self.follows = frozenset(
            number
            for number, one in enumerate(inputs)
            if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_leaf
        )
        self._trains = [getattr(one, "requires_grad", False) for one in inputs]
        self._held = sum(1 for _ in (*_parameters(graph), *_buffers(graph)))
        self._grads = torch.is_grad_enabled()
        self._cast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")

    def of(self, args: Sequence[Any]) -> Sequence[Any] | None:
        """Return the graph's arguments among those of the compiled one.

        None where that is unclear. What the graph holds (an optimizer's parameters and state)
        stands before them there.
        """
        args = args[self._held :]
        given, more = args[: len(self._trains)], args[len(self._trains) :]
        states = all(isinstance(one, torch.Generator) for one in more)
        return given if states and len(given) == len(self._trains) else None

    def measure(self, mode: CardMode, patches: Patches, args: Sequence[Any]) -> RegionMemory:
        """Run the graph on tensors like these, on a card of its own.

        If sizes are fixed it can run only once: the graph is then dropped.
        """
        cast, dtype = self._cast
        graph = self._graph
        assert graph is not None
        try:
            with (
                _on_separate_cards(mode) as gpu,
                torch.random.fork_rng(devices=()),
                torch.set_grad_enabled(self._grads),
                torch.autocast("cuda", dtype, enabled=cast),
            ):
                return self._measured(_Replay(graph, patches), mode, gpu, args)
        finally:
            if not self.dynamic:
                self.forget()

    def forget(self) -> None:
        """Drop the graph, so that nothing of the program's is held.

        A graph and its module are a cycle, and would wait for a garbage collection. Only the copy
        is cleared; modules in it belong to the program.
        """
        graph, self._graph = self._graph, None
        if graph is not None:
            for held in (graph._parameters, graph._buffers, graph._modules):
                held.clear()

    def _measured(
        self, replay: _Replay, mode: CardMode, gpu: VirtualGPU, args: Sequence[Any]
    ) -> RegionMemory:
        inputs = [_like(mode, gpu, arg) for arg in args]
        for number, trains in enumerate(self._trains):
            if number in self.follows:
                inputs[number] = _ProducedArgument.apply(
                    torch.empty(0, requires_grad=True), inputs[number]
                )
            elif trains:
                inputs[number].requires_grad_()
        replay.own(lambda held: _like(mode, gpu, held))
        heard = PeakTracker(gpu)
        before = heard.restart()
        results = replay.run(*inputs)
        forward = heard.peak_above_start
        kept = gpu.allocator.allocated - gpu.workspaces.nbytes - before
        given = {number: storage_of(inputs[number]) for number in self.follows}
        left = {n: storage_of(one) for n, one in enumerate(results) if is_virtual(one)}
        made = [one for one in _tensors(results) if one.requires_grad]
        leaving = [
            one for one in made if not one.dim()
        ] or made  # with a loss, other results get no gradient
        unasked: int = sum(one.nbytes for one in made) - sum(one.nbytes for one in leaving)
        backward, lasts = None, (frozenset[int](), frozenset[int]())
        if leaving:
            root = _GradientSource.apply(mode, gpu, heard, *leaving)
            del made, leaving, results, inputs
            replay.env.clear()
            lasts = _live_bytes(given), _live_bytes(left)
            engine: Any = torch.autograd.Variable._execution_engine
            engine.run_backward((root,), (torch.ones_like(root),), False, False, (), True, True)
            # A compiled backward gets zeros where autograd has no gradient.
            backward = PeakBytes(*(most - unasked for most in heard.peak_above_start))
        return RegionMemory(forward, kept, backward, unasked, *lasts)


class _ProducedArgument(torch.autograd.Function):
    """The program before a region, as a node that made an argument.

    The argument is held only by what uses it in the region.
    """

    @staticmethod
    def forward(ctx: Any, _leaf: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(made)
        return made

    @staticmethod
    def backward(*_: Any) -> Any:
        return None, None


class _GradientSource(torch.autograd.Function):
    """The program behind a region, as a node that makes gradients.

    Nothing but the backward pass holds them.
    """

    @staticmethod
    def forward(
        ctx: Any, mode: CardMode, gpu: VirtualGPU, heard: PeakTracker, *results: torch.Tensor
    ) -> torch.Tensor:
        ctx.heard = heard
        forms = [_form(one) for one in results]
        ctx.gradients = lambda: mode.allocate(gpu, tuple(forms))
        return results[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        made = ctx.gradients()
        ctx.heard.restart()
        return None, None, None, *made


class _Replay(Interpreter):
    """An interpreter that runs a captured graph as the program would.

    Dynamo's own operators are replaced by those of the program. What the program's variables hold
    is live as long as they are.
    """

    def __init__(self, graph: GraphModule, patches: Patches) -> None:
        super().__init__(graph)
        self._stand_in = functools.cache(patches.replacement_of)
        self._owned: dict[str, torch.Tensor] = {}
        last = {node: user for user, nodes in self.user_to_last_uses.items() for node in nodes}
        order = {node: number for number, node in enumerate(graph.graph.nodes)}
        for node, kept in kept_until(graph.graph).items():
            used = last.get(node)
            if used is not None and order[kept] > order[used]:
                self.user_to_last_uses[used].remove(node)
                self.user_to_last_uses.setdefault(kept, []).append(node)

    def own(self, like: Callable[[Any], Any]) -> None:
        """Replace the program's own tensors by others for this run."""
        for name, held in (*_parameters(self.module), *_buffers(self.module)):
            trains = held.requires_grad
            self._owned[name] = like(held).requires_grad_(trains)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return an attribute of the graph, or what replaces it in this run."""
        owned = self._owned.get(target)
        return super().get_attr(target, args, kwargs) if owned is None else owned

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a function; run a marked checkpoint as a real one.

        In a compiled graph, checkpoints are only annotations of nodes.
        """
        if getattr(target, "_name", "") == _CHECKPOINT:
            function, *given = args
            return checkpoint(function, *given, **{"use_reentrant": False, **kwargs})
        return super().call_function(self._stand_in(target), args, kwargs)


@contextlib.contextmanager
def _on_separate_cards(mode: CardMode) -> Iterator[VirtualGPU]:
    """Replace the machine's cards by empty ones without a limit."""
    machine = mode.machine
    assert machine is not None
    machine.replace([_empty(gpu) for gpu in machine.gpus])
    try:
        yield machine.current
    finally:
        machine.restore()


def _empty(gpu: VirtualGPU) -> VirtualGPU:
    """Create an empty card of the same kind, without a memory limit."""
    card = dataclasses.replace(gpu.card, total_bytes=_ENDLESS, nvml_total=_ENDLESS)
    made = VirtualGPU(
        card, index=gpu.index, release=gpu.release, notes=gpu.notes, dnn=gpu.dnn, lock=gpu.lock
    )
    made.initialize()
    return made


def _like(mode: CardMode, gpu: VirtualGPU, arg: Any) -> Any:
    """Create a tensor like an argument, for the replay alone.

    On the card it has no values, on the CPU it is a copy. Other objects are returned themselves.
    """
    if not isinstance(arg, torch.Tensor):
        return arg
    if is_virtual(arg):
        made = mode.allocate(gpu, (_form(arg),))[0]
    else:
        made = torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype, device=CPU)
        made.copy_(arg.detach())
    return made


def _parameters(graph: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return graph.named_parameters(remove_duplicate=False)


def _buffers(graph: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return graph.named_buffers(remove_duplicate=False)


def storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    """Return a weak reference to a tensor's storage."""
    return StorageWeakRef(tensor.untyped_storage())


def _live_bytes(storages: dict[int, StorageWeakRef]) -> frozenset[int]:
    return frozenset(number for number, one in storages.items() if not one.expired())


def _form(tensor: torch.Tensor) -> TensorSpec:
    return spec_of(tuple(tensor.size()), tensor.dtype, 0, tuple(tensor.stride()))


def _tensors(results: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(results) if is_virtual(one)]
