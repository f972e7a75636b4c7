"""The rules, in the order of the catalogue: one file and one line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmem.tips.rules import (
    autocast,
    batch_size,
    cached_memory,
    card_empty,
    checkpoint_kept,
    checkpoint_on_gpu,
    checkpointing,
    ddp_buckets,
    first_step,
    fragmentation,
    framework_cache,
    fsdp_prefetch,
    fsdp_reshard,
    fsdp_unit,
    gradients_kept,
    graph_kept,
    grows_each_step,
    inplace_activations,
    no_grad_missing,
    offload,
    optimizer_state,
    other_process,
    out_history,
    pinned_memory,
    preallocated,
    reference_cycle,
    second_step_peak,
    traceback_kept,
    two_models,
    workspace,
)

if TYPE_CHECKING:
    from nbmem.tips.rule import Rule

RULES: tuple[Rule, ...] = (
    cached_memory.RULE,
    fragmentation.RULE,
    checkpoint_kept.RULE,
    checkpoint_on_gpu.RULE,
    two_models.RULE,
    no_grad_missing.RULE,
    graph_kept.RULE,
    out_history.RULE,
    traceback_kept.RULE,
    reference_cycle.RULE,
    gradients_kept.RULE,
    autocast.RULE,
    checkpointing.RULE,
    inplace_activations.RULE,
    optimizer_state.RULE,
    first_step.RULE,
    second_step_peak.RULE,
    ddp_buckets.RULE,
    fsdp_unit.RULE,
    fsdp_prefetch.RULE,
    fsdp_reshard.RULE,
    batch_size.RULE,
    grows_each_step.RULE,
    other_process.RULE,
    framework_cache.RULE,
    preallocated.RULE,
    offload.RULE,
    workspace.RULE,
    pinned_memory.RULE,
    card_empty.RULE,
)
