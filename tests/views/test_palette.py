"""Colours of adjacent areas are distinct for colour-blind readers.

Dichromacy is simulated as in Machado, Oliveira and Fernandes (2009), severity 1.0; differences are
CIE76 distances in L*a*b*, where about 2 is just noticeable.
"""

from itertools import combinations, pairwise

import numpy as np
import pytest

from nbmem.core.session.categories import ACTIVE, LIVE, Category
from nbmem.views.palette import (
    ALLOCATED,
    COLOURS,
    HATCHES,
    INK,
    PHASE_TINTS,
    TINT_INK,
    swatch_style,
)

SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
PAGES = {"light": "#FFFFFF", "dark": "#111111"}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour, sight):
    seen = np.clip(SIGHT[sight] @ linear(colour), 0, 1)
    xyz = TO_XYZ @ seen / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one, other, sight):
    return float(np.linalg.norm(lab(one, sight) - lab(other, sight)))


def contrast(one, other):
    luminance = sorted(float(TO_XYZ[1] @ linear(c)) for c in (one, other))
    return (luminance[1] + 0.05) / (luminance[0] + 0.05)


def test_the_measure_itself():
    assert difference("#000000", "#FFFFFF", "normal") == pytest.approx(100, abs=0.1)
    red, green = "#C04000", "#5C7A00"
    assert difference(red, green, "deuteranopia") < difference(red, green, "normal") / 2


def test_every_category_has_one_colour_of_its_own():
    assert set(COLOURS) == set(Category)
    assert len(set(COLOURS.values())) == len(Category)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "pair", list(pairwise(c for c in Category if c is not Category.FREE)), ids=lambda p: p[0].key
)
def test_stacked_neighbours_stay_apart(pair, sight):
    one, other = pair
    assert difference(COLOURS[one], COLOURS[other], sight) >= 15


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_live_categories_stay_apart(sight):
    # Empty categories drop out of a stack, so any two can become neighbours.
    nearest = min(
        (difference(COLOURS[a], COLOURS[b], sight), a.key, b.key) for a, b in combinations(LIVE, 2)
    )
    assert nearest[0] >= 15, nearest


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("category", ACTIVE, ids=lambda c: c.key)
def test_every_area_stands_out_from_the_page(category, sight, page):
    assert difference(COLOURS[category], PAGES[page], sight) >= 15


@pytest.mark.parametrize("sight", SIGHT)
def test_what_a_reading_does_not_split_is_like_no_category(sight):
    others = [*(COLOURS[category] for category in Category), *PAGES.values()]
    assert min(difference(ALLOCATED, other, sight) for other in others) >= 15


@pytest.mark.parametrize("page", PAGES)
def test_ink_reads_on_both_pages(page):
    assert contrast(INK, PAGES[page]) >= 4


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("other", ["load", "forward", "optimizer"])
def test_the_input_has_a_tint_of_its_own(other, sight):
    assert difference(PHASE_TINTS["input"], PHASE_TINTS[other], sight) >= 10


@pytest.mark.parametrize("phase", PHASE_TINTS)
def test_text_reads_on_every_tint(phase):
    assert contrast(TINT_INK, PHASE_TINTS[phase]) >= 4.5


def test_what_no_tensor_holds_is_grey():
    for category in (Category.CACHED_RELEASABLE, Category.CACHED_STUCK, Category.CONTEXT):
        _, a, b = lab(COLOURS[category], "normal")
        assert np.hypot(a, b) < 12


def test_a_hatched_category_has_a_hatched_swatch():
    for category in HATCHES:
        assert HATCHES[category] in swatch_style(category)
    assert COLOURS[Category.WEIGHTS] in swatch_style(Category.WEIGHTS)
