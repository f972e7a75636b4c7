"""Try slices and tiles where a VAE of diffusers ran out in its decoder.

Its last blocks hold four tensors of the image's size. So what it takes is known from its channels
and from the pixels that it decodes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nbmem.core.session.categories import Category
from nbmem.core.units import format_bytes
from nbmem.report.analysis.oom.trial import Outcome
from nbmem.report.model import Finding
from nbmem.report.savings import estimated

if TYPE_CHECKING:
    from nbmem.core.arrays import Ints
    from nbmem.core.session.oom import ImageDecoding
    from nbmem.report.analysis.oom.trial import Trial

_ROUNDED = 1.02
"""Reserved bytes for each byte of what else is on the card."""
_IN_PIECES = 2
"""Reserved bytes for each allocated one: the sizes of its blocks differ."""
_RESULT = 3 * 4
"""Bytes of a pixel of the result, of three colours."""
_WAYS = ((True, False), (False, True), (True, True))


def decoded_in_parts(trial: Trial) -> Iterator[tuple[Finding, Outcome | None]]:
    """Yield slices, tiles, or both if neither is enough."""
    case = trial.case
    decoding = None if case.refusal is None else case.refusal.decoding
    if decoding is None or decoding.name is None:
        return
    whole = decoding.pixel_bytes * _at_once(decoding, sliced=False, tiled=False)
    for sliced, tiled in _WAYS:
        slices, tiles = sliced and not decoding.sliced, tiled and not decoding.tiled
        needless = (slices and decoding.images == 1) or (tiles and decoding.pixels <= decoding.tile)
        if needless or not (slices or tiles):
            continue
        size = decoding.pixel_bytes * _at_once(decoding, sliced=sliced, tiled=tiled)
        outcome = _outcome(trial, decoding, size)
        yield _finding(decoding, whole - size, slices=slices, tiles=tiles), outcome
        if outcome is not None:
            return


def decoded_without(trial: Trial, rows: Ints) -> Outcome | None:
    """Return whether the card holds what is decoded without some rows.

    None if it does not, and outside of a decoder.
    """
    decoding = None if trial.case.refusal is None else trial.case.refusal.decoding
    if decoding is None:
        return None
    size = decoding.pixel_bytes * _at_once(decoding, sliced=False, tiled=False)
    return _outcome(trial, decoding, size, freed=trial.bytes_of(rows))


def _finding(decoding: ImageDecoding, saved: int, *, slices: bool, tiles: bool) -> Finding:
    what = " and ".join(
        text for text, meant in (("one image at a time", slices), ("in tiles", tiles)) if meant
    )
    calls = ("enable_slicing()", slices), ("enable_tiling()", tiles)
    lines = [f"{decoding.name}.{call}" for call, meant in calls if meant]
    seams = " Tiles of a large image may differ slightly in tone." if tiles else ""
    return Finding(
        rule="image_decoder",
        title=f"Let the VAE decode {what}, `{'`, `'.join(lines)}`: about {format_bytes(saved)} "
        "less",
        evidence=f"It takes about {decoding.pixel_bytes:,} bytes for each pixel that it decodes "
        f"at once, by its channels, and was given {decoding.images:,} of "
        f"{decoding.pixels:,} pixels.{seams}",
        **estimated(saved),
        code="\n".join(lines),
    )


def _at_once(decoding: ImageDecoding, *, sliced: bool, tiled: bool) -> int:
    """Return the pixels that are decoded at once."""
    images = 1 if sliced or decoding.sliced else decoding.images
    in_tiles = tiled or decoding.tiled
    return images * (min(decoding.pixels, decoding.tile) if in_tiles else decoding.pixels)


def _of_the_decoder(trial: Trial) -> Ints:
    """Return what the failing call has made, by row: all temporaries of it."""
    ledger, live = trial.case.card_ledger, trial.case.card_ledger.live(trial.case.index)
    phase = int(ledger.phases.of(np.array([trial.case.index], np.int64))[0])
    passing = (
        Category.TEMPORARIES,
        Category.ACTIVATIONS,
        Category.USER_TENSORS,
        Category.UNKNOWN,
    )
    made = (ledger.born_in[live] == phase) & np.isin(ledger.category[live], passing)
    found: Ints = live[made]
    return found


def _outcome(trial: Trial, decoding: ImageDecoding, size: int, *, freed: int = 0) -> Outcome | None:
    """Return whether the card holds what a part of the pixels takes, or None.

    Args:
        trial: The failed request.
        decoding: What is decoded.
        size: Bytes that the decoder holds at once.
        freed: Bytes of what else is not on the card.
    """
    case = trial.case
    others = int(case.card_ledger.allocated[case.index]) - freed
    others -= trial.bytes_of(_of_the_decoder(trial))
    # Each part's result stays until all are joined.
    results = 2 * _RESULT * decoding.images * decoding.pixels
    if int(_ROUNDED * others) + _IN_PIECES * size + results > case.capacity:
        return None
    return Outcome("on", ends="the decoding of all images, by what its channels take")
