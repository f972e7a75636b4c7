"""Recorded H100 workloads on the virtual card, to the byte."""

import importlib.util

import pytest
import torch

import nbmem.api.tracing as nbmem
from nbmem import virtual
from nbmem.capture.graphs.saved_tensors import why_unreadable
from nbmem.core.session.categories import Category
from tests.accuracy.one import Run
from tests.recorded_runs import CATEGORIES, load

PLAIN = [
    "dlrm_like_b2048_adagrad",
    "lstm_lm_b32s128_sgd",
    "nn_transformer_b32s256_adam",
    "unet_b8_adam",
]
TRANSFORMERS = [
    "bert_base_b16s128_adamw",
    "gpt2_b4s512_adamw",
    "gpt2_b8s512_adamw_ampbf16",
    "gptneox_b8s512_adamw",
    "llama160m_b4s1024_adamw_ampbf16",
    "llama160m_b8s1024_adamw_ampbf16_ckpt",
    "opt125m_b8s256_adam",
    "t5_small_b8s256_adafactor",
]
without = not importlib.util.find_spec("transformers")
skip = pytest.mark.skipif(without, reason="transformers is not installed")
WORKLOADS = [*PLAIN, *(pytest.param(name, marks=skip) for name in TRANSFORMERS)]


@pytest.fixture(scope="module", params=WORKLOADS)
def traced(request):
    with virtual.activated("H100 80GB", release="2.11.0"):
        with nbmem.trace(request.param, namespace={}) as t:
            Run(request.param).go()
        return load(request.param), t.report()


def test_identified_categories_are_the_real_cards(traced):
    raw, report = traced
    at_end = {(p.name, p.step): p.ledger_at_end for p in report.phases if p.depth == 0}
    for seen in raw["categories"]:
        ledger = at_end[seen["at"], seen["it"]]
        for key, category in CATEGORIES.items():
            real = sum(dict(map(tuple, seen[key])).values())
            assert ledger[category] == real, (seen["at"], seen["it"], key)


def test_the_phases_are_the_recorded_ones(traced):
    raw, report = traced
    phases = [(p.name, p.step) for p in report.phases if p.depth == 0]
    assert phases == [(b["end_of"], None if b["it"] < 0 else b["it"]) for b in raw["bounds"]]


def test_hardly_anything_is_unknown_at_the_peak(traced):
    _, report = traced
    at_peak = report.ledger_at_peak
    assert at_peak[Category.UNKNOWN] <= 0.01 * at_peak.active


def test_the_books_balance_without_a_note(traced):
    _, report = traced
    assert len(report.notes) == (why_unreadable() is not None)
    for phase in report.phases:
        phase.ledger_at_end.check(allocated=phase.allocated, reserved=phase.reserved)
        phase.ledger_at_peak.check(allocated=phase.peak_allocated)


@pytest.mark.skipif(torch.__version__ < (2, 11), reason="the runs were recorded with torch 2.11")
def test_the_peaks_are_the_recorded_ones(traced):
    raw, report = traced
    # Where cuDNN is not installed, the workspaces of convolutions and LSTMs are rules alone.
    for mine, name, most in (
        (report.peak.allocated, "peak_allocated", 0.02),
        (report.peak.reserved, "peak_reserved", 0.03),
    ):
        real = max(bound[name] for bound in raw["bounds"])
        assert mine == pytest.approx(real, rel=most), name
