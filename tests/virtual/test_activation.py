"""Activation of a virtual card, and its complete removal."""

import importlib
import subprocess
import sys
import threading
import traceback

import pytest
import torch

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB
from nbmem.virtual.cards import CONTEXT_BAND, PUBLISHED, STACK, _context
from nbmem.virtual.patches import activation


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_it_imports_no_torch():
    code = "import sys; from nbmem import virtual; virtual.active(); virtual.cards; "
    assert run(code + "print('torch' in sys.modules)") == "False"


def test_every_patch_is_undone():
    from multiprocessing import queues

    import pynvml
    from IPython.core import interactiveshell
    from torch._C import _distributed_c10d as c10d
    from torch._dynamo import convert_frame, eval_frame, symbolic_convert, trace_rules
    from torch._dynamo.variables import optimizer
    from torch._higher_order_ops.flex_attention import FlexAttentionHOP
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import proxy_tensor
    from torch.testing import _comparison

    cudnn_rnn = importlib.import_module("torch.backends.cudnn.rnn")
    graphs = [m for m in [getattr(torch.accelerator, "graphs", None)] if m is not None]
    cache = vars(torch.backends.cuda.cuFFTPlanCache)
    plans = [cache["size"], cache["max_size"]]
    higher = [m for n, m in sys.modules.items() if n.startswith("torch._higher_order_ops.")]
    inductor = [m for m in [sys.modules.get("torch._inductor")] if m is not None]
    raw = importlib.import_module("torch.cuda._utils")
    raw_kernels = [raw, *filter(None, [getattr(raw, "_CudaKernel", None)])]
    watched = [
        torch, torch._C, torch.Tensor, torch.UntypedStorage, torch.cuda, torch.cuda.memory,
        torch.cuda.random,
        torch.cuda.streams, torch.cuda.graphs, torch.backends.cudnn, torch.version,
        torch.accelerator, *graphs, *plans, torch.autograd, torch.autograd.graph, torch._tensor_str,
        threading.Thread, pynvml, torch._C._nn, torch.utils._device,
        torch.autograd.profiler.record_function, cudnn_rnn,
        torch.distributed, torch.distributed.distributed_c10d, sys,
        torch.nn.parallel.DistributedDataParallel, eval_frame, torch.compiler, torch.nn.init,
        trace_rules, FlexAttentionHOP,
        torch.nn.parallel._functions.Scatter, torch._TorchCompileInductorWrapper,
        torch.nn.parameter.UninitializedTensorMixin, torch.jit._builtins, torch.jit._recursive,
        torch.utils.dlpack, torch.cuda.nvtx, torch.multiprocessing, fake_tensor,
        fake_tensor.FakeTensor, torch.jit, torch.jit._trace, torch.nested, torch.cuda.sparse,
        torch.autograd.profiler.profile, queues.Queue, fake_tensor.FakeTensorMode,
        torch.distributed.device_mesh, torch._C._distributed_c10d.FakeProcessGroup,
         getattr(c10d, "FakeWork", c10d.Work), symbolic_convert.InstructionTranslator,
         proxy_tensor, proxy_tensor.ProxyTorchDispatchMode, convert_frame.CatchErrorsWrapper,
         optimizer.OptimizerVariable, torch.nn.modules.transformer, *higher, *inductor,
         *raw_kernels, torch.ops, _comparison.TensorLikePair, threading, traceback,
         interactiveshell.InteractiveShell,
    ]  # fmt: skip
    before = [dict(vars(target)) for target in watched]
    with virtual.activated("A100"):
        places = activation.activation().patches.places()
        torch.ones(3, device="cuda").sum().item()
        assert {id(target) for target, _ in places} <= {id(target) for target in watched}
    for target, was in zip(watched, before, strict=True):
        now = dict(vars(target))
        assert now.keys() == was.keys(), target
        assert all(now[name] is was[name] for name in was), target
    assert torch._C._len_torch_dispatch_stack() == 0


def test_nothing_stays_after_an_error_inside_the_block():
    def fail():
        with virtual.activated("T4"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert virtual.active() is None
    assert not torch.cuda.is_available()


def test_an_unknown_card_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"called 'Gaudi'\. There are: H100 80GB, .*A100 80GB"):
        virtual.activate("Gaudi")
    assert virtual.active() is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("H100", "H100 80GB"),
        ("h100-80gb", "H100 80GB"),
        ("nvidia h100 80gb hbm3", "H100 80GB"),
        ("H100_80GB", "H100 80GB"),
        ("NVIDIA H100 80GB", "H100 80GB"),
        ("NVIDIA A100 40GB", "A100 40GB"),
        ("nvidia geforce rtx 4090", "RTX 4090"),
        ("nvidia rtx 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("nvidia t4", "T4"),
    ],
)
def test_names_are_read_in_any_spelling(name, key):
    assert virtual.find_card(name).key == key


def test_a_makers_name_alone_is_no_card():
    with pytest.raises(UsageError, match="No card is called 'nvidia'"):
        virtual.find_card("nvidia")


def test_a_second_card_takes_the_place_of_the_first():
    virtual.activate("H100")
    second = virtual.activate("L4")
    assert virtual.active() is second
    assert torch.cuda.get_device_name() == "NVIDIA L4"
    virtual.deactivate()
    virtual.deactivate()
    assert virtual.active() is None


def test_a_real_context_is_not_pushed_aside(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="already uses a real GPU"):
        virtual.activate("H100")


@pytest.mark.parametrize("card", virtual.cards, ids=lambda card: card.key)
def test_every_card_answers_as_itself(card):
    with virtual.activated(card):
        properties = torch.cuda.get_device_properties(0)
        assert (properties.name, properties.total_memory) == (card.name, card.total_bytes)
        assert torch.cuda.get_device_capability() == card.capability
        assert torch.cuda.device_count() == 1
        assert torch.cuda.is_available()
        assert not torch.cuda.is_initialized()
        assert card.source
        assert card.total_bytes < card.nvml_total
        torch.zeros(1, device="cuda")
        free, total = torch.cuda.mem_get_info()
        assert total - free == card.context_bytes + card.unowned_with(1) + (2 << 20)
        assert torch.cuda.is_initialized()


def test_a_switched_off_card_leaves_tensors_that_say_so():
    with virtual.activated("H100"):
        tensor = torch.ones(3, device="cuda")
    with pytest.raises((RuntimeError, NotImplementedError)):
        tensor + 1


def test_threads_see_the_card(gpu):
    found = []

    def work():
        found.append((torch.ones(4, device="cuda") * 2).device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [torch.device("cuda", 0)]
    assert torch.cuda.memory_allocated() == 0
    assert gpu.allocator.allocated == 0


def test_other_processes_take_their_part():
    with virtual.activated("H100", other_processes={4242: 10 << 30}):
        torch.zeros(1, device="cuda")
        free, total = torch.cuda.mem_get_info()
        assert total - free > 10 << 30


@pytest.mark.parametrize("known", PUBLISHED, ids=lambda known: known["name"])
def test_a_context_lies_within_its_band_of_what_others_measured(known):
    card = next((card for card in virtual.cards if card.name == known["name"]), None)
    stacks = known["processors"] * known["threads"] * STACK
    recorded = known["name"].startswith("NVIDIA H100")
    ruled = _context(stacks, data_centre=recorded)
    assert abs(ruled / MIB / known["context"] - 1) < CONTEXT_BAND
    if card is not None:
        low, high = card.context_band
        assert low <= known["context"] * MIB <= high


def test_handles_of_a_t4_cost_what_is_reported_and_those_of_an_h100_what_was_recorded():
    t4, h100 = virtual.find_card("T4"), virtual.find_card("H100")
    assert (t4.cublas_bytes, t4.cudnn_bytes) == (26 * MIB, 4 * MIB)
    assert (h100.context_bytes, h100.cublas_bytes, h100.cudnn_bytes) == (
        610 * MIB,
        66 * MIB,
        10 * MIB,
    )
    assert h100.context_band == (610 * MIB, 610 * MIB)
