"""Into how many parts attention cuts the keys of one query, in torch and in flash-attn."""

from __future__ import annotations

import math


def splits_of(blocks: int, processors: int, key_blocks: int, most: int) -> int:
    """`num_splits_heuristic`: the fewest parts that keep nearly as many processors at work.

    csrc/flash_attn/flash_api.cpp of https://github.com/Dao-AILab/flash-attention/tree/0251105a

    Args:
        blocks: Of queries, over all heads and texts.
        processors: Blocks that run at the same time.
        key_blocks: Of the keys.
        most: A bound of the parts.
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
