"""Cached module trees, until anything of the module changes."""

import ctypes
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nbmem.api.tracing as nbmem
from nbmem.capture.devices.host import Host
from nbmem.capture.tensors.active_registry import activate_registry
from nbmem.capture.tensors.module_tree import ModuleTree, forget_trees, tree_of
from nbmem.capture.tensors.storage_registry import ALIVE, StorageRegistry
from nbmem.capture.tensors.tensors import observe, storages_of_module
from nbmem.core.session.categories import Category

KEPT = []


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()))


@pytest.fixture
def model():
    return build()


def _another_weight(model):
    model[0].weight = nn.Parameter(torch.zeros(4, 3))


def _another_place(model):
    model[0].weight.data = torch.zeros(4, 3)


def _another_type(model):
    model.half()


def _one_more(model):
    model[1].append(nn.Linear(1, 1))


def _one_less(model):
    del model[1][1]


def _another_name(model):
    model[1].norm = model[1]._modules.pop("0")


def _another_buffer(model):
    model[1][0].running_mean = torch.zeros(4)


def _no_bias(model):
    model[0].bias = None


def _another_form(model):
    weight = model[0].requires_grad_(requires_grad=False).weight
    weight.data = weight.data.view(torch.int32)


def _a_buffer_becomes_a_weight(model):
    model[1][0]._parameters["running_mean"] = model[1][0]._buffers.pop("running_mean")


def _a_weight_moves_on(model):
    model[1][0]._parameters["x"] = model[0]._parameters.pop("bias")


def _another_storage_at_its_place(model):
    storage = model[0].weight.untyped_storage()
    other = torch.frombuffer(
        (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr()), dtype=torch.float32
    )
    KEPT.append(storage)
    model[0].weight.data = other.view(4, 3)


CHANGES = [
    _another_weight, _another_place, _another_type, _one_more, _one_less, _another_name,
    _another_buffer, _no_bias, _another_form, _a_buffer_becomes_a_weight, _a_weight_moves_on,
    _another_storage_at_its_place,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_anywhere_makes_another_tree(model, change):
    tree = tree_of(model)
    assert tree_of(model) is tree
    change(model)
    assert tree_of(model) is not tree
    assert tree_of(model) is tree_of(model)


def test_what_training_changes_does_not_change_the_tree(model):
    tree = tree_of(model)
    model(torch.ones(2, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.eval().zero_grad()
    assert tree_of(model) is tree


def test_a_tree_ends_with_its_module_and_keeps_no_part_of_it():
    model = build()
    tree = tree_of(model)
    parts = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters())]
    list(storages_of_module(model))
    del model
    gc.collect()
    assert not any(part() is not None for part in parts)
    assert not tree.holds()


def test_a_tensor_of_another_class_may_change_inside_so_its_tree_does_not_last():
    class Wrapper(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.register_buffer("wrapped", torch.zeros(2).as_subclass(Wrapper))
    assert not tree_of(model).is_plain
    assert tree_of(model) is not tree_of(model)


def test_a_tied_parameter_has_its_first_place_and_tells_the_embeddings_of_the_head():
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model.head.weight = model.embed.weight
    tree = ModuleTree(model)
    (place,) = tree.places.values()
    assert (place.path, place.lookup) == ("embed.weight", True)
    assert list(tree.tied.values()) == [".head.weight"]


def test_a_dictionary_of_the_programs_own_class_is_asked_nothing():
    class Own(dict):
        def __len__(self):
            raise AssertionError

        __bool__ = __iter__ = keys = values = items = __len__

    model = build()
    model[0].__dict__["_parameters"] = Own(model[0]._parameters)
    assert not tree_of(model).is_plain
    assert [path for path, _ in tree_of(model).named_parameters()][:2] == ["0.weight", "0.bias"]


def test_a_scripted_module_has_names():
    model = torch.jit.script(nn.Linear(100, 52))
    for _ in range(3):
        with nbmem.trace("t", namespace={"model": model}) as t:
            model(torch.ones(3, 100)).sum().backward()
        ledger = t.report().ledger_at_end
        assert ledger[Category.WEIGHTS] == ledger[Category.GRADIENTS] == 52 * 101 * 4
        assert not any("nbmem lost" in note for note in t.session.notes)
        with nbmem.trace("idle", namespace={"model": model}) as t:
            torch.ones(3).sum()
        assert t.report().ledger_at_end[Category.GRADIENTS] == 52 * 101 * 4


def test_tensors_can_be_swapped_behind_a_trace(model):
    for _ in range(2):
        with nbmem.trace("t", namespace={"model": model}) as t:
            model(torch.ones(2, 3))
        del t
    gc.collect()
    torch.utils.swap_tensors(model[0].weight, nn.Parameter(torch.zeros(4, 3)))


def test_a_storage_at_the_place_of_one_that_is_gone_counts():
    numpy = pytest.importorskip("numpy")
    array = numpy.ones(10_000, numpy.float32)
    model = nn.Linear(10, 1_000, bias=False)
    model.weight.data = torch.from_numpy(array).view(1_000, 10)
    for _ in range(3):
        with nbmem.trace("t", namespace={"model": model}) as t:
            pass
        assert t.report().ledger_at_end[Category.WEIGHTS] == array.nbytes
        model.weight.data = torch.empty(0)
        model.weight.data = torch.from_numpy(array).view(1_000, 10)


# --- on a roll


def registry_columns(registry):
    return [column.tolist() for column in registry.columns]


def one_by_one(tree):
    registry = StorageRegistry(torch, Host())
    with activate_registry(registry):
        for tensor in tree.tensors():
            observe(tensor, 0, "x")
    return registry


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(["own", "tied", "view", "flat", "empty"]), max_size=8))
def test_registering_a_tree_equals_registering_its_tensors(kinds):
    model, last = nn.ParameterList(), nn.Parameter(torch.zeros(7))
    flat = torch.zeros(64)
    for index, kind in enumerate(kinds):
        if kind == "own":
            last = nn.Parameter(torch.zeros(3 + index))
        elif kind == "view":
            last = nn.Parameter(last.detach()[1:])
        elif kind == "flat":
            last = nn.Parameter(flat[index : index + 4])
        elif kind == "empty":
            last = nn.Parameter(torch.zeros(0))
        model.append(last)
    forget_trees()
    tree = tree_of(model)
    at_once = StorageRegistry(torch, Host())
    at_once.register_tree(tree)
    apart = one_by_one(tree)
    assert sorted(zip(*registry_columns(at_once), strict=True)) == sorted(
        zip(*registry_columns(apart), strict=True)
    )
    assert at_once.live_bytes == apart.live_bytes
    with activate_registry(at_once):  # and each is known by then
        for tensor in tree.tensors():
            observe(tensor, 0, "x")
    assert len(at_once.columns.addr) == len(apart.columns.addr)
    for registry in (at_once, apart):
        registry.close()


def test_what_a_model_releases_is_gone_at_the_next_sweep(model):
    registry = StorageRegistry(torch, Host())
    registry.register_tree(tree_of(model))
    registry.sweep(1)
    before = registry.live_bytes[0]
    model[0].weight = None
    registry.sweep(2)
    assert registry.live_bytes[0] == before - 48
    assert sorted(registry.columns.freed_at)[-2:] == [ALIVE, 2]


def test_what_no_reference_tells_is_found_by_asking_all(model):
    registry = StorageRegistry(torch, Host())
    registry.register_tree(tree_of(model))
    registry.sweep(1)
    model[0].weight.data = torch.zeros(0)
    registry.check_all_next()
    registry.sweep(2)
    assert max(registry.columns.freed_at) == 2


def test_a_tree_counts_registered_tensors_once(model):
    registry = StorageRegistry(torch, Host())
    with activate_registry(registry):
        observe(model[0].weight, 0, "w")
    registry.register_tree(tree_of(model))
    assert len(set(registry.columns.addr)) == len(registry.columns.addr) == 7
    registry.close()


def test_the_references_of_a_tree_outlast_a_registry(model):
    for _ in range(2):
        registry = StorageRegistry(torch, Host())
        registry.register_tree(tree_of(model))
        registry.sweep(1)
        assert set(registry.columns.freed_at) == {ALIVE}
        registry.close()
