"""What every allocation is for: a list of passes, surest first; what none claims stays unknown.

There is no hook on saved tensors, which would name every activation: torch then skips the check
that one was modified in place (a traced cell would compute wrong gradients where an untraced one
raises), and torch.func refuses to run under such hooks. Reading `grad_fn._saved_*` would run
checkpoint's recomputation and save_on_cpu's copies. So an activation is what is born in forward and
outlives it, which the events say exactly.

In backward, what lives while nothing else is allocated is a temporary; everything else that dies
there is an output gradient. The history has no operators, and this is as far as it goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.ledger.cublas_workspaces import workspaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from nbmem.report.ledger.allocation_facts import Facts

    Mask = NDArray[np.bool_]


def attribute(facts: Facts) -> NDArray[np.uint8]:
    """The category of each allocation."""
    category = np.full(len(facts.allocations), Category.UNKNOWN, np.uint8)
    open_rows = np.ones(len(category), bool)
    for what, which in PASSES:
        mine = open_rows & which(facts)
        category[mine] = what
        open_rows &= ~mine
    return category


# --- the passes


def _seen(category: Category) -> Callable[[Facts], Mask]:
    return lambda facts: facts.seen(category)


def _made(facts: Facts) -> Mask:
    """Made by the training loop, and so no input of it."""
    return facts.phases.named(facts.born_in, "forward", "backward", "optimizer")


def _given_inputs(facts: Facts) -> Mask:
    """Given to a module, and not the detached result of another one's forward; a loop's labels."""
    batch = facts.seen(Category.ACTIVATIONS) & facts.phases.named(facts.born_in, "input")
    return (facts.seen(Category.INPUTS) & (~_made(facts) | facts.fresh)) | batch


def _gathered_to_keep(facts: Facts) -> Mask:
    """Gathered between the steps for a name of the notebook: a full state dict."""
    kept = facts.seen(Category.USER_TENSORS) & facts.seen(Category.COMMUNICATION)
    return kept & ~_made(facts)


def _read_by_a_graph(facts: Facts) -> Mask:
    """Saved for backward, though no graph has made it."""
    return facts.seen(Category.ACTIVATIONS) & ~_made(facts)


def _named(facts: Facts) -> Mask:
    """Named from the notebook; of a forward's results those that are kept."""
    in_forward = facts.phases.named(facts.born_in, "forward")
    return facts.seen(Category.USER_TENSORS) & (~in_forward | facts.kept)


def _gradients_by_life(facts: Facts) -> Mask:
    """Left by a backward and taken by zero_grad (beyond the rows that identities may have)."""
    return (
        facts.phases.named(facts.born_in, "backward")
        & facts.phases.named(facts.died_in, "zero_grad")
        & ~facts.within_one_phase
    )


def _output_gradients(facts: Facts) -> Mask:
    """Born in backward; something else was allocated while they lived, so a node passed them on."""
    return facts.phases.named(facts.born_in, "backward") & ~(facts.within_one_phase & facts.calm)


def _temporaries(facts: Facts) -> Mask:
    return facts.within_one_phase


def _born_in(*names: str) -> Callable[[Facts], Mask]:
    return lambda facts: facts.phases.named(facts.born_in, *names)


PASSES: tuple[tuple[Category, Callable[[Facts], Mask]], ...] = (
    (Category.WEIGHTS, _seen(Category.WEIGHTS)),
    (Category.BUFFERS, _seen(Category.BUFFERS)),
    (Category.GRADIENTS, _seen(Category.GRADIENTS)),
    (Category.OPTIMIZER_STATE, _seen(Category.OPTIMIZER_STATE)),
    (Category.USER_TENSORS, _gathered_to_keep),
    (Category.COMMUNICATION, _seen(Category.COMMUNICATION)),
    (Category.INPUTS, _given_inputs),
    (Category.WORKSPACE, workspaces),
    (Category.USER_TENSORS, _named),
    (Category.INPUTS, _read_by_a_graph),
    (Category.GRADIENTS, _gradients_by_life),
    (Category.OUTPUT_GRADIENTS, _output_gradients),
    (Category.TEMPORARIES, _temporaries),
    (Category.ACTIVATIONS, _born_in("forward", "inference")),
)
