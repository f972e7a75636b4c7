"""Assign a category to every allocation by a list of rules, surest first.

An allocation that no rule claims stays unknown.

There is no hook on saved tensors, which would name every activation. Under such hooks torch skips
the check that a saved tensor was modified in place. A traced cell would then compute wrong
gradients where an untraced one raises, and torch.func refuses to run under them. Reading
`grad_fn._saved_*` would run checkpoint's recomputation and save_on_cpu's copies. So an activation
is an allocation of forward that outlives it, as the events show exactly.

What a forward inside a backward allocates (checkpointing) are activations, if it outlives that
call. In backward, an allocation during whose lifetime nothing else is allocated is a temporary.
Everything else that is freed there is an output gradient. The history has no operators, so more is
not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.report.ledger.cublas_workspaces import workspaces

if TYPE_CHECKING:
    from nbmem.core.arrays import Codes, Mask
    from nbmem.report.ledger.allocation_facts import Facts


def attribute(facts: Facts) -> Codes:
    """Return the category of each allocation."""
    category = np.full(len(facts.allocations), Category.UNKNOWN, np.uint8)
    open_rows = np.ones(len(category), bool)
    for what, which in PASSES:
        claimed = open_rows & which(facts)
        category[claimed] = what
        open_rows &= ~claimed
    return category


# --- the passes


def _observed(category: Category) -> Callable[[Facts], Mask]:
    return lambda facts: facts.observed(category)


def _made(facts: Facts) -> Mask:
    """Select what a forward, backward or optimizer step allocated."""
    return facts.phases.named(facts.born_in, "forward", "backward", "optimizer")


def _given_inputs(facts: Facts) -> Mask:
    """Select the tensors given to a module, a loop's labels and KV caches.

    Detached results of another module's forward are left out, unless the loop made them itself.
    """
    batch = facts.observed(Category.ACTIVATIONS) & facts.phases.named(facts.born_in, "input")
    given = facts.observed(Category.INPUTS) & (~_made(facts) | facts.fresh)
    return given | batch | facts.given_cache


def _gathered_to_keep(facts: Facts) -> Mask:
    """Select what was gathered between steps for a notebook variable.

    A full state dict is an example.
    """
    kept = facts.observed(Category.USER_TENSORS) & facts.observed(Category.COMMUNICATION)
    return kept & ~_made(facts)


def _read_by_a_graph(facts: Facts) -> Mask:
    """Select what a graph saved for backward but did not allocate."""
    return facts.observed(Category.ACTIVATIONS) & ~_made(facts)


def _named(facts: Facts) -> Mask:
    """Select tensors held by notebook variables.

    Of a forward's results only those that outlive the next pass count.
    """
    in_forward = facts.phases.named(facts.born_in, "forward")
    return facts.observed(Category.USER_TENSORS) & (~in_forward | facts.kept)


def _gradients_by_life(facts: Facts) -> Mask:
    """Select what a backward allocated and zero_grad freed.

    These come in addition to the gradients that the probes recorded, whose rows are limited.
    """
    return (
        facts.phases.named(facts.born_in, "backward")
        & facts.phases.named(facts.died_in, "zero_grad")
        & ~facts.within_one_phase
    )


def _output_gradients(facts: Facts) -> Mask:
    """Select output gradients: allocated in backward and passed between nodes.

    Something else was allocated during the lifetime of each, so a node passed it on.
    """
    claimed = facts.phases.named(facts.born_in, "backward") & ~facts.recomputed
    return claimed & ~(facts.within_one_phase & facts.undisturbed)


def _temporaries(facts: Facts) -> Mask:
    return facts.within_one_phase


def _allocated_in(*names: str) -> Callable[[Facts], Mask]:
    return lambda facts: facts.phases.named(facts.born_in, *names)


PASSES: tuple[tuple[Category, Callable[[Facts], Mask]], ...] = (
    (Category.WEIGHTS, _observed(Category.WEIGHTS)),
    (Category.BUFFERS, _observed(Category.BUFFERS)),
    (Category.GRADIENTS, _observed(Category.GRADIENTS)),
    (Category.OPTIMIZER_STATE, _observed(Category.OPTIMIZER_STATE)),
    (Category.USER_TENSORS, _gathered_to_keep),
    (Category.COMMUNICATION, _observed(Category.COMMUNICATION)),
    (Category.INPUTS, _given_inputs),
    (Category.WORKSPACE, workspaces),
    (Category.USER_TENSORS, _named),
    (Category.INPUTS, _read_by_a_graph),
    (Category.GRADIENTS, _gradients_by_life),
    (Category.TEMPORARIES, lambda facts: facts.autocast_copies),
    (Category.ACTIVATIONS, lambda facts: facts.outlive_recompute | facts.kept_from_backward),
    (Category.OUTPUT_GRADIENTS, _output_gradients),
    (Category.TEMPORARIES, _temporaries),
    (Category.ACTIVATIONS, _allocated_in("forward", "inference")),
)
