"""Part of the sweep: earlier false tips, and one fault of each kind."""

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

from tests.tips.sweep.faults import FAULTS
from tests.tips.sweep.run import PROGRAMS, Case, run_case

BY_NAME = {program.name: program for program in PROGRAMS}
SILENT = {
    "features of a frozen net without no_grad": "no_grad_missing",
    "a frozen backbone with a head of its own": "no_grad_missing",
    "evaluation in batches eight times as large": "fragmentation",
    "dcgan": "fragmentation",
    "a thing that trains inside an object of the user's": "two_models",
    "a penalty on the distance from the weights at the start": "gradients_kept",
    "a CUDA graph with static gradients": "gradients_kept",
}
"""Program to the rule that was wrong about it."""
SPOKEN = {
    "no_grad_missing": "low-rank adapters beside frozen weights",
    "graph_kept a running sum": "low-rank adapters beside frozen weights",
    "graph_kept outputs in a list": "low-rank adapters beside frozen weights",
    "checkpoint_kept": "low-rank adapters beside frozen weights",
    "two_models": "low-rank adapters beside frozen weights",
    "grows_each_step": "low-rank adapters beside frozen weights",
    "reference_cycle": "one net for each fold",
    "gradients_kept": "a net with a moving average that is evaluated",
    "cached_memory": "a variational autoencoder",
}
"""Fault to the program into which it is put."""
RECURRENT = "a recurrent language model, hidden state carried on"
"""Its graph keeps a few tensors only, and its layers have their weights in one storage."""


@pytest.mark.parametrize("name", SILENT)
def test_a_strangers_healthy_program_gets_no_tip(name):
    found = run_case(Case(program=BY_NAME[name], card="T4"))
    assert found.error is None
    assert found.titles == ()


@pytest.mark.parametrize(
    ("what", "name"),
    [*SPOKEN.items(), ("no_grad_missing", RECURRENT), ("checkpoint_kept", RECURRENT)],
)
def test_a_fault_put_in_gets_its_tip_first_and_the_promise_is_kept(what, name):
    fault = next(f for f in FAULTS if " ".join(filter(None, (f.rules[0], f.name))) == what)
    found = run_case(Case(program=BY_NAME[name], card="T4", fault=fault))
    assert found.error is None
    assert found.first, found.titles
    assert found.kept is not False, found.promise


def test_every_fault_has_its_program():
    assert [" ".join(filter(None, (f.rules[0], f.name))) for f in FAULTS] == list(SPOKEN)
