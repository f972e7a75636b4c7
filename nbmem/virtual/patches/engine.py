"""The call into autograd's engine, so that it is known which node started which pass."""

from __future__ import annotations

import re
from typing import Any

from torch import autograd
from torch.autograd import graph

from nbmem.virtual.operators.gradients import Runs
from nbmem.virtual.patches.patcher import Patch

_TYPE = re.compile(r"\bLazy(\w+)Type\b")


def of_card(text: str) -> str:
    """A message of torch's C++, to which a virtual card is of another kind, as of a card."""
    text = _TYPE.sub(lambda found: f"torch.cuda.{found[1]}Tensor", text)
    return text.replace("lazy:", "cuda:")


def engine_patches() -> list[Patch]:
    """Both names under which torch's Python calls it."""
    true_run = graph._engine_run_backward

    def _engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        create_graph = bool(args[2]) if len(args) > 2 else bool(kwargs.get("create_graph"))
        Runs.stack.append(create_graph)
        try:
            return true_run(outputs, *args, **kwargs)
        except RuntimeError as err:
            said = of_card(str(err))
            if said == str(err):
                raise
            raise type(err)(said) from None
        finally:
            Runs.stack.pop()

    return [
        Patch(graph, "_engine_run_backward", _engine_run_backward),
        Patch(autograd, "_engine_run_backward", _engine_run_backward),
    ]
