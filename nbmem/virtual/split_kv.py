"""The number of splits of the keys in attention (split-KV)."""

from __future__ import annotations

import math


def splits_of(blocks: int, processors: int, key_blocks: int, most: int) -> int:
    """Return the fewest splits that keep nearly all processors busy.

    This is `num_splits_heuristic` of torch and flash-attn:
    csrc/flash_attn/flash_api.cpp of https://github.com/Dao-AILab/flash-attention/tree/0251105a

    Args:
        blocks: Blocks of queries, over all heads and sequences.
        processors: Blocks that run at the same time.
        key_blocks: Blocks of keys.
        most: The most splits.
    """
    if blocks >= 0.8 * processors:
        return 1
    most = min(most, processors, key_blocks)
    shares = []
    for parts in range(1, most + 1):
        waves = blocks * parts / processors
        fits = parts == 1 or -(-key_blocks // parts) != -(-key_blocks // (parts - 1))
        shares.append(waves / math.ceil(waves) if fits else 0.0)
    best = max(shares)
    return next((at for at, share in enumerate(shares, 1) if share and share >= 0.85 * best), 1)
