"""The call into autograd's engine, so that it is known which node started which pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import autograd
from torch.autograd import graph

from nbmem.virtual.operators.gradients import Runs
from nbmem.virtual.patches.patcher import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_TYPE = re.compile(r"\bLazy(\w+)Type\b")


def of_card(text: str) -> str:
    """A message of torch's C++, to which a virtual card is of another kind, as of a card."""
    text = _TYPE.sub(lambda found: f"torch.cuda.{found[1]}Tensor", text)
    return text.replace("lazy:", "cuda:")


def _let_go(run: Callable[..., Any], leaf: torch.Tensor) -> None:
    """Empty the engine's queue of what a pass that failed had still to do, and all that this holds.

    On a card the engine's own threads do so at once. Here a pass runs in the calling thread, whose
    queue waits for its next pass.
    """
    with (
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
    ):
        one = torch.ones((), device="cpu", dtype=leaf.dtype)
        run((leaf.neg(),), (one,), False, False, (leaf,), allow_unreachable=True)


def engine_patches() -> list[Patch]:
    """Both names under which torch's Python calls it."""
    true_run = graph._engine_run_backward
    leaf = torch.zeros((), device="cpu", dtype=torch.float32, requires_grad=True)

    def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
        Runs.stack.append(create_graph)
        try:
            return true_run(outputs, *args, **kwargs)
        except BaseException as err:
            if len(Runs.stack) == 1:
                _let_go(true_run, leaf)
            if not isinstance(err, RuntimeError) or (said := of_card(str(err))) == str(err):
                raise
            raise type(err)(said) from None
        finally:
            Runs.stack.pop()

    return [
        Patch(graph, "_engine_run_backward", _engine_run_backward),
        Patch(autograd, "_engine_run_backward", _engine_run_backward),
    ]
