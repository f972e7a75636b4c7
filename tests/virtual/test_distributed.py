"""DistributedDataParallel on a virtual card takes what torch's reducer takes."""

import pytest

torch = pytest.importorskip("torch", reason="the virtual card answers torch")

from torch import nn

from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.virtual.patches.buckets import Buckets

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)


@pytest.fixture
def group():
    with virtual.activated("H100") as gpu:
        torch.distributed.init_process_group("nccl", rank=0, world_size=1)
        yield gpu
        torch.distributed.destroy_process_group()


def test_the_first_bucket_holds_everything_and_the_second_pass_splits_it(group):
    model = nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 2048)).cuda()
    before = torch.cuda.memory_allocated()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    size = sum(p.numel() * 4 for p in model.parameters())
    flat = [t.numel() * 4 for t in wrapped._card_buckets.flat]
    assert flat == [size]
    assert torch.cuda.memory_allocated() - before >= size
    for _ in range(2):
        wrapped(torch.randn(8, 1024, device="cuda")).sum().backward()
    flat = [t.numel() * 4 for t in wrapped._card_buckets.flat]
    # Gradients come last layer first, bias or weight first; the first bucket closes at 1 MiB.
    assert sum(flat) == size
    assert flat[0] == 4096 * 2048 * 4 + 2048 * 4
    assert group.process_bytes - torch.cuda.memory_reserved() > 564 * MIB


def test_a_bucket_closes_once_it_has_reached_its_limit():
    parameters = [nn.Parameter(torch.zeros(n * MIB // 4)) for n in (2, 20, 10, 1)]
    with virtual.activated("H100"):
        buckets = Buckets(parameters, None, views=False, unused=False)
        for number in (3, 2, 1, 0):
            buckets.ready(number)
        buckets.rebuild()
        assert [t.numel() * 4 for t in buckets.flat] == [MIB, 30 * MIB, 2 * MIB]


def test_gradients_can_be_views_of_the_buckets(group):
    del group
    model = nn.Linear(512, 512).cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    wrapped(torch.randn(8, 512, device="cuda")).sum().backward()
    bucket = wrapped._card_buckets.flat[0].untyped_storage()._cdata
    assert model.weight.grad.untyped_storage()._cdata == bucket


def test_its_forward_moves_inputs_from_the_cpu_where_it_was_given_a_device(group):
    model = nn.Linear(8, 8).cuda()
    wrapped = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    assert wrapped(torch.randn(4, 8)).device == torch.device("cuda:0")
    bare = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(RuntimeError, match="same device"):
        bare(torch.randn(4, 8))


def test_what_is_logged_of_it_is_empty(group):
    # Lightning asks where a run ends, to advise a static graph.
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4, device="cuda"))
    assert model._get_ddp_logging_data() == {}
