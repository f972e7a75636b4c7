"""Common programs of a few lines run on the virtual card."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import dlpack

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.virtual.cards import CARDS
from nbmem.virtual.tensors.unsupported import OTHER_ENGINE
from nbmem.virtual.warnings import SPAWN, NbmemWarning


def on_card(*tensors):
    return {tensor.device.type for tensor in tensors} == {"cuda"}


def test_types_from_before_devices_make_and_name_tensors_of_the_card(gpu):
    sized, given = torch.cuda.FloatTensor(3, 4), torch.cuda.LongTensor([1, 2])
    assert on_card(sized, given, sized.new(2), torch.zeros(2).type_as(sized))
    assert (sized.shape, given.tolist(), given.dtype) == ((3, 4), [1, 2], torch.int64)
    assert sized.half().type() == "torch.cuda.HalfTensor"
    assert isinstance(sized, torch.cuda.FloatTensor)
    assert not isinstance(given, torch.cuda.FloatTensor)
    there = torch.zeros(2).type("torch.cuda.DoubleTensor")
    assert (there.device.type, there.dtype) == ("cuda", torch.float64)
    assert sized.type(torch.FloatTensor).device.type == "cpu"
    assert on_card(nn.Linear(2, 2).type(torch.cuda.HalfTensor).weight)


def test_the_default_type_of_tensors_may_be_one_of_the_card(gpu):
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert on_card(torch.zeros(2), torch.tensor([1.0]), nn.Linear(2, 2).weight)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert torch.zeros(2).device.type == "cpu"


def test_pinned_memory_says_so_and_is_a_copy(gpu):
    x = torch.zeros(4)
    pinned = x.pin_memory()
    x += 1
    assert (pinned.is_pinned(), x.is_pinned(), pinned.tolist()) == (True, False, [0.0] * 4)
    assert pinned.pin_memory() is pinned
    assert torch.empty(3, pin_memory=True)[1:].is_pinned()
    made = torch.tensor([1.0, 2.0], pin_memory=True, requires_grad=True)
    assert (made.is_pinned(), made.is_leaf, made.requires_grad) == (True, True, True)


def test_tensors_travel_as_pickles(gpu):
    x = torch.randn(4, device="cuda")
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    model = pickle.loads(pickle.dumps(nn.Linear(2, 2).cuda()))
    assert on_card(pickle.loads(pickle.dumps(x)), copy.deepcopy(x), torch.load(file)["x"])
    assert on_card(model.weight)


def test_other_libraries_see_a_cuda_tensor_and_are_told_that_it_has_no_data(gpu):
    x = torch.randn(4, 3, device="cuda")
    shared = torch.from_dlpack(x)
    assert shared.data_ptr() == dlpack.from_dlpack(dlpack.to_dlpack(x)).data_ptr() == x.data_ptr()
    assert x.__dlpack_device__() == (2, 0)
    with pytest.raises(UsageError, match="no data for another library"):
        x.__dlpack__()
    facts = x.t().__cuda_array_interface__
    assert (facts["shape"], facts["typestr"], facts["strides"]) == ((3, 4), "<f4", (4, 12))
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1.0, 1.0]


def test_streams_and_events_without_a_kind_are_the_cards(gpu):
    stream, event = torch.Stream("cuda"), torch.Event("cuda")
    with stream:
        x = torch.randn(4, device="cuda")
    event.record(stream)
    stream.wait_event(event)
    assert isinstance(torch.cuda.Stream(), torch.Stream)
    assert isinstance(event, torch.Event)
    assert (stream.device.type, on_card(x), event.query()) == ("cuda", True, True)


def test_what_the_card_does_is_asked_for(gpu):
    assert torch.cuda.utilization() == 0
    assert torch.cuda.temperature() > 0
    assert torch.cuda.nccl.version() == (2, 28, 9)
    with torch.cuda.nvtx.range("part"):
        torch.cuda.nvtx.mark("here")
    with pytest.raises(UsageError, match="no state"):
        torch._C._cuda_getCheckpointState(0, torch.cuda.graph_pool_handle())


def test_fake_tensors_of_the_card_train_without_taking_memory(gpu):
    with FakeTensorMode():
        model = nn.Linear(4, 4, device="cuda")
        y = model(torch.randn(2, 4, device="cuda"))
        y.sum().backward()
    assert type(y) is FakeTensor
    assert on_card(y, model.weight.grad)
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx_writes_down_what_runs_on_the_card(gpu, mode):
    x = torch.randn(4, 4, device="cuda")
    graph = make_fx(lambda a: (a @ a).relu(), tracing_mode=mode)(x).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert names == ["aten.mm.default", "aten.relu.default"]


def test_a_model_on_the_card_is_exported(gpu):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda().eval()
    exported = torch.export.export(model, (torch.randn(2, 4, device="cuda"),))
    assert on_card(exported.module()(torch.randn(2, 4, device="cuda")))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_size_that_may_change_stays_a_symbol_in_an_export(gpu, device):
    model = nn.Linear(4, 4).to(device)
    rows = torch.export.Dim("rows", min=2, max=64)
    x = torch.randn(8, 4, device=device)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    assert exported.module()(torch.randn(3, 4, device=device)).shape == (3, 4)


def test_sizes_are_plain_numbers_to_the_card_while_torch_jit_traces(gpu):
    traced = torch.jit.trace(
        nn.Linear(8, 4).cuda(), torch.randn(2, 8, device="cuda"), check_trace=False
    )
    assert on_card(traced(torch.randn(3, 8, device="cuda")))
    flat = torch.jit.trace(lambda a: a.view(a.size(0), -1).sum(1), torch.randn(2, 3).cuda())
    assert flat(torch.randn(2, 3).cuda()).shape == (2,)


def test_what_torch_jit_traces_runs_again_and_is_found_to_be_the_same(gpu):
    layers = (nn.Linear(8, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8))  # each batch norm adds a 1
    model, x = nn.Sequential(*layers).cuda(), torch.randn(4, 8, device="cuda")
    called = []
    model.register_forward_hook(lambda *_: called.append(torch.is_grad_enabled()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        traced = torch.jit.trace(model, x)
    assert not [one for one in said if "not match" in str(one.message)]
    assert called == [True, False, False]  # traced, traced again, and called
    assert on_card(traced(x))


def test_a_trace_on_the_host_beside_a_card_is_compared_by_its_values(gpu):
    with pytest.warns(torch.jit.TracerWarning, match="not match"):
        torch.jit.trace(lambda a: a + torch.rand(3), torch.zeros(3))


def test_spawning_a_process_for_each_card_runs_the_first_ones_part():
    seen = []

    def rank(number, size):
        torch.distributed.init_process_group("gloo", rank=number, world_size=size)
        seen.append((number, torch.distributed.get_world_size(), torch.zeros(2).cuda().device))
        torch.distributed.destroy_process_group()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NbmemWarning)
        with virtual.activated("2xT4") as gpu:
            torch.multiprocessing.spawn(rank, args=(2,), nprocs=2)
            assert SPAWN in gpu.notes
    assert seen == [(0, 2, torch.device("cuda:0"))]


def test_every_card_has_figures_of_its_context():
    assert all(card.context_bytes > card.cublas_bytes > card.cudnn_bytes > 0 for card in CARDS)


def test_a_trace_has_its_convolutions(gpu):
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model, x = nn.Sequential(*layers).cuda().eval(), torch.randn(2, 3, 8, 8, device="cuda")
    traced = torch.jit.trace(model, x)
    assert traced(x).size() == (2, 8, 6, 6)
    assert "_convolution" in str(traced.inlined_graph)
    options = (0, 0), (1, 1), (1, 1), 1, False, True, True
    assert torch.cudnn_convolution(x, model[0].weight, *options).size() == (2, 8, 6, 6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda"),
        lambda: torch.empty(4, dtype=torch.quint8, device="cuda"),
    ],
)
def test_tensors_that_a_virtual_card_has_not_are_refused_in_a_sentence(gpu, make):
    with pytest.raises(UsageError, match="The virtual GPU has no tensors") as refused:
        make()
    assert str(refused.value).endswith(OTHER_ENGINE)


def test_quantized_on_the_card(gpu):
    made = torch.quantize_per_tensor(torch.randn(4, 4, device="cuda"), 0.1, 0, torch.qint8)
    assert made.dequantize().dtype is torch.float32


def test_a_profile_with_the_cards_activity_says_nothing_on_stderr(gpu, capfd):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        torch.ones(4, device="cuda").mul(2)
    assert profile.key_averages()
    assert "frame #" not in capfd.readouterr().err


def test_a_condition_that_is_known_fails_on_the_card(gpu):
    torch._assert_async(torch.tensor(1, device="cuda"))
    with pytest.raises(RuntimeError, match="device-side assert"):
        torch._assert_async(torch.tensor(0, device="cuda"))
