"""One virtual rank takes and sends what a process of a real world does."""

from datetime import timedelta

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.virtual.patches.distributed.spawn import RankState

dist = torch.distributed
if not dist.is_available() or torch.__version__ < "2.11":
    pytest.skip("the virtual ranks need torch 2.11 or newer", allow_module_level=True)

from tests.ranks.__main__ import compare


@pytest.fixture
def rank():
    with virtual.activated("H100"):
        yield lambda number, world: dist.init_process_group("nccl", rank=number, world_size=world)
        if dist.is_initialized():
            dist.destroy_process_group()


def test_ranks_hold_and_send_what_processes_on_gloo_do():
    names = ("ddp", "fsdp2", "tensor_parallel", "pipeline", "collectives")
    assert compare(2, names) == {name: [] for name in names}


def test_a_storage_gives_its_memory_back_and_takes_it_again():
    with virtual.activated("H100"):
        tensor = torch.empty(1 << 20, device="cuda")
        storage = tensor.untyped_storage()
        storage.resize_(0)
        assert (storage.size(), tensor.data_ptr(), torch.cuda.memory_allocated()) == (0, 0, 0)
        storage.resize_(8 << 20)
        assert (storage.nbytes(), torch.cuda.memory_allocated()) == (8 << 20, 8 << 20)
        del tensor, storage
        assert torch.cuda.memory_allocated() == 0


def test_gathered_parameters_live_while_their_layer_runs(rank):
    from torch.distributed.fsdp import fully_shard

    rank(1, 4)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    shard = 1024 * 1024
    assert torch.cuda.memory_allocated() == 3 * shard
    with torch.no_grad():
        out = model(torch.randn(1, 1024, device="cuda"))
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    # FSDP keeps the last layer's all-gather buffer for the next all-gather.
    assert torch.cuda.memory_allocated() == 3 * shard + out.untyped_storage().nbytes()


def test_a_list_that_is_gathered_has_a_flat_copy_for_a_moment(rank):
    rank(0, 4)
    mine = torch.ones(1 << 18, device="cuda")
    parts = [torch.empty_like(mine) for _ in range(4)]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    dist.all_gather(parts, mine)
    assert torch.cuda.max_memory_allocated() - before == 4 << 20
    assert torch.cuda.memory_allocated() == before


def test_a_mesh_makes_the_group_that_torchruns_environment_names(rank, monkeypatch):
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    mesh = dist.device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert (mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()) == (1, 1)
    assert dist.get_world_size() == 4


def test_a_group_takes_another_timeout(rank):
    rank(0, 8)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=100), None)
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
    assert (group._is_initialized(), group.comm_split_count()) == (True, 0)


def test_a_list_of_shards_is_searched_once_for_strided_ones(rank, monkeypatch):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import _op_schema
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    rank(0, 4)
    mesh = dist.device_mesh.init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(30))).cuda()
    parallelize_module(model, mesh["tp"], {"*": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    spec_reads = []
    specs = _op_schema.OpSchema.args_spec.fget
    monkeypatch.setattr(
        _op_schema.OpSchema, "args_spec", property(lambda self: spec_reads.append(1) or specs(self))
    )
    parameters = list(model.parameters())
    plain = torch._foreach_mul([p.to_local() for p in parameters], 2.0)
    assert not spec_reads
    twice = torch._foreach_mul(parameters, 2.0)
    # Both meshes cut the first dimension, so that one of them has strides.
    assert [t.placements for t in twice] == [p.placements for p in parameters]
    assert "_Strided" in str(twice[0].placements)
    assert {t.to_local().shape for t in twice} == {t.shape for t in plain} == {(16, 64)}
    even = [torch.distributed.tensor.zeros(8, 8, device_mesh=mesh["tp"]) for _ in range(30)]
    spec_reads.clear()
    torch._foreach_add(even, 1.0)
    assert len(spec_reads) < 30  # not once for each shard


def test_a_llama_made_on_no_device_holds_its_part_of_two_meshes(rank):
    from tests.benchmarks import llama_over_ranks as llama

    rank(1, 4)
    size = llama.SIZES["tiny"]._replace(layers=2)
    asked = llama.options(["tiny", "--tp", "2", "--length", "128", "--selective"])
    (model,), (optimizer,) = llama.train(size, asked, 4)
    # A layer has wq and wo, wk and wv, and three weights of the MLP. The embedding and the output
    # come besides. Norms are not sharded by tensor parallelism. An element has 4 bytes.
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 768
    held = 4 * ((2 * layer + 2 * 1024 * 256) // 4 + 5 * 256 // 2)
    assert sum(p.to_local().nbytes for p in model.parameters()) == held
    for name in ("exp_avg", "exp_avg_sq"):
        kept = [state[name].to_local() for state in optimizer.state.values()]
        assert sum(moment.nbytes for moment in kept) == held


def test_known_numbers_come_back_from_all_ranks(rank):
    rank(2, 4)
    mine, everyone = torch.tensor([3], device="cuda"), torch.empty(4, dtype=int, device="cuda")
    dist.all_gather_into_tensor(everyone, mine)
    assert everyone.tolist() == [3, 3, 3, 3]
    objects = [None] * 4
    dist.all_gather_object(objects, {"rank": 2})
    assert objects == [{"rank": 2}] * 4
    assert (dist.get_backend(), dist.get_rank(), dist.get_world_size()) == ("nccl", 2, 4)


def test_a_hook_compresses_what_is_sent(rank):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    rank(0, 2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024, bias=False).cuda())
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    loss = model(torch.randn(8, 1024, device="cuda")).sum()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss.backward()
    assert torch.cuda.max_memory_allocated() - before >= 6 << 20  # a gradient and half of it


def test_attention_of_sharded_heads_takes_the_kernel_that_their_tensors_take(rank):
    from torch.distributed.tensor import DTensor, Shard

    rank(0, 4)
    mesh = dist.device_mesh.init_device_mesh("cuda", (4,))

    def taken(wrapped):
        heads = [
            torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        given = [DTensor.from_local(t, mesh, [Shard(1)]) for t in heads] if wrapped else heads
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = nn.functional.scaled_dot_product_attention(*given, is_causal=True)
        peak = torch.cuda.max_memory_allocated() - before
        return out.shape, torch.cuda.memory_allocated() - before, peak

    assert taken(wrapped=True)[1:] == taken(wrapped=False)[1:]


def test_a_rank_saves_and_loads_its_shards_alone(rank, tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    rank(1, 4)
    model = fully_shard(nn.Linear(64, 64).cuda())
    before = torch.cuda.memory_allocated()
    dcp.save(model.state_dict(), checkpoint_id=tmp_path)
    dcp.load(model.state_dict(), checkpoint_id=tmp_path)
    assert torch.cuda.memory_allocated() == before == 4096 + 512


def test_a_rank_that_is_not_in_its_world_gets_a_sentence(rank):
    with pytest.raises(UsageError, match="Rank 4 is not in a world of 4: ranks count from 0 to 3"):
        rank(4, 4)


def test_a_stage_that_waits_for_nobody_says_who_is_missing(rank, monkeypatch, tmp_path):
    rank(1, 2)
    with pytest.raises(UsageError, match="Rank 1 waits for what rank 0 sends"):
        dist.recv_object_list([None], src=0)
    monkeypatch.setenv("NBMEM_RANKS_FOLDER", str(tmp_path))
    (tmp_path / "ended-0").touch()
    with pytest.raises(UsageError, match="rank 0 has ended without sending it"):
        dist.recv_object_list([None], src=0)


def test_torchs_process_groups_are_its_own_again():
    before = vars(dist.distributed_c10d)["init_process_group"]
    with virtual.activated("H100"):
        assert dist.is_nccl_available()
    assert vars(dist.distributed_c10d)["init_process_group"] is before
    assert not RankState.apart


def test_a_group_that_is_bound_to_a_card_is_split_for_a_mesh():
    with virtual.activated("4xH100"):
        bound = torch.device("cuda", 1)
        dist.init_process_group("nccl", rank=5, world_size=8, device_id=bound)
        mesh = dist.device_mesh.init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        place = mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()
        sizes = mesh["dp"].get_group().size(), mesh["tp"].get_group().size()
        dist.destroy_process_group()
    assert (place, sizes) == ((1, 1), (2, 4))


def test_uneven_inputs_are_joined(rank):
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank(0, 4)
    model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024, bias=False).cuda())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for _ in range(2):
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == 2 * (4 << 20)  # weights and the gradients' bucket


def test_the_first_fsdp_saves_the_state_of_an_optimizer_by_this_ranks_part(rank):
    from torch.distributed.fsdp import FullyShardedDataParallel

    rank(0, 4)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2))).cuda()
    model = FullyShardedDataParallel(layers, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
    with pytest.warns(virtual.NbmemWarning, match="stands for all"):
        saved = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    assert list(saved["state"]) == ["0.weight"]
    assert len(saved["param_groups"][0]["params"]) == 4
