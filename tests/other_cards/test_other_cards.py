"""The rebuilt jobs are the ones that ran on the cards, and their tables are read and written."""

import pytest

torch = pytest.importorskip("torch", reason="the jobs are torch programs")

from tests.other_cards import gpumemnet, megatron_cases, peft_methods
from tests.other_cards.__main__ import BEGIN, END, PAGE, PARTS, written
from tests.other_cards.gpumemnet_models import arguments_of, build, parameters_of
from tests.other_cards.rows import Compared, summary

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


def test_a_method_is_its_adapter_and_what_its_training_has_of_its_own():
    methods = {one.name: one for one in peft_methods.methods()}
    assert len(methods) >= 50
    lora, all_weights = methods["lora/rank32"], methods["full-finetuning/lr_0.00001"]
    assert lora.adapter == {"lora_alpha": 64, "peft_type": "LORA", "r": 32}
    # Two matrices for q_proj (3,072 to 3,072) and two for v_proj (to 1,024), in 28 layers.
    assert lora.trainable == 28 * 32 * (3072 + 3072 + 3072 + 1024)
    assert (all_weights.adapter, all_weights.reserved) == ({}, 38_868_615_168)
    assert methods["lora/rank32-lorafa"].training["optimizer_type"] == "lora-fa"


def test_a_case_has_the_settings_of_its_folder():
    cases = megatron_cases.cases()
    assert {one.card for one in cases} == {"A100 80GB", "H100"}
    for case in cases:
        degrees = f"tp{case.settings.tensor}_pp{case.settings.pipeline}"
        assert degrees in case.name or case.settings.expert_tensor
        assert case.allocated < case.peak
        ranks = case.settings.tensor * case.settings.pipeline
        assert megatron_cases.WORLD % ranks == 0


def test_rows_are_summed_up_card_by_card():
    found = [
        Compared(name="a", card="A100", measured=1000 << 20, said=1002 << 20),
        Compared(name="b", card="A100", measured=1000 << 20, said=990 << 20),
        Compared(name="c", card="A100", measured=1000 << 20, error="ValueError"),
        Compared(name="d", card="H100", measured=1000 << 20, said=1000 << 20),
    ]
    assert summary("them", "reserved", "gaps", found) == [
        "| A100 | them | reserved | 2 | 1 | 0.60% | -1.00% | gaps |",
        "| H100 | them | reserved | 1 | 1 | 0.00% | +0.00% | gaps |",
    ]


@pytest.mark.parametrize("part", PARTS)
def test_the_page_has_a_place_for_the_table(part):
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN.format(part)) == page.count(END.format(part)) == 1
    assert len(written(part)) > 2
