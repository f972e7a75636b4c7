"""A pipeline of diffusers that runs out is told to keep idle models away."""

import sys
from types import ModuleType

import pytest
import torch

import nbmem
from nbmem import virtual
from tests.estimate.small_cards import small_card

pytestmark = pytest.mark.torch
MIB = 1 << 20
LIBRARY = "/site-packages/diffusers/pipelines/pipeline_utils.py"
BASE = """
class DiffusionPipeline:
    def __init__(self, **models):
        vars(self).update(models)
        self._all_hooks = []

    def to(self, device):
        for model in vars(self).values():
            if not isinstance(model, list):
                model.to(device)
        return self

    def enable_model_cpu_offload(self):
        self._all_hooks.append("one")

    def run(self, name, x):
        model = getattr(self, name)
        if self._all_hooks:
            model.cuda()
        model(x.cuda())
        if self._all_hooks:
            model.cpu()

    def __call__(self, rows):
        import torch
        with torch.no_grad():
            self.run("text_encoder", torch.empty(8, 1024, dtype=self.dtype))
            self.run("unet", torch.empty(rows, 1024, dtype=self.dtype))
"""
PIPELINE = """
import torch
from torch import nn

class Own(DiffusionPipeline):
    dtype = torch.{dtype}

class UNet(nn.Sequential):
    pass

def model(layers, kind=nn.Sequential, size=1024):
    make = lambda: nn.utils.skip_init(nn.Linear, size, size, bias=False, dtype=torch.{dtype})
    return kind(*(make() for _ in range(layers)))

pipe = Own(text_encoder=model({first}), unet=model({second}, UNet))
pipe{way}
pipe({rows})
"""
LAYER = 1024 * 1024 * 4


@pytest.fixture
def of_diffusers(monkeypatch):
    """Return a namespace that has a base class as diffusers' is."""
    library = ModuleType("diffusers.pipelines.pipeline_utils")
    exec(compile(BASE, LIBRARY, "exec"), vars(library))
    monkeypatch.setitem(sys.modules, library.__name__, library)
    return {"__name__": "__main__", "DiffusionPipeline": library.DiffusionPipeline}


def run(names, *, fails, **values):
    """Run the pipeline on a virtual card of 1,064 MiB; return its trace."""
    values = {"dtype": "float32", "way": '.to("cuda")', "rows": 8, **values}
    names = dict(names)
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated(small_card(1064), defer=True):
        torch.cuda.init()
        code = compile(PIPELINE.format(**values), "cell.py", "exec")
        if not fails:
            with trace:
                exec(code, names)
            return trace
        with pytest.raises(torch.OutOfMemoryError), trace:
            exec(code, names)
    return trace


def test_a_pipeline_that_does_not_load_is_told_to_move_one_model_at_a_time(of_diffusers, tmp_path):
    sizes = {"first": 150, "second": 100, "dtype": "float16"}
    trace = run(of_diffusers, fails=False, way=".enable_model_cpu_offload()", **sizes)
    assert trace.report().peak.allocated < 151 * LAYER // 2 + 64 * MIB
    sizes = {"first": 300, "second": 250, "dtype": "float16"}
    trace = run(of_diffusers, fails=True, **sizes)
    (found,) = trace.report().ooms[0].remedies
    assert found.rule == "idle_models"
    assert found.code == "pipe.enable_model_cpu_offload()   # in place of pipe.to(...)"
    assert found.high == 250 * LAYER // 2
    then = run(of_diffusers, fails=False, way=".enable_model_cpu_offload()", **sizes)
    assert then.report().peak.allocated < 301 * LAYER // 2 + 64 * MIB
    saved = nbmem.open(trace.save(tmp_path / "one.nbmem"))
    (pipeline,) = saved.session.facts["pipelines"]
    assert pipeline == {
        "name": "pipe",
        "offloaded": False,
        "models": [
            {
                "module": "pipe.text_encoder",
                "class": "Sequential",
                "bytes": 150 * LAYER,
                "float32_bytes": 0,
            },
            {"module": "pipe.unet", "class": "UNet", "bytes": 125 * LAYER, "float32_bytes": 0},
        ],
    }


def test_a_pipeline_in_float32_is_told_float16_first(of_diffusers):
    trace = run(of_diffusers, fails=True, first=150, second=125)
    first, second = trace.report().ooms[0].remedies
    assert first.title == "Load pipe in float16: 550.0 MiB in place of 1.07 GiB"
    assert (first.low, second.rule) == (275 * LAYER // 2, "idle_models")
    line = '.to(torch.float16).to("cuda")'
    assert line in first.code


def test_a_model_larger_than_the_card_is_told_to_move_its_layers(of_diffusers):
    trace = run(of_diffusers, fails=True, first=500, second=10, dtype="float16")
    (found,) = trace.report().ooms[0].remedies
    assert found.code.startswith("pipe.enable_sequential_cpu_offload()")


def test_a_call_that_runs_out_is_told_which_models_wait(of_diffusers):
    """The request is served without the first model; more is not known."""
    sizes = {"first": 200, "second": 8, "rows": 20_000}
    trace = run(of_diffusers, fails=True, **sizes)
    found = {one.rule: one for one in trace.report().ooms[0].remedies}
    assert found["idle_models"].high == 200 * LAYER
    assert "pipe.unet was running" in found["idle_models"].evidence
    run(of_diffusers, fails=False, way=".enable_model_cpu_offload()", **sizes)


def test_a_pipeline_that_moves_its_models_by_itself_is_told_nothing_of_it(of_diffusers):
    way = ".enable_model_cpu_offload()"
    trace = run(of_diffusers, fails=True, first=8, second=260, way=way)
    assert trace.session.facts["pipelines"][0]["offloaded"]
    assert "idle_models" not in {one.rule for one in trace.report().ooms[0].remedies}


def test_a_pipeline_on_a_nearly_full_card_is_told_what_offloading_saves(of_diffusers):
    sizes = {"first": 150, "second": 52, "rows": 8_000}
    trace = run(of_diffusers, fails=False, **sizes)
    (found,) = [one for one in trace.report().findings if one.rule == "two_models"]
    assert found.title.startswith("`pipe.enable_model_cpu_offload()` in place of `.to(...)`")
    then = run(of_diffusers, fails=False, way=".enable_model_cpu_offload()", **sizes)
    saved = trace.report().peak.allocated - then.report().peak.allocated
    assert found.high == pytest.approx(saved, abs=MIB)
    assert not [one for one in then.report().findings if one.rule == "two_models"]


def test_a_pipeline_on_a_card_with_room_is_told_nothing(of_diffusers):
    trace = run(of_diffusers, fails=False, first=50, second=20, rows=8)
    assert trace.report().findings == ()
