"""Partial sums of Hopper's own convolution kernels.

These sums fill the whole card. cuDNN reports how such a kernel divides its result into tiles
and clusters (hardware/cudnn). Only a real card determines how many run at once, so that is a
rule, derived from recordings of an H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbmem.virtual.cards import Card
    from nbmem.virtual.hardware.cudnn.problem import Tiling

# Larger clusters run within a part of the card and leave some of it idle: of 132 multiprocessors
# 120 were at work in clusters of 8 (resnet50_b64_sgdm_ampfp16) and of 4 (unet_b8_adam).
IN_LARGE_CLUSTERS = 120 / 132
AT_WORK = {1: 1.0, 2: 1.0, 3: 117 / 132, 5: 110 / 132, 6: 96 / 132}
"""Shares by a cluster's size: 13 parts of 3 clusters of 3 (vgg16), 11 of 2 of 5 (efficientnet_v2_s)
and 2 of 8 of 6 (convnext_tiny)."""
# Short sums are divided evenly, and not into sums that are too short. Terms and parts:
# 784: 2 (resnet152_b16, 512 to 512); 1,568: 7 (resnet50_b32), where 11 would fill the card;
# 1,152: 4 and 576: 2 (vgg16, squeezenet1_1); 2,048: 2 and not 3 (inception_v3, 1280 to 448).
# But 2,304: 15 (unet_b8).
SHORT_SUM, LEAST_SUM = 2048 * 4, 224 * 4
"""Bytes of the factors from one of the two tensors; the figures above are of float32."""
# Sums of half types are divided into as many parts as make them the shortest. Each round of sums in
# pairs costs as much as so many more terms. This holds for 447 of 515 such products of networks
# recorded on an H100, and for 445 of 496 others. With as many parts as fill the card: 360, 329.
ROUND = {4096: 900, 8192: 700}
"""By the elements of a tile, of float16."""
ROUND_OF_LARGE = 300
ROUND_BFLOAT16 = 46_000_000
"""Terms times elements of a tile."""
LARGE, MANY = 100_000_000, 8
"""Of bfloat16 so much work is divided into as many parts as fill the card, if those are many."""
COUNTER, BESIDE_SUMS, COUNTERS_ALIGNED = 4, 32, 127
FEW_ROUNDS = 2
HALF = 2


@dataclass(frozen=True, slots=True)
class ConvolutionProduct:
    """A convolution's matrix product, for one of its three kernels.

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result, of one element of the window if each has its own.
        windows: How many such elements there are.
        terms: Products added up for one element of the result.
        item: Bytes of one factor.
        dtype: Type of the factors.
    """

    rows: int
    columns: int
    windows: int
    terms: int
    item: int
    dtype: str = "float32"

    def tiles(self, tiling: Tiling) -> int:
        """Return the number of tiles of the result, in whole clusters.

        A tile holds several elements of the window if they fit.
        """
        down, across = tiling.cluster
        rows = ceil(self.rows / tiling.rows)
        several = max(1, tiling.columns // self.columns) if self.windows > 1 else 1
        columns = ceil(self.windows / several) * ceil(self.columns / tiling.columns)
        return ceil(rows / down) * down * ceil(columns / across) * across

    def rounds(self, tiling: Tiling, card: Card) -> float:
        """Return how often all clusters that run at once would have to run."""
        return self.tiles(tiling) / prod(tiling.cluster) / clusters_at_once(tiling, card)

    def parts(self, tiling: Tiling, card: Card) -> tuple[int, int]:
        """Return the number of divided tiles, and of the partial sums of each.

        There are as many as fill the card. Of more clusters than run at once, those of the last
        round are divided.
        """
        size = prod(tiling.cluster)
        at_once = clusters_at_once(tiling, card)
        clusters = self.tiles(tiling) // size
        left = clusters if clusters <= at_once else clusters % at_once
        fill = at_once // max(1, left)
        if self.item == HALF:
            return left * size, self._shortest(fill, tiling.rows * tiling.columns) if left else 1
        if self.terms * self.item <= SHORT_SUM:
            most = min(fill, self.terms * self.item // LEAST_SUM)
            fill = max((n for n in range(1, most + 1) if self.terms % n == 0), default=1)
        return left * size, fill

    def _shortest(self, most: int, tile: int) -> int:
        """Return the number of partial sums of a half type.

        `most` of them fill the card.
        """
        cost = ROUND.get(tile, ROUND_OF_LARGE)
        if self.dtype == "bfloat16":
            if most >= MANY and self.terms * tile >= LARGE:
                return most
            cost = ROUND_BFLOAT16 // tile
        parts = range(1, most + 1)
        return min(parts, key=lambda n: (self.terms / n + cost * (n - 1).bit_length(), n))


def clusters_at_once(tiling: Tiling, card: Card) -> int:
    """Return the number of clusters that run on the card at once."""
    size = prod(tiling.cluster)
    at_work = round(card.processors * AT_WORK.get(size, IN_LARGE_CLUSTERS))
    return max(1, at_work // size)


def partial_sums(product: ConvolutionProduct, tiling: Tiling, card: Card) -> int:
    """Return the bytes of the float32 tiles that are added up at the end."""
    tiles, parts = product.parts(tiling, card)
    return tiles * parts * tile_bytes(tiling) if tiling.splits and parts > 1 else 0


def counters(
    product: ConvolutionProduct, tiling: Tiling, card: Card, *, queued: bool | None = None
) -> int:
    """Return the bytes of the counters.

    There is one for each sum of two, and one from which clusters take their next work. The
    parts are summed in pairs, round by round: 14 need 7 + 4 + 2 + 1 counters, 3 need 2 + 1.
    This holds on an H100 with 2, 3, 5, 7, 11, 13, 14 and 15 parts. Clusters are queued from
    more than two rounds on (1.7 and less had no counter, 2.1 and more had; tests/card, cuDNN
    9.19).

    Args:
        product: Of the convolution.
        tiling: How cuDNN divides it.
        card: On which it runs.
        queued: Whether clusters are queued; None: in many rounds.
    """
    tiles, parts = product.parts(tiling, card)
    if queued is None:
        queued = product.rounds(tiling, card) > FEW_ROUNDS
    found = COUNTER if queued else 0
    if tiling.splits and parts > 1:
        pairs, left = 0, parts
        while left > 1:
            left = ceil(left / 2)
            pairs += left
        found += COUNTER * tiles * pairs + BESIDE_SUMS
    return found and found + COUNTERS_ALIGNED


def tile_bytes(tiling: Tiling) -> int:
    """Return the bytes of one tile in float32."""
    return tiling.rows * tiling.columns * 4
