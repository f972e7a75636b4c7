"""Estimates by the engine torch: what is refused, how a run is set apart, how answers name it."""

import os
import signal

import pytest

pytest.importorskip("torch", reason="estimates run programs of torch")

import nbmem
from nbmem.core.errors import NbmemError, UsageError
from nbmem.engine import RULES, TORCH, choice, process
from nbmem.estimates import answers
from nbmem.estimates.runs import run_card, worker_processes
from nbmem.report.estimate_results import CardFigures, Fit
from nbmem.views.exports.estimates import fit_json


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: nbmem.estimate(print, "T4", ranks=4, engine="torch"), choice.NO_RANKS),
        (lambda: nbmem.fit(print, "T4", ranks=4, engine="torch"), choice.NO_RANKS),
        (lambda: nbmem.plan(print, "all", engine="torch"), "it is on one card"),
        (lambda: nbmem.plan(print, "T4", engine="best"), "There is no engine 'best'"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_before_anything_runs(ask, reason):
    with pytest.raises(UsageError, match=reason):
        ask()


def test_an_answer_names_the_engine_that_made_it():
    card = CardFigures(name="L4", total=24 << 30, margin=0, driver=0)
    fit = Fit(
        title="cell", variable="batch", card=card, best=8, safe=8, limit=9, low=1, high=None,
        step=1, probes=(), total=None, parts=(), sentences=("It fits.",),
    )  # fmt: skip
    assert answers.named(fit, RULES) is fit
    assert fit_json(fit)["card"]["engine"] == "rules"
    named = fit_json(answers.named(fit, TORCH))
    assert named["card"]["engine"] == "torch"
    assert named["sentences"] == ("It fits.", answers.BY_TORCH)


@pytest.fixture
def on_the_engine(monkeypatch):
    """Runs are set apart as on the engine torch."""
    if not hasattr(os, "fork"):
        pytest.skip("the engine is for Linux")
    monkeypatch.setattr(process, "active", lambda: True)


def test_a_run_has_a_fork_and_hands_its_result_over(on_the_engine):
    assert run_card.run_forked(os.getpid) != os.getpid()
    assert run_card.run_forked(lambda: {"peak": 1 << 40}) == {"peak": 1 << 40}


def refuse():
    raise UsageError("The script makes no model.")


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (refuse, "The script makes no model."),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "The process of a run ended by itself."),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: lambda: 0, "pickle"),
    ],
)
def test_a_run_that_fails_in_its_fork_is_a_sentence(on_the_engine, work, sentence):
    with pytest.raises(NbmemError, match=sentence):
        run_card.run_forked(work)


def test_a_worker_of_rules_is_not_started_on_the_stand_in(on_the_engine, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LD_PRELOAD", f"{tmp_path}/nbmem/engine/t/libcuda.so.1:/lib/other.so")
    monkeypatch.setenv(process.GPU, "T4")
    found = worker_processes.process_environment()
    assert found["LD_PRELOAD"] == "/lib/other.so"
    assert process.GPU not in found
