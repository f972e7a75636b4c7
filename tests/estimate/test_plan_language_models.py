"""Remedies of a plan for libraries' models hold what their lines hold."""

import functools
import importlib
import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from nbmem import virtual
from nbmem.estimates.programs import programs
from nbmem.estimates.remedies import BY_KEY, diffusion, language_models
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.stand_ins import with_stand_ins

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    vocab_size=8000, hidden_size=64, intermediate_size=64, num_hidden_layers={layers},
    num_attention_heads=2, attn_implementation="{attention}",
)
model = LlamaForCausalLM(config).to(torch.{dtype})
"""
EAGER = MODEL.format(layers=1, attention="eager", dtype="float32")
FUSED = MODEL.format(layers=1, attention="sdpa", dtype="bfloat16")
ADAPTED = f"{FUSED}\n{language_models.Adapters.lines.format(model='model')}"
STEPS = """
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    ids = torch.zeros(1, 2048, dtype=torch.int64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GENERATION = """
model = model.cuda().eval()
ids = torch.ones(8, 2000, dtype=torch.int64, device="cuda")
with torch.no_grad():
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3)
"""
GROUPED = FUSED.replace("num_attention_heads=2", "num_attention_heads=2, num_key_value_heads=1")
HALF = MODEL.format(layers=2, attention="sdpa", dtype="float16")
OTHER = "import torch\nmodel = torch.nn.Linear(8, 8).cuda()\nmodel(torch.ones(8, device='cuda'))"


@functools.cache
def run(source, *keys):
    """Run a program under remedies on a virtual T4."""
    cell = programs.cell(with_stand_ins(source)[0], {})
    return probe(cell, Request(card=virtual.find_card("T4"), remedies=keys))


@pytest.mark.parametrize(
    ("key", "made", "used"),
    [
        ("loss_in_parts", EAGER, STEPS),
        ("fused_attention", EAGER, STEPS),
        ("lora", FUSED, STEPS),
        ("four_bit", ADAPTED, STEPS),
        pytest.param("half_adapters", ADAPTED, STEPS, marks=pytest.mark.long),
        ("float16", FUSED, GENERATION),
        ("repeated_heads", GROUPED.replace("bfloat16", "float16"), GENERATION),
        pytest.param("offloaded_cache", HALF, GENERATION, marks=pytest.mark.long),
    ],
)
def test_the_lines_hold_what_the_remedy_holds(key, made, used, monkeypatch):
    kept = importlib.import_module("transformers.integrations.sdpa_attention")
    monkeypatch.setattr(kept, "use_gqa_in_sdpa", kept.use_gqa_in_sdpa)  # pasted lines change it
    plain, changed = run(made + used), run(made + used, key)
    assert changed.refused is None
    assert changed.probe.allocated < plain.probe.allocated
    pasted = run(f"{made}\n{changed.code}\n{used}")
    assert pasted.probe.allocated == changed.probe.allocated


def test_adapters_leave_state_for_themselves_alone():
    held = run(FUSED + STEPS, "lora").probe.held
    linear = 4 * 64 * 64 + 3 * 64 * 64
    adapters = 7 * 16 * (64 + 64)
    assert held["optimizer state"] == 2 * 4 * adapters + 2 * 7 * 4  # and their steps
    assert held["weights"] == 2 * (linear + 2 * 8000 * 64 + 3 * 64) + 4 * adapters


def test_a_model_on_the_card_is_not_packed_and_one_with_an_optimizer_not_adapted():
    there = ADAPTED.replace("(config).to", "(config).cuda().to")
    assert "load it with quantization_config" in run(there + STEPS, "four_bit").refused
    early = STEPS.replace("model = model.cuda()\n", "").replace("for _", "model.cuda()\nfor _")
    assert "before the model is moved" in run(FUSED + early, "lora").refused


@pytest.mark.parametrize("key", ["loss_in_parts", "fused_attention", "lora", "float16"])
def test_other_models_are_left_alone(key):
    assert run(OTHER, key).refused


DIFFUSERS = """
import sys, torch
class Vae(torch.nn.Module):
    tiles = False
    def enable_tiling(self): self.tiles = True
    def enable_slicing(self): pass
    def forward(self, x): return (x[:, :2] if self.tiles else x) * 2
class Pipeline(sys.modules["diffusers.pipelines.pipeline_utils"].DiffusionPipeline):
    def __init__(self):
        self.vae, self.text = Vae(), torch.nn.Linear(512, 512)
pipe = Pipeline()
pipe.to("cuda")
pipe.vae(torch.ones(1024, 1024, device="cuda"))
"""


@pytest.fixture
def _diffusers(monkeypatch):
    """Stand in for the base class of diffusers' pipelines."""

    class DiffusionPipeline:
        def to(self, *args, **kwargs):
            for part in vars(self).values():
                part.to(*args, **kwargs)
            return self

        def enable_model_cpu_offload(self):
            self.to("cpu")

    library = ModuleType(diffusion.LIBRARY)
    library.DiffusionPipeline = DiffusionPipeline
    monkeypatch.setitem(sys.modules, diffusion.LIBRARY, library)


@pytest.mark.usefixtures("_diffusers")
def test_a_pipeline_decodes_in_tiles_or_leaves_its_models_on_the_host():
    plain = run(DIFFUSERS).probe.allocated
    tiled, away = run(DIFFUSERS, "tiled_decoder"), run(DIFFUSERS, "offloaded_models")
    assert tiled.code == "pipe.vae.enable_tiling()\npipe.vae.enable_slicing()"
    assert plain - tiled.probe.allocated == 4 * 1024 * 1022
    assert away.code.startswith("pipe.enable_model_cpu_offload()")
    assert plain - away.probe.allocated == 4 * (512 * 512 + 512)


def test_what_a_program_has_not_imported_is_not_tried(monkeypatch):
    monkeypatch.setattr(diffusion, "LIBRARY", "no_such_library")
    assert BY_KEY["tiled_decoder"].missing() == BY_KEY["tiled_decoder"].not_applicable
    importlib.import_module(language_models.LIBRARY)
    assert BY_KEY["lora"].missing() is None
