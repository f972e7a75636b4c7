"""Names in compiled regions, from their graphs' nodes."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import nbmem
from nbmem import virtual
from nbmem.capture.graphs import compiled_regions, inductor_wrapper
from nbmem.core.session.categories import Category
from nbmem.report.ledger.card_ledger import CardLedger
from nbmem.virtual.patches.compiled.compiler import PLANNED

nn = torch.nn
SIDE = 256
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned"),
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(SIDE)
        self.up = nn.Linear(SIDE, 4 * SIDE)
        self.down = nn.Linear(4 * SIDE, SIDE)

    def forward(self, x):
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


def names(model, batches, category=None):
    """Return the names of large blocks of the last pass, by category."""
    with nbmem.trace("run", namespace={"model": model}) as trace:
        for rows in batches:
            model(torch.randn(rows, SIDE, device="cuda")).sum().backward()
            for parameter in model.parameters():
                parameter.grad = None
    card_ledger = CardLedger(trace.session)
    found = {}
    last = [s.step for s in trace.session.spans if s.name == "backward"][-1]
    for row, phase in enumerate(card_ledger.born_in.tolist()):
        span = card_ledger.phases.spans[phase][1] if phase >= 0 else None
        if span is None or span.step != last or card_ledger.allocations.requested[row] < 64 * 1024:
            continue
        kind = Category(card_ledger.category[row])
        name = card_ledger.name(row) or "nothing"
        found.setdefault(kind, []).append(name.replace("model._orig_mod", "model"))
    return found


@pytest.fixture
def _card():
    with virtual.activated("A100"):
        yield


@pytest.mark.usefixtures("_card")
def test_the_graphs_nodes_name_what_a_region_saves_and_takes():
    model = torch.compile(nn.Sequential(Block(), Block()).cuda())
    found = names(model, [512] * 3)
    first = Block.forward.__code__.co_firstlineno
    line, after = f"test_compiled.py:{first + 1}", f"test_compiled.py:{first + 2}"
    saved = found[Category.ACTIVATIONS]
    assert f"saved by model.1.up (addmm, {line}) (512, 1024) float32" in saved
    assert f"saved by model.1 (gelu, {line}) (512, 1024) float32" in saved
    assert f"saved by model.0.norm (native_layer_norm, {line}) (512, 256) float32" in saved
    made = found[Category.OUTPUT_GRADIENTS] + found.get(Category.TEMPORARIES, [])
    assert f"backward of model.1.down (mm, {after}) (512, 1024) float32" in made
    assert Category.UNKNOWN not in found


@pytest.mark.usefixtures("_card")
def test_what_backward_computes_again_is_said_to_be():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(SIDE, SIDE)

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=False))

    found = names(torch.compile(Net().cuda()), [512] * 3)
    again = [one for made in found.values() for one in made if one.startswith("recomputed in ")]
    assert any(one.startswith("recomputed in model.block.up (addmm, ") for one in again)
    assert not any("model.head" in one for one in again)


@pytest.mark.usefixtures("_card")
def test_symbols_are_learned_from_what_is_saved():
    model = torch.compile(nn.Sequential(Block(), Block()).cuda(), dynamic=True)
    found = names(model, [512, 384, 640])
    saved = found[Category.ACTIVATIONS]
    assert any(name.endswith("(640, 1024) float32") for name in saved)
    made = found[Category.OUTPUT_GRADIENTS]
    assert any(
        name.startswith("backward of model.1.down (mm") and name.endswith("(640, 1024) float32")
        for name in made
    )


@pytest.mark.usefixtures("_card")
def test_without_notes_in_the_text_the_parameters_tell_the_module(monkeypatch):
    monkeypatch.setattr(inductor_wrapper, "parse_annotation", lambda _line: None)
    compiled_regions._read.cache_clear()
    model = torch.compile(nn.Sequential(Block(), Block()).cuda())
    found = names(model, [512] * 3)
    compiled_regions._read.cache_clear()
    saved = found[Category.ACTIVATIONS]
    assert "saved by model.1.up (addmm) (512, 1024) float32" in saved
    assert "saved after model.1.up (gelu) (512, 1024) float32" in saved
    made = found[Category.OUTPUT_GRADIENTS]
    assert "backward of model.1.down (mm) (512, 1024) float32" in made
    assert Category.UNKNOWN not in found


TEXT = """# AOT ID: ['3_inference']
def call(self, args):
    arg0_1, arg1_1, arg2_1 = args
    s0 = arg0_1
    with torch.cuda._DeviceGuard(0):
        # Topologically Sorted Source Nodes: [h, out], Original ATen: [aten.view, aten.convolution]
        buf0 = extern_kernels.convolution(arg1_1, arg2_1, stride=(1, 1))
        assert_size_stride(buf0, (s0, 8, 32, 32), (8192, 1024, 32, 1), 'aten.convolution')
        buf1 = empty_strided_cuda((s0, 8, 4*s0), (32, 4, 1), torch.bfloat16)
        buf2 = buf0; del buf0  # reuse
        # Topologically Sorted Source Nodes: [out], Original ATen: [aten.view, aten.relu]
        triton_poi_fused_relu_view_0.run(buf2, arg1_1, buf1, 8192, stream=stream0)
    return (buf1, s0, )
def get_args():
    arg1_1 = rand_strided((2, 3, 32, 32), (3072, 1024, 32, 1), device='cuda:0', dtype=torch.float32)
"""


def test_a_wrappers_text_says_what_its_buffers_are():
    read = inductor_wrapper.read_wrapper(TEXT)
    assert (read.kind, read.arguments, read.results) == (
        "inference",
        ("arg1_1", "arg2_1"),
        ("buf1", None),
    )
    convolution, made = read.buffers
    assert convolution.form({"s0": 2}) == ("(2, 8, 32, 32) float32", 2 * 8 * 1024 * 4)
    assert (convolution.operators, convolution.reads) == ("convolution", ("arg1_1", "arg2_1"))
    assert made.form({}) is None
    assert made.form({"s0": 2}) == ("(2, 8, 8) bfloat16", 256)
    assert (made.operators, made.reads, made.sources) == ("relu", ("arg1_1",), ("out",))
    assert read.last["buf0"].operators == "relu"


@pytest.mark.parametrize("text", ["", "x = 1", "# AOT ID: ['0_forward']\ndef call(:", TEXT[:60]])
def test_any_other_text_says_nothing(text):
    read = inductor_wrapper.read_wrapper(text)
    assert read is None or not read.buffers
