"""Gather what is known of every allocation before categories are assigned.

Memory that an unwinding exception frees in a forward is not temporary. Without the failure it would
have stayed until backward, so it counts as activations when a caught error occurs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.session.events import BEYOND
from nbmem.core.session.tensor_names import RECOMPUTED
from nbmem.report.ledger.allocation_facts import Facts
from nbmem.report.ledger.allocation_sites import step_temporaries
from nbmem.report.ledger.autocast_copies import autocast_copies
from nbmem.report.ledger.compiled_buffers import buffer_names
from nbmem.report.ledger.cublas_workspaces import first_in_backward, select_possible_workspaces
from nbmem.report.ledger.cudnn_benchmark import SEARCH, find_cudnn_searches
from nbmem.report.ledger.ddp_buckets import find_ddp_buckets
from nbmem.report.ledger.gradients import gradient_names
from nbmem.report.ledger.grown_variables import find_growing_variables
from nbmem.report.ledger.observations import observations_of, spread_to_repeats
from nbmem.report.ledger.phase_map import NOWHERE, PhaseMap
from nbmem.report.ledger.reduction_staging import NAME, select_by_overlap, select_staging_buffers
from nbmem.report.ledger.repeated_steps import find_repeats, select_outliving_results

if TYPE_CHECKING:
    from nbmem.allocator.recordings.follow import Allocations
    from nbmem.core.arrays import Ints, Mask
    from nbmem.core.session.session import Session
    from nbmem.report.ledger.failed_requests import FailedRequests


def facts_of(
    allocations: Allocations,
    session: Session,
    device: int,
    phases: PhaseMap,
    refused: FailedRequests,
) -> tuple[Facts, Ints, tuple[str, ...]]:
    """Gather the facts of every allocation of one card.

    Args:
        allocations: Every allocation of the recording.
        session: What was recorded.
        device: Index of the card in the session's devices.
        phases: The recording's phases.
        refused: The requests that failed.

    Returns:
        The facts; for each allocation the index of its name (NO_NAME if it has none); and the texts
        of these indices, the session's first.
    """
    trace, names = session.devices[device], session.names
    events = trace.events
    born, freed, count = allocations.allocated_at, allocations.freed, len(events)
    born_in, died_in = _allocation_phase(allocations, phases), phases.of(freed)
    # Without the caught out-of-memory error, memory it freed in a forward would have stayed live.
    unwound = np.searchsorted(refused.failed, born) != np.searchsorted(refused.failed, freed)
    unwound &= phases.named(born_in, "forward") & (born_in == died_in)
    died_in = np.where((freed < count) & ~unwound, died_in, NOWHERE)
    within = _within(allocations, born_in, died_in, phases, count)
    if trace.calls is not None:
        within |= step_temporaries(allocations, born_in, phases, trace.calls, names)
    seen = observations_of(allocations, trace, names)
    scratch = select_staging_buffers(allocations, events) & within & seen.unseen
    seen.set_names(dict.fromkeys(np.flatnonzero(scratch).tolist(), NAME))
    seen.set_names(dict.fromkeys(find_cudnn_searches(allocations, session, device), SEARCH))
    undisturbed = select_by_overlap(allocations, events)
    once = select_possible_workspaces(allocations, seen.unseen, count)
    recomputed, outlive = _recomputed(allocations, session, device)
    seen.set_names(dict.fromkeys(np.flatnonzero(outlive).tolist(), f"{RECOMPUTED}backward"))
    copies = autocast_copies(
        allocations, born_in, phases, unseen=seen.unseen, session=session, device=device
    )
    seen.set_names(copies)
    others = scratch | recomputed
    others |= first_in_backward(once, allocations, phases.named(born_in, "backward"))
    known = (allocations, np.where(others, NOWHERE, born_in), phases, trace.storage_labels)
    seen.set_names(
        gradient_names(*known, of_parameters=seen.observed(Category.GRADIENTS), texts=names)
    )
    seen.set_names(buffer_names(*known, undisturbed=undisturbed, texts=names))
    kept_apart = find_ddp_buckets(
        allocations, trace.storage_labels, seen.unseen & ~within, born_in, phases
    )
    seen.add(Category.COMMUNICATION, *kept_apart)
    variables = find_growing_variables(allocations, *seen.variables, count)
    seen.set_growing_variables(variables)
    # A growing variable's size differs in each pass; other sizes may be unchanged.
    counts = ~once & ~_rows(variables, len(born))
    representative = find_repeats(allocations, born_in, phases, within, counts)
    facts = Facts(
        allocations=allocations,
        events=count,
        phases=phases,
        born_in=born_in,
        died_in=died_in,
        within_one_phase=within,
        seen_as=seen.shared_categories(representative),
        fresh=spread_to_repeats(seen.fresh, representative),
        given_cache=spread_to_repeats(seen.given_cache, representative),
        reached=seen.reached,
        kept=select_outliving_results(allocations, born_in, phases, representative, count)
        | _rows(variables, len(born)),
        kept_from_backward=select_outliving_results(
            allocations, born_in, phases, representative, count, of="backward"
        ),
        recomputed=recomputed,
        outlive_recompute=outlive,
        autocast_copies=_rows(copies, len(born)),
        undisturbed=undisturbed | scratch,
        threads=session.facts.get("threads", 1),
    )
    return facts, seen.shared_names(representative), seen.texts


def _allocation_phase(a: Allocations, phases: PhaseMap) -> Ints:
    """Return the phase in which each was allocated.

    A sum of counters, which is no tensor, belongs to no phase: NOWHERE.
    """
    born_in: Ints = np.where(a.addr < BEYOND, phases.of(a.allocated_at), NOWHERE)
    return born_in


def _within(a: Allocations, born_in: Ints, died_in: Ints, phases: PhaseMap, count: int) -> Mask:
    """Select allocations that live inside one phase or one gap.

    The allocations for the very first batch begin in `load` and end in the `input` after it. Only
    there does a batch begin with the model's input tensor.
    """
    within: Mask = (born_in == died_in) & (born_in != NOWHERE)
    first_batch = phases.named(born_in, "load") & phases.named(died_in, "input")
    within |= first_batch & (died_in == born_in + 1)
    loose = (born_in == NOWHERE) & (a.addr < BEYOND) & (a.allocated_at >= 0) & (a.freed < count)
    within |= loose & (phases.gap_of(a.allocated_at) == phases.gap_of(a.freed))
    return within


def _recomputed(a: Allocations, session: Session, device: int) -> tuple[Mask, Mask]:
    """Select what a recomputation allocated, and what outlives it."""
    spans = [one for one in session.spans if one.kind == "phase" and one.name == "recompute"]
    first = np.array([one.first[device] for one in spans], np.int64)
    last = np.array([*(one.last[device] for one in spans), -1], np.int64)  # -1: before all
    order = np.argsort(first, kind="stable")
    place = np.searchsorted(first[order], a.allocated_at, side="right") - 1
    ends = np.append(last[order], -1)[place]
    inside = (a.allocated_at >= 0) & (a.allocated_at < ends)
    return inside, inside & (a.freed >= ends)


def _rows(found: Iterable[int], count: int) -> Mask:
    mask = np.zeros(count, bool)
    mask[list(found)] = True
    return mask
