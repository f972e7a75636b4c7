"""The rebuilt jobs are the ones that ran on the card."""

import pytest

torch = pytest.importorskip("torch", reason="the jobs are torch programs")

from tests.other_cards import gpumemnet
from tests.other_cards.__main__ import BEGIN, END, PAGE
from tests.other_cards.gpumemnet_models import arguments_of, build, parameters_of

JOBS = gpumemnet.jobs()
BEYOND_MIB = 1429
"""What a process of theirs without convolutions took beside torch's reserved bytes."""


def test_arguments_are_read_from_a_logs_name():
    name = "input_channels:1_num_classes:9_depth:2_arch:gradual_base_filters:18_batch:6"
    rest = "_input_size:70_act:leaky_relu_dropout:0.25_dropout:False_batchnorm:True.out"
    assert arguments_of(name + rest) == {
        "input_channels": 1, "num_classes": 9, "depth": 2, "arch": "gradual", "base_filters": 18,
        "batch": 6, "input_size": 70, "act": "leaky_relu", "dropout": 0.0, "batchnorm": True,
    }  # fmt: skip
    assert arguments_of(name + rest.replace("False", "True"))["dropout"] == 0.25


@pytest.mark.parametrize("kind", ["mlp1", "mlp2", "cnn"])
def test_a_network_has_as_many_parameters_as_its_log_counts(kind):
    told = [job for job in JOBS if job.kind == kind and job.parameters]
    assert len(told) >= 40
    wrong = [
        job.name
        for job in told[::4]
        if parameters_of(build(kind, arguments_of(job.name), job.parameters)) != job.parameters
    ]
    assert not wrong


@pytest.mark.parametrize("job", [JOBS[1], JOBS[70]], ids=lambda job: job.kind)
def test_a_perceptron_reserves_what_the_card_showed(job):
    said = gpumemnet.run(job)
    assert not said.error
    assert abs(said.reserved + (BEYOND_MIB << 20) - job.used) <= 2 << 20


def test_the_page_has_a_place_for_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert page.index(BEGIN) < page.index(END)
