"""A tensor on the card looks like a CUDA tensor."""

import copy
import gc
import io

import numpy as np
import pytest
import torch
from torch import nn

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(4, device="cuda"),
        lambda: torch.zeros(4, device=0),
        lambda: torch.zeros(4, device="cuda:0"),
        lambda: torch.randn(4, device=torch.device("cuda")),
        lambda: torch.tensor([1.0, 2, 3, 4], device="cuda"),
        lambda: torch.as_tensor([1.0, 2, 3, 4], device="cuda"),
        lambda: torch.ones(4).cuda(),
        lambda: torch.ones(4).to("cuda"),
        lambda: torch.ones(4).to(0),
        lambda: torch.ones(4).to("cuda", non_blocking=True),
        lambda: torch.ones(4).to(torch.zeros(1, device="cuda")),
        lambda: torch.ones(4, dtype=torch.float64).to(device="cuda", dtype=torch.float32),
        lambda: torch.zeros(1, device="cuda").new_zeros(4),
        lambda: torch.zeros(1, device="cuda").new_tensor([1.0, 2, 3, 4]),
        lambda: torch.empty_like(torch.ones(4), device="cuda"),
        lambda: torch.from_numpy(torch.ones(4).numpy()).cuda(),
        lambda: torch.ones(4).cuda().cuda().to("cuda:0"),
        lambda: torch.ones(4, pin_memory=True).cuda(non_blocking=True),
    ],
)
def test_every_way_onto_the_card(gpu, make):
    tensor = make()
    assert tensor.device == CUDA
    assert tensor.is_cuda
    assert not tensor.is_meta
    assert tensor.get_device() == 0
    assert type(tensor) is torch.Tensor
    assert tensor.size() == (4,)
    assert tensor.dtype is torch.float32
    gc.collect()
    assert torch.cuda.memory_allocated() == 512


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_moved_and_converted_at_once(gpu, mode):
    with mode():
        there = torch.ones(4).to(device=torch.device("cuda", 0), dtype=torch.float16)
        assert (there.device, there.dtype) == (CUDA, torch.float16)
        back = there.to(device="cpu", dtype=torch.float64)
        assert (back.device.type, back.dtype) == ("cpu", torch.float64)


def test_default_device(gpu):
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda
        assert torch.tensor([1, 2]).is_cuda
        assert nn.Linear(2, 2).weight.is_cuda
    torch.set_default_device("cuda")
    try:
        assert torch.tensor(1.0).is_cuda
        assert torch.arange(3).is_cuda
    finally:
        torch.set_default_device(None)
        del torch._GLOBAL_DEVICE_CONTEXT.device_context  # torch 2.9 would ask None for a device
    assert not torch.ones(2).is_cuda


def test_addresses_are_those_of_the_allocator(gpu):
    base = torch.zeros(100, device="cuda")
    other = torch.zeros(100, device="cuda")
    assert base.data_ptr() == base.untyped_storage().data_ptr() != other.data_ptr()
    assert base[10:].data_ptr() == base.data_ptr() + 40
    assert base[10:].untyped_storage().data_ptr() == base.data_ptr()
    assert base.view(10, 10).t().data_ptr() == base.data_ptr()
    assert base.untyped_storage().nbytes() == 400
    assert base.untyped_storage().device == CUDA
    blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    live = {b["address"] for b in blocks if b["state"] == "active_allocated"}
    assert live == {base.data_ptr(), other.data_ptr()}


def test_addresses_of_parameters_gradients_and_state(gpu):
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    tensors = [t for p in model.parameters() for t in (p, p.grad, *optimizer.state[p].values())]
    live = {
        b["address"]
        for s in torch.cuda.memory_snapshot()
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    }
    on_card = [t.untyped_storage().data_ptr() for t in tensors if t.is_cuda]
    assert len(on_card) == 8
    assert set(on_card) <= live


def test_parameters_keep_their_identity_and_ties(gpu):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(100, 16)
            self.o = nn.Linear(16, 100, bias=False)
            self.o.weight = self.e.weight

    model = Tied()
    weight = model.e.weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.cuda()
    assert model.e.weight is model.o.weight is weight is optimizer.param_groups[0]["params"][0]
    assert type(weight) is nn.Parameter
    assert torch.cuda.memory_allocated() == 6656
    model.half()
    assert weight.dtype is torch.float16
    model.cpu()
    assert weight.device.type == "cpu"
    assert torch.cuda.memory_allocated() == 0


def test_a_module_is_moved_again_with_its_integer_buffers(gpu):
    norm = nn.BatchNorm1d(4).cuda()
    counter = norm.num_batches_tracked
    assert norm.to("cuda").to(torch.float16).num_batches_tracked is counter
    assert norm.weight.dtype == torch.float16
    assert counter.to("cuda", None, copy=True).data_ptr() != counter.data_ptr()


def test_a_copy_has_memory_of_its_own(gpu):
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).cuda()
    before = torch.cuda.memory_allocated()
    twin = copy.deepcopy(model)
    assert twin[0].weight.is_cuda
    assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()
    assert torch.cuda.memory_allocated() == 2 * before
    del twin
    assert torch.cuda.memory_allocated() == before


def test_checkpoints_are_saved_and_loaded(gpu):
    model = nn.Linear(64, 64).cuda()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "step": 3}, file)
    before = torch.cuda.memory_allocated()
    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    assert on_cpu["model"]["weight"].device.type == "cpu"
    assert torch.cuda.memory_allocated() == before
    file.seek(0)
    on_card = torch.load(file, map_location="cuda")
    assert on_card["model"]["weight"].device == CUDA
    assert torch.cuda.memory_allocated() == 2 * before
    file.seek(0)
    as_saved = torch.load(file)
    assert as_saved["model"]["weight"].is_cuda
    model.load_state_dict(on_card["model"])
    del on_card, as_saved
    assert torch.cuda.memory_allocated() == before


def test_mixing_devices_is_refused_as_on_a_card(gpu):
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
        torch.ones(3, device="cuda") + torch.ones(3)
    assert (torch.ones(3, device="cuda") * torch.tensor(2.0)).is_cuda
    with pytest.raises(TypeError, match=r"can't convert cuda:0 device type tensor to numpy"):
        torch.ones(3, device="cuda").numpy()


def test_another_card_does_not_exist(gpu):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3).to("cuda:1")


def test_printing(gpu):
    assert repr(torch.arange(3, device="cuda")) == "tensor([0, 1, 2], device='cuda:0')"
    assert "device='cuda:0'" in repr(torch.randn(100, 100, device="cuda"))
    assert "device='cuda:0'" in repr(nn.Linear(2, 2).cuda().weight)


def test_in_place_and_indexing(gpu):
    x = torch.randn(8, 16, device="cuda")
    before = torch.cuda.memory_allocated()
    x.add_(1).mul_(2).clamp_(0, 1).zero_()
    x[2:4] = 1.0
    x[:, 3] = x[:, 4]
    assert torch.cuda.memory_allocated() == before
    rows = torch.tensor([1, 2, 5])
    assert x[rows].size() == x[rows.cuda()].size() == (3, 16)
    assert x.index_select(0, rows.cuda()).size() == (3, 16)
    x[rows.cuda()] = 0.0
    x.t_()
    assert x.size() == (16, 8)


def test_changes_of_lists_are_counted_as_on_a_card(gpu):
    """A graph whose saved tensors an optimizer's step has changed does not run again."""
    weights = [torch.nn.Parameter(torch.ones(3, device="cuda")) for _ in range(2)]
    loss = sum((weight * weight).sum() for weight in weights)
    with torch.no_grad():
        torch._foreach_mul_(weights, 0.5)
        torch._foreach_addcmul_(weights, weights, weights)
        torch._foreach_add(weights, 1)
    assert [weight._version for weight in weights] == [2, 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        torch._foreach_add_([torch.ones(3, device="cuda")], 1)


def test_lists_and_arrays_are_indices(gpu):
    x = torch.randn(4, 5, 6, device="cuda")
    assert x[[0, 2]].size() == x[range(2)].size() == (2, 5, 6)
    assert x[:, [0, 2]].size() == (4, 2, 6)
    assert x[[True, False, True, False]].size() == x[np.array([0, 3])].size() == (2, 5, 6)
    assert x[(0, 1), (2, 3)].size() == (2, 6)
    assert x[[]].size() == (0, 5, 6)
    assert x[torch.tensor([0, 1], device="cuda"), [0, 1]].size() == (2, 6)
    before = torch.cuda.memory_allocated()
    x[[0, 1]] = 0.0
    x[:, [1, 2]] = torch.randn(4, 2, 6, device="cuda")
    assert torch.cuda.memory_allocated() == before


def test_a_generator_of_the_card(gpu):
    generator = torch.Generator("cuda").manual_seed(3)
    assert generator.device == CUDA
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.randn(3, device="cuda", generator=generator).is_cuda
    assert torch.randperm(4, device="cuda", generator=generator).size() == (4,)
    generator.set_state(generator.get_state())
    on_cpu = torch.Generator().manual_seed(0)
    assert torch.rand(2, generator=on_cpu).tolist() == pytest.approx([0.4963, 0.7682], abs=1e-3)


def test_a_lazy_module_gets_its_parameters_on_the_card(gpu):
    for model in (nn.LazyLinear(5).cuda(), nn.LazyLinear(5).to("cuda")):
        assert model(torch.randn(2, 3, device="cuda")).is_cuda
        assert model.weight.size() == (5, 3)
        assert model.weight.device == CUDA


def test_a_subclass_says_itself_what_it_consists_of(gpu):
    parts = [torch.randn(2, 8, device="cuda"), torch.randn(5, 8, device="cuda")]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    assert (ragged * 2).values().size() == (7, 8)
    assert nn.Linear(8, 4).cuda()(ragged).values().device == CUDA


def test_memory_is_freed_when_the_last_reference_goes(gpu):
    x = torch.randn(1 << 20, device="cuda")
    view = x.view(1 << 10, 1 << 10)[1:]
    del x
    assert torch.cuda.memory_allocated() == 4 << 20
    del view
    assert torch.cuda.memory_allocated() == 0


def test_a_storage_that_only_a_cycle_held_is_still_the_tensors(gpu):
    tensor = torch.ones(4, device="cuda")
    cycle = [tensor.untyped_storage()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert torch.cuda.memory_allocated() == 512
    assert tensor.data_ptr()
    del tensor
    assert torch.cuda.memory_allocated() == 0


def test_nothing_leaks_after_an_error(gpu):
    def fail():
        x = torch.randn(64, 64, device="cuda")
        return x @ torch.randn(3, 3, device="cuda")

    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
    before = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError):
        fail()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.parametrize(
    ("index", "held"),
    [
        (lambda x: x > 0, 0),  # a masked fill
        (lambda _: slice(0, 2), 0),  # a fill
        (lambda x: (x[:, 0] > 0, 1), 0),
        pytest.param(  # indices: on the card
            lambda _: torch.zeros(2, dtype=torch.int64, device="cuda"),
            512,
            marks=pytest.mark.skipif(
                torch.__version__ >= (2, 14), reason="newer torch fills by index: index_fill_"
            ),
        ),
    ],
)
def test_a_number_is_written_from_the_cpu_as_on_cuda(gpu, index, held):
    x = torch.randn(1024, 1024, device="cuda")
    where = index(x)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x[where] = 1.5
    assert torch.cuda.max_memory_allocated() - before == held
