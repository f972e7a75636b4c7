"""Rules of torch's CUDA caching allocator that depend on the release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from nbmem.core.errors import UsageError
from nbmem.core.session.tensor_names import quoted

NEWEST = "2.13.0"
"""The newest release whose rules were checked; newer ones follow its rules."""

_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class TieOrder(IntEnum):
    """The order of free blocks of equal size."""

    ADDRESS = 0
    BLOCK = 1
    SEGMENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The behaviour of one release, where releases differ.

    The comparators are in c10/cuda/CUDACachingAllocator.cpp, for example
    https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDACachingAllocator.cpp

    Attributes:
        release: The release, as requested.
        tie_order: ADDRESS up to 2.11; BLOCK (a counter of every block made) in 2.12; SEGMENT (a
            counter of every segment, then the address) since 2.13.
        scope_counts_as_capture: Up to 2.12 an active torch.cuda.use_mem_pool() defers frees and
            releases, as a graph capture does.
        expandable_private_pools: Since 2.5 private pools are expandable too.
        empty_cache_in_scope: Since 2.8 empty_cache() is allowed while a pool scope is active.
        last_key_fills_itself: Up to 2.9 the `>` of roundup_power2_divisions overwrites the last
            listed entry.
        least_max_split_mib: Smallest max_split_size_mb that is accepted.
        rounded_limit: Since 2.13 the limit that a memory fraction sets is rounded to whole bytes.
            Earlier releases truncate it. A released pool may be split again, too.
        early_use_on_oom: Pools flagged use-on-OOM are searched before memory is given back.
        has_non_split_rounding: max_non_split_rounding_mb exists.
        has_large_segment_size: large_segment_size_mb exists.
        rejects: throw_on_cudamalloc_oom and num_oom_rejections exist.
        counts_private_pools: reserved_bytes_by_private_pools exists.
        shares_blas_workspace: Since 2.13 cuBLASLt uses cuBLAS's workspace. Earlier releases give
            it its own.
        sixteenths_of_dropout: Since 2.12 cuDNN's attention is not used with a dropout that is no
            multiple of 1/16.
        embedding_sorts_rows: Since 2.13 the indices of an embedding's gradient are sorted by the
            bits that its rows have, before by all bits.
        outer_products_multiply: Since 2.13 a batched matrix product with an inner dimension of 1
            does not use cuBLAS; it is an elementwise multiplication.
        bounds_at_once: Since 2.13 the minimum and the maximum of an index, or of weights that are
            sampled, are computed before either is read; before, one after the other.
        cholesky_by_triangles: Since 2.13 cholesky_solve of a batch does two triangular solves, and
            cholesky_inverse copies the factor. 2.11 calls the library for both.
        tile_states_nested: Since 2.11 torch's default build is for CUDA 13. Its CUB puts the state
            that blocks share into a buffer of its own.
        eigenvalues_on_card: Since 2.11 eigenvalues of any matrix are computed on the card, in 2.9
            on the CPU (2.10 was not tested).
        chunks_after_results: Since 2.11 `_foreach_max` allocates the maxima of its chunks after its
            results, in 2.9 before them (2.10 was not tested).
        clamp_masks_in_place: Up to 2.13 the gradient of a clamp between tensors joins its masks in
            the first of them; since 2.14 in further masks, because it halves the gradient
            where both tensors are equal.
        attention_of_three: Since 2.14 attention inputs of three dimensions get a batch dimension
            and may use a fused kernel.
        idle_seeds_on_card: Since 2.14 fused attention without a dropout has zeros on the card for
            its seed and its offset.
        group_norm_means_wide: Since 2.13 group norm of half types has mean and deviation in float32
            beside its results; in 2.11 it has not (2.12 was not tested).
        group_norm_copies_late: Since 2.14 group norm allocates the copy of its input after the
            results.
        group_norm_sums_planes: Since 2.14 its gradient has sums per channel only if the input has
            more than one pixel (HxW).
        graph_seeds_shared: Up to 2.12 the graphs of a generator share its seed and offset on the
            card; since 2.13 each has its own.
        graph_seeds_when_drawn: Since 2.14 a graph has seeds only of generators it draws from.
        efficient_groups: Since 2.14 memory-efficient attention takes grouped queries, and every
            attention kernel takes one key head for all query heads.
    """

    release: str
    tie_order: TieOrder
    scope_counts_as_capture: bool
    expandable_private_pools: bool
    empty_cache_in_scope: bool
    last_key_fills_itself: bool
    least_max_split_mib: int
    rounded_limit: bool
    early_use_on_oom: bool
    has_non_split_rounding: bool
    has_large_segment_size: bool
    rejects: bool
    counts_private_pools: bool
    shares_blas_workspace: bool
    sixteenths_of_dropout: bool
    embedding_sorts_rows: bool
    outer_products_multiply: bool
    bounds_at_once: bool
    cholesky_by_triangles: bool
    tile_states_nested: bool
    eigenvalues_on_card: bool
    chunks_after_results: bool
    clamp_masks_in_place: bool
    attention_of_three: bool
    idle_seeds_on_card: bool
    group_norm_means_wide: bool
    group_norm_copies_late: bool
    group_norm_sums_planes: bool
    graph_seeds_shared: bool
    graph_seeds_when_drawn: bool
    efficient_groups: bool


@lru_cache(maxsize=64)
def rules_for(release: str) -> Rules:
    """Return the rules of a torch release such as `2.11.0+cu130`.

    Newer releases have the rules of the newest known one.

    Raises:
        UsageError: The text does not begin with a version number.
    """
    match = _VERSION.match(release)
    if match is None:
        raise UsageError(
            f"{quoted(release)} is not a release of torch. "
            "Write it as torch.__version__ does: 2.11.0."
        )
    version = (int(match[1]), int(match[2]))
    if version >= (2, 13):
        tie_order = TieOrder.SEGMENT
    else:
        tie_order = TieOrder.BLOCK if version >= (2, 12) else TieOrder.ADDRESS
    return Rules(
        release=release,
        tie_order=tie_order,
        scope_counts_as_capture=version < (2, 13),
        expandable_private_pools=version >= (2, 5),
        empty_cache_in_scope=version >= (2, 8),
        last_key_fills_itself=version < (2, 10),
        least_max_split_mib=20 if version >= (2, 10) else 21,
        rounded_limit=version >= (2, 13),
        early_use_on_oom=version >= (2, 10),
        has_non_split_rounding=version >= (2, 6),
        has_large_segment_size=version >= (2, 11),
        rejects=version >= (2, 12),
        counts_private_pools=version >= (2, 13),
        shares_blas_workspace=version >= (2, 13),
        sixteenths_of_dropout=version >= (2, 12),
        embedding_sorts_rows=version >= (2, 13),
        outer_products_multiply=version >= (2, 13),
        bounds_at_once=version >= (2, 13),
        cholesky_by_triangles=version >= (2, 13),
        tile_states_nested=version >= (2, 11),
        eigenvalues_on_card=version >= (2, 11),
        chunks_after_results=version >= (2, 11),
        clamp_masks_in_place=version < (2, 14),
        attention_of_three=version >= (2, 14),
        idle_seeds_on_card=version >= (2, 14),
        group_norm_means_wide=version >= (2, 13),
        group_norm_copies_late=version >= (2, 14),
        group_norm_sums_planes=version >= (2, 14),
        graph_seeds_shared=version < (2, 13),
        graph_seeds_when_drawn=version >= (2, 14),
        efficient_groups=version >= (2, 14),
    )
