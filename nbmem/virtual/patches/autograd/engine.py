"""Patched calls of autograd's engine.

They record which pass runs inside which, and whether it creates a graph. They number the nodes of a
pass as a card's engine does, and name CUDA in errors.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import autograd
from torch.autograd import graph

from nbmem.virtual.hardware.current_stream import LEAF, next_number
from nbmem.virtual.operator_model.autograd_differences import runs
from nbmem.virtual.patches.patcher import Patch

_TYPE = re.compile(r"\bLazy(\w+)Type\b")


def as_cuda_message(text: str) -> str:
    """Return a C++ message with a virtual card named as CUDA.

    To C++ a virtual card is a device of another kind.
    """
    text = _TYPE.sub(lambda found: f"torch.cuda.{found[1]}Tensor", text)
    return text.replace("lazy:", "cuda:")


def _clear_engine_queue(run: Callable[..., Any], leaf: torch.Tensor) -> None:
    """Empty the engine's queue after a pass that failed.

    This frees all that the queued nodes hold. On a card the engine's own threads do so at once.
    Here a pass runs in the calling thread, whose queue is processed only in its next pass.
    """
    with (
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
    ):
        one = torch.ones((), device="cpu", dtype=leaf.dtype)
        run((leaf.neg(),), (one,), False, False, (leaf,), allow_unreachable=True)


class EngineSequenceNumbers:
    """Sequence numbers of nodes, as a card's engine thread counts them.

    The engine runs the node with the highest number first, and each thread counts for itself. A
    pass with `create_graph=True` makes its nodes in the card's thread, whose count is behind the
    caller's. So a pass over them runs the forward's nodes first. Here both are one thread.

    https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/SequenceNumber.cpp
    """

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def renumber(self, since: int, made: Iterable[Any]) -> None:
        """Renumber the card's nodes that were made from `since` on.

        Only nodes that those in `made` lead to are renumbered.
        """
        nodes = list(_reached(made, lambda node: since <= node._sequence_nr() < LEAF))
        with self._lock:
            first = self._count
            self._count += next_number() - since
        for node in nodes:
            if _is_cards(node):
                node._set_sequence_nr(first + node._sequence_nr() - since)


def _reached(roots: Iterable[Any], wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield each wanted node that roots lead to over wanted ones, once."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in seen and wanted(node):
            seen.add(id(node))
            yield node
            waiting += [behind for behind, _ in node.next_functions]


def _is_cards(node: Any) -> bool:
    try:
        return any(one.device.type == "lazy" for one in node._input_metadata)
    except (AttributeError, RuntimeError):
        return False


def _gradient_nodes(results: Any, outputs: Any, *, accumulates: bool) -> Iterator[Any]:
    """Yield the gradient nodes of a pass's results.

    With `accumulates`, also those of the gradients that it left at leaves.
    """
    for tensor in results or ():
        if torch.is_tensor(tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            yield tensor.grad_fn
    roots = [getattr(one, "node", getattr(one, "grad_fn", None)) for one in outputs]
    for node in _reached(roots if accumulates else (), lambda _: True):
        if (leaf := getattr(node, "variable", None)) is not None and leaf.grad is not None:
            yield leaf.grad.grad_fn


def engine_patches() -> list[Patch]:
    """Return patches of _engine_run_backward, under both of its names."""
    original_run = graph._engine_run_backward
    leaf = torch.zeros((), device="cpu", dtype=torch.float32, requires_grad=True)
    numbers = EngineSequenceNumbers()

    def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
        runs.stack.append(create_graph)
        since = next_number() if create_graph and len(runs.stack) == 1 else None
        try:
            results = original_run(outputs, *args, **kwargs)
        except BaseException as err:
            if len(runs.stack) == 1:
                _clear_engine_queue(original_run, leaf)
            if not isinstance(err, RuntimeError) or (message := as_cuda_message(str(err))) == str(
                err
            ):
                raise
            raise type(err)(message) from None
        finally:
            runs.stack.pop()
        if since is not None:
            accumulates = bool(kwargs.get("accumulate_grad"))
            numbers.renumber(since, _gradient_nodes(results, outputs, accumulates=accumulates))
        return results

    return [
        Patch(graph, "_engine_run_backward", _engine_run_backward),
        Patch(autograd, "_engine_run_backward", _engine_run_backward),
    ]
