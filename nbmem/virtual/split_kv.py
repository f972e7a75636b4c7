"""The number of splits of the keys in attention (split-KV)."""

from __future__ import annotations

import math


def num_splits(blocks: int, processors: int, key_blocks: int, max_splits: int) -> int:
    """Return the fewest splits that keep nearly all processors busy.

    This is `num_splits_heuristic` of torch and flash-attn:
    csrc/flash_attn/flash_api.cpp of https://github.com/Dao-AILab/flash-attention/tree/0251105a

    Args:
        blocks: Blocks of queries, over all heads and sequences.
        processors: Blocks that run at the same time.
        key_blocks: Blocks of keys.
        max_splits: The most splits that the kernel supports.
    """
    if blocks >= 0.8 * processors:
        return 1
    efficiencies = []
    for splits in range(1, min(max_splits, processors, key_blocks) + 1):
        waves = blocks * splits / processors
        # More splits with the same number of key blocks each leave the last ones empty.
        useful = splits == 1 or -(-key_blocks // splits) != -(-key_blocks // (splits - 1))
        efficiencies.append(waves / math.ceil(waves) if useful else 0.0)
    best = max(efficiencies)
    return next((n for n, share in enumerate(efficiencies, 1) if share and share >= 0.85 * best), 1)
