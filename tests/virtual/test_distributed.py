"""DistributedDataParallel takes the bytes of torch's reducer."""

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.core.units import MIB
from nbmem.virtual.patches.distributed.ddp_buckets import ReducerBuckets

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


def test_the_hooks_of_a_wrapped_model_run_on_the_stream_on_which_it_was_wrapped(group):
    """As with torch 2.13's reducer, whose nodes live as long as it does."""
    made, used, seen = torch.cuda.Stream(), torch.cuda.Stream(), []
    model = nn.Linear(8, 8, device="cuda")
    model.weight.register_hook(lambda _: seen.append(torch.cuda.current_stream()))
    with torch.cuda.stream(made):
        wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):
        with torch.cuda.stream(used):
            wrapped(torch.randn(2, 8, device="cuda")).sum().backward()
    assert seen == [made, made]
    del group


def test_a_bucket_closes_once_it_has_reached_its_limit():
    parameters = [nn.Parameter(torch.zeros(n * MIB // 4)) for n in (2, 20, 10, 1)]
    with virtual.activated("H100"):
        buckets = ReducerBuckets(parameters, None, views=False, unused=False)
        for number in (3, 2, 1, 0):
            buckets.ready(number)
        buckets.rebuild()
        assert [t.numel() * 4 for t in buckets.flat] == [MIB, 30 * MIB, 2 * MIB]


# Asked of torch's own CUDA code by tools/oracle.py, four ranks: KiB of the buckets of six layers
# of two types, as they are made and as they are made anew.
FLOAT, HALF = torch.float32, torch.bfloat16
LAYERS = (2, FLOAT), (20, FLOAT), (6, HALF), (10, FLOAT), (4, HALF), (1, FLOAT)
ONE_OF_EACH, TWO = [1280, 8448], [1280, 2816, 5632]
LIMITED = {
    "by default": ({"cap": None}, ONE_OF_EACH, TWO),
    "one that is named is the first one's, too": ({"cap": 25}, ONE_OF_EACH, ONE_OF_EACH),
    "a small one": ({"cap": 0.5}, ONE_OF_EACH, [256, 512, 512, 768, 2560, 5120]),
    "a list": ({"cap": None, "caps": [2, 8]}, TWO, TWO),
    "some are unused": ({"cap": None, "unused": True}, TWO, TWO),
}


@pytest.mark.parametrize(("options", "made", "rebuilt"), LIMITED.values(), ids=LIMITED)
def test_limits_of_buckets_are_those_that_the_program_names(options, made, rebuilt):
    def kib(buckets):
        return sorted(t.numel() * t.element_size() // 1024 for t in buckets.flat)

    with virtual.activated("H100"):
        parameters = [
            nn.Parameter(torch.zeros(256, 256 * width, dtype=dtype, device="cuda"))
            for width, dtype in LAYERS
        ]
        buckets = ReducerBuckets(parameters, views=False, **{"unused": False, **options})
        first = kib(buckets)
        for number in range(6):
            buckets.ready(number)
        buckets.rebuild()
        assert (first, kib(buckets)) == (made, rebuilt)


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


MIB_4 = 4 * MIB
# Asked of torch's own CUDA code by tools/oracle.py, four ranks; a tensor of 4 MiB.
REDISTRIBUTED = {
    "a gathered tensor": ("Shard(0)", "Replicate()", [4 * MIB_4]),
    "one gathered along its columns": ("Shard(1)", "Replicate()", [4 * MIB_4] * 2 + [-4 * MIB_4]),
    "a sum": ("Partial()", "Replicate()", [MIB_4]),
    "a part of a sum": ("Partial()", "Shard(0)", [MIB]),
    "rows for columns": ("Shard(0)", "Shard(1)", [MIB_4, MIB_4, -MIB_4]),
    "columns for rows": ("Shard(1)", "Shard(0)", [MIB_4, MIB_4, -MIB_4]),
    "two inner dimensions": ("Shard(1)", "Shard(2)", [MIB_4] * 3 + [-MIB_4] * 2),
}


@pytest.mark.skipif(torch.__version__ < "2.13", reason="as torch 2.13 does it")
@pytest.mark.parametrize("what", REDISTRIBUTED)
def test_dtensors_collectives_take_what_they_take_of_torchs_own_code(what):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    given, wanted, taken = REDISTRIBUTED[what]
    known = {"Partial": Partial, "Replicate": Replicate, "Shard": Shard}
    with virtual.activated("H100"):
        torch.distributed.init_process_group("nccl", rank=0, world_size=4)
        mesh = init_device_mesh("cuda", (4,))
        part = torch.empty(64, 64, 256, device="cuda")
        one = DTensor.from_local(part, mesh, [eval(given, known)], run_check=False)
        torch.cuda.memory._record_memory_history(max_entries=100)
        kept = one.redistribute(placements=[eval(wanted, known)]).to_local()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.distributed.destroy_process_group()
    signs = {"alloc": 1, "free_completed": -1}
    assert [signs[t["action"]] * t["size"] for t in trace if t["action"] in signs] == taken
    assert sum(taken) == kept.untyped_storage().nbytes()
