"""Two recordings in one picture: equal phases above each other, each side to its own end."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbmem
from nbmem import virtual
from nbmem.frontends.cli import main
from nbmem.report.analysis.aligned_courses import Course, aligned
from nbmem.report.analysis.compare import compare, summarize_side
from nbmem.views.charts.overlay import highest_in_columns, overlay
from nbmem.views.comparison import render_comparison
from tests.recorded_runs import load, session_of


def course(events, *phases):
    zeros = np.zeros(events + 1, np.int64)
    return Course(allocated=zeros, reserved=zeros, phases=phases)


def test_common_phases_begin_and_end_together_and_are_as_long_as_the_longer():
    a = course(8, (1, 3, "forward", 0), (3, 7, "backward", 0))
    b = course(13, (1, 9, "forward", 0), (9, 11, "backward", 0))
    at_a, at_b = aligned(a, b)
    assert (at_a[1], at_a[3], at_a[7], at_a[8]) == (1, 9, 13, 14)
    assert (at_b[1], at_b[9], at_b[11], at_b[13]) == (1, 9, 13, 15)


def test_without_common_phases_an_event_is_one_unit_on_either_side():
    at_a, at_b = aligned(course(4), course(9, (0, 9, "forward", 0)))
    assert at_a.tolist() == list(range(5))
    assert at_b.tolist() == list(range(10))


@st.composite
def courses(draw):
    edges = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=12)))
    names = draw(st.lists(st.sampled_from("fbo"), min_size=len(edges), max_size=len(edges)))
    phases = [
        (first, last, name, index // 3)
        for index, (first, last, name) in enumerate(zip(edges[:-1], edges[1:], names, strict=False))
    ]
    return course(edges[-1] + draw(st.integers(0, 5)), *phases)


@given(courses(), courses())
def test_positions_never_go_back_and_keep_every_event_apart_on_the_longer_side(a, b):
    for side, at in zip((a, b), aligned(a, b), strict=True):
        assert at[0] >= 0
        assert len(at) == len(side.allocated)
        assert (np.diff(at) >= 1).all()  # a section is as long as its longer side


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=60),
    st.integers(1, 40),
    st.integers(0, 30),
)
def test_columns_lose_no_peak(values, columns, rest):
    values = np.array(values, np.int64)
    at = np.arange(len(values))
    end = len(values) - 1 + rest + 1
    drawn = highest_in_columns(values, at, end, columns)
    assert drawn.max() == values.max()
    assert len(drawn) == min((len(values) - 1) * columns // end, columns - 1) + 1


@pytest.mark.torch
def test_both_sides_are_drawn_with_their_peaks(tmp_path):
    import torch

    files = []
    for count in (1, 3):
        with virtual.activated("T4"):
            names = {"kept": []}
            with nbmem.trace("train.py", namespace=names) as trace:
                for _ in range(count):
                    names["kept"].append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
            names.clear()
        files.append(trace.save(tmp_path / f"{count}.nbmem"))
    found = nbmem.diff(*files)
    output = str(found).splitlines()
    assert output[0] == (
        "B peaks 16.0 MiB higher than A: 24.0 MiB, not 8.0 MiB. "
        "Largest difference: user tensors, +16.0 MiB."
    )
    assert output[2:4] == ["A = 1.nbmem", "B = 3.nbmem"]  # one script's name would be no help
    page = tmp_path / "diff.html"
    assert main(["diff", *map(str, files), "--html", str(page)]) == 0
    alt = re.search(r'alt="([^"]+)"', page.read_text("utf-8")).group(1)
    assert "A, 1.nbmem: peak 8.0 MiB and of B, 3.nbmem: peak 24.0 MiB" in alt


def test_a_side_that_equals_the_other_is_told_once_and_drawn():
    side = summarize_side(session_of(load("lstm_lm_b32s128_sgd")))
    found = compare(side, side)
    assert render_comparison(found).startswith("Both sides peak at ")
    assert overlay(found) is not None
