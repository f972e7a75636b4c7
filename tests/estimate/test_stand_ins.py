"""Layers that stand in for peft and bitsandbytes take the packages' bytes."""

import gc

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("bitsandbytes")

from nbmem import virtual
from nbmem.estimates import stand_ins
from nbmem.estimates.language_models import models, program
from nbmem.estimates.language_models.settings import settings_of
from nbmem.virtual.card_names import find_card

CASES = (
    {"method": "lora", "seq": 512, "batch": 4},
    {"method": "lora", "seq": 256, "autocast": False, "targets": ("q_proj", "v_proj")},
    {"method": "qlora", "seq": 512, "batch": 4},
    {"method": "qlora", "seq": 512, "batch": 4, "autocast": False},
    {"method": "generate", "seq": 2000, "batch": 4, "bits": 4},
)
SHARED = 1024
"""bitsandbytes keeps a table of codes from run to run."""


def _peak(source):
    gc.collect()
    with virtual.activated(find_card("H100"), defer=True, eager=True):
        exec(source, {})
        return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['method']}{len(case)}")
def test_the_peak_is_that_of_the_packages(case, monkeypatch):
    model = models.find_model("smollm2-135m")
    settings = settings_of("smollm2-135m", dtype="bfloat16", **case)
    real = program.write_program(model, settings)
    assert real.run == real.source
    monkeypatch.setattr(stand_ins, "is_installed", lambda _name: False)
    stood_in = program.write_program(model, settings)
    assert stood_in.missing
    assert abs(_peak(stood_in.run) - _peak(real.run)) <= SHARED
