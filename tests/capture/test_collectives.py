"""Communication of FSDP in forward and backward, to the byte."""

import os
import re
from collections import Counter

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.session.categories import Category
from nbmem.core.session.tensor_names import without_shape
from nbmem.report.ledger.card_ledger import CardLedger

nn, C, RANKS = torch.nn, Category, 4
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(torch.__version__ < "2.11", reason="the card runs the newest FSDP alone"),
]

WEIGHT, LAYERS = 512 * 512, 3
"""Numbers of one layer's weight: its unit has nothing else."""


@pytest.fixture(autouse=True)
def world(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", str(RANKS))):
        monkeypatch.setitem(os.environ, name, value)
    with virtual.activated("A100 80GB"):
        torch.distributed.init_process_group("nccl")
        yield
        torch.distributed.destroy_process_group()


def layers():
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(LAYERS))).cuda()


def second(**options):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def allocated_in_phase(model, phase, step=1):
    """Return bytes and blocks of a step's phase, by category and name."""
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    card_ledger = CardLedger(trace.session)
    spans = [s for s in trace.session.spans if (s.name, s.step) == (phase, step)]
    found = card_ledger.allocations.allocated_at
    mine = [
        row for row in range(len(found)) if any(s.first[0] <= found[row] < s.last[0] for s in spans)
    ]
    made = Counter()
    for row in mine:
        name = without_shape(card_ledger.name(row) or "")
        kind = C(int(card_ledger.category[row]))
        made[kind, _any_layer(name)] += int(card_ledger.allocations.requested[row])
    return made


def _any_layer(name):
    return re.sub(r"\.\d\b", ".N", name)


def communication(made):
    return {name: size for (kind, name), size in made.items() if kind == C.COMMUNICATION}


def gathering(size):
    whole = LAYERS * WEIGHT * size
    return {"model.N all-gather": whole, "model.N.weight gathered": whole}


def test_forward_and_backward_gather_alike():
    whole = LAYERS * WEIGHT * 4
    assert communication(allocated_in_phase(second(), "forward")) == gathering(4)
    made = allocated_in_phase(second(), "backward")
    assert communication(made) == {**gathering(4), "model.N reduce-scatter input": whole}
    assert made[C.GRADIENTS, "model.N.weight whole gradient"] == whole
    assert made[C.GRADIENTS, "model.N.weight.grad"] == whole // RANKS
    held = {kind for (kind, _), size in made.items() if size >= WEIGHT * 4 // RANKS}
    assert held == {C.COMMUNICATION, C.GRADIENTS}


def test_parameters_that_are_kept_are_not_gathered_again():
    made = communication(allocated_in_phase(second(reshard_after_forward=False), "backward"))
    assert made == {"model.N reduce-scatter input": LAYERS * WEIGHT * 4}


def test_shards_of_fewer_ranks_are_no_weights():
    made = allocated_in_phase(second(reshard_after_forward=2), "forward")
    kept = {"model.N.weight kept after forward": LAYERS * WEIGHT * 4 // 2}
    assert communication(made) == {**gathering(4), **kept}


@pytest.mark.parametrize("hybrid", [False, True])
def test_what_is_cast_to_be_sent_is_communication(hybrid):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sizes, ranks = ((2, 2), 2) if hybrid else ((RANKS,), RANKS)
    mesh = torch.distributed.device_mesh.init_device_mesh(
        "cuda", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :]
    )
    made = allocated_in_phase(second(mp_policy=policy, mesh=mesh), "backward")
    half = LAYERS * WEIGHT * 2
    assert communication(made) == {
        **gathering(2),
        "model.N.weight all-gather input": half // ranks,
        "model.N reduce-scatter input": 2 * half,
    }
    assert made[C.GRADIENTS, "model.N.weight whole gradient"] == half


def test_a_reduction_in_another_type_than_the_shards():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    made = communication(allocated_in_phase(second(mp_policy=half), "backward"))
    assert made["model.N reduce-scatter output"] == LAYERS * WEIGHT * 2 // RANKS


def test_gradients_that_wait_for_the_last_micro_batch_are_gradients():
    model = second()
    model.set_requires_gradient_sync(False)
    made = allocated_in_phase(model, "backward", step=0)
    assert made[C.GRADIENTS, "model.N.weight.grad"] == LAYERS * WEIGHT * 4
    assert "model.N reduce-scatter input" not in communication(made)


def test_one_storage_of_several_gradients_has_the_name_of_all():
    from torch.distributed.fsdp import fully_shard

    made = allocated_in_phase(fully_shard(layers()), "backward")
    assert made[C.GRADIENTS, "model.*.grad of 3 parameters"] == LAYERS * WEIGHT * 4 // RANKS


def test_the_first_fsdp_gathers_alike():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = layers()
    for name, layer in list(model.named_children()):
        setattr(model, name, FullyShardedDataParallel(layer, use_orig_params=True))
    made = allocated_in_phase(FullyShardedDataParallel(model, use_orig_params=True), "backward")
    path = "model._fsdp_wrapped_module.N._flat_param"
    assert communication(made) == {f"{path} gathered": LAYERS * WEIGHT * 4}
    assert made[C.GRADIENTS, f"{path} whole gradient"] == LAYERS * WEIGHT * 4


@pytest.mark.parametrize(
    "path", ["fsdp.unsharded_parameters", "collectives.Collectives._fsdp2_patches"]
)
def test_a_fault_costs_these_names_alone(monkeypatch, path):

    def fails(*_args):
        raise LookupError("not as it was")

    monkeypatch.setattr(f"nbmem.capture.distributed.{path}", fails)
    model = second()
    with nbmem.trace("cell", namespace={"model": model}) as trace:
        model(torch.randn(8, 512, device="cuda")).sum().backward()
    assert any("LookupError" in note for note in trace.session.notes), trace.session.notes
    phases = {span.name for span in trace.session.spans if span.kind == "phase"}
    assert {"forward", "backward"} <= phases
    assert model[0].weight.grad is not None


def test_torchs_methods_are_its_own_again():
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group

    before = vars(_fsdp_param_group.FSDPParamGroup)["unshard"], _runtime_utils.dist
    allocated_in_phase(second(), "forward")
    assert (vars(_fsdp_param_group.FSDPParamGroup)["unshard"], _runtime_utils.dist) == before
    assert type(vars(_fsdp_collectives.DefaultAllocMixin)["allocate"]) is type(allocated_in_phase)
