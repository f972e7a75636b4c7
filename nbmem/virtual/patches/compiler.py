"""torch.compile while a virtual card is active: compiled functions run eagerly.

A compiled function asks dynamo for its stance at every call, so patching the stance reaches what
was compiled before. Patching `torch.compile` did not, and such a call ended the process.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from nbmem.virtual.notes import COMPILE
from nbmem.virtual.patches.patcher import Patch, wanted

if TYPE_CHECKING:
    from collections.abc import Callable


def compiler_patches(note: Callable[[str], None]) -> list[Patch]:
    """What torch.compiler.set_stance("force_eager") sets.

    Dynamo asks for its stance at every call, so functions that were compiled before the card was
    switched on follow, too, and models are wrapped as they are on a card.
    """
    from torch._dynamo import eval_frame, trace_rules

    def callback_from_stance(callback: Any) -> None:
        if callback is not None and callback is not False:  # None and False: torch.compiler.disable
            note(COMPILE)

    # Computed before the patches, as it is by functions: two may have one stand-in.
    rules = trace_rules.get_torch_obj_rule_map()
    return [
        Patch(trace_rules, "get_torch_obj_rule_map", functools.cache(lambda: rules)),
        Patch(eval_frame, "_stance", eval_frame.DynamoStance("force_eager")),
        Patch(eval_frame, "_callback_from_stance", callback_from_stance),
        # It would look for the private pools of compiled graphs, of which there are none.
        Patch(torch.compiler, "cudagraph_mark_step_begin", lambda: None),
        # torch.compile() imports Inductor for this alone, which takes seconds and starts workers.
        *wanted(
            getattr(torch, "_TorchCompileInductorWrapper", None),
            {"get_compiler_config": lambda self: {}},
            only_existing=True,
        ),
    ]
