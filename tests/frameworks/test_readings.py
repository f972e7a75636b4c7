"""Readings of each framework, only if imported and plausible."""

import sys
import threading
from functools import partialmethod
from types import SimpleNamespace

import pytest
import torch

from nbmem import virtual
from nbmem.capture.frameworks import OWNERS, Framework, FrameworkReading, readings
from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.capture.timeouts import call_with_timeout
from nbmem.core.session.frameworks import LABELS, Share
from tests.frameworks.conftest import AsyncPool, Pool
from tests.frameworks.recorded_packages import (
    JAX_0_10_2_CPU,
    JAX_0_10_2_GPU,
    RMM_23_12_0,
    RMM_26_10_0,
    TENSORFLOW_2_21_0_CPU,
)

MIB = 1 << 20


@pytest.fixture
def notes():
    return []


@pytest.fixture
def owners(notes):
    return FrameworkQueries(notes.append)


def single_framework(name, read):
    return (Framework(name=name, modules=(), read=read),)


def test_every_owner_has_a_name_for_people():
    assert [owner.name for owner in OWNERS] == list(LABELS)


def test_no_framework_is_imported(owners, notes):
    before = set(sys.modules)
    assert owners.read(0) == ()
    assert not notes
    assert not {"cupy", "rmm", "jax", "tensorflow", "numba"} & (set(sys.modules) - before)


def test_what_is_being_imported_is_not_asked(put_in, owners, notes):
    put_in(cupy={"__spec__": SimpleNamespace(_initializing=True)}, cupy__cuda={})
    assert owners.read(0) == ()
    assert not notes


def test_cupys_default_pool(cupy, owners):
    cupy.held, cupy.used = 6 << 30, 400 * MIB
    assert owners.read(0) == (Share(name="cupy", held=6 << 30, used=400 * MIB),)


def test_cupys_chosen_pool_counts_too(cupy, owners, monkeypatch):
    cupy.held, chosen = 2 * MIB, Pool(8 * MIB, 3 * MIB)
    monkeypatch.setattr(sys.modules["cupy.cuda"], "get_allocator", lambda: chosen.malloc)
    assert owners.read(0) == (Share(name="cupy", held=10 * MIB, used=3 * MIB),)


def test_an_allocator_of_another_library_is_not_cupys(cupy, owners, monkeypatch):
    monkeypatch.setattr(sys.modules["cupy.cuda"], "get_allocator", lambda: lambda size: None)
    assert owners.read(0) == ()


def test_cupy_without_a_driver_holds_nothing(cupy, owners, notes, monkeypatch):
    cupy.held = MIB
    monkeypatch.setattr(sys.modules["cupy"], "is_available", lambda: False)
    assert owners.read(0) == ()
    assert not notes


def test_cuda_pool_and_who_else_counts_it(cupy, cuda_pool, owners, monkeypatch):
    with virtual.activated("T4"):
        assert owners.read(0) == ()  # torch has not touched the card
        torch.empty(1, device="cuda")
        assert owners.read(0) == (Share(name="cuda_pool", held=96 * MIB, used=32 * MIB),)
        # CuPy's asynchronous pool is that pool.
        chosen = AsyncPool(96 * MIB, 32 * MIB)
        monkeypatch.setattr(sys.modules["cupy.cuda"], "get_allocator", lambda: chosen.malloc)
        assert owners.read(0) == (Share(name="cupy", held=96 * MIB, used=32 * MIB),)


def test_jaxs_pool_by_ordinal(jax, owners):
    jax.update(JAX_0_10_2_GPU)
    assert owners.read(0) == (Share(name="jax", held=60 << 30, used=400 * MIB),)
    assert owners.read(1) == ()


def test_an_older_jax_holds_what_it_uses(jax, owners):
    jax.update({key: n for key, n in JAX_0_10_2_GPU.items() if "pool" not in key})
    assert owners.read(0) == (Share(name="jax", held=400 * MIB, used=400 * MIB),)


def test_jax_that_says_nothing(jax, owners, notes, monkeypatch):
    (client,) = sys.modules["jax._src.xla_bridge"]._backends.values()
    (device,) = client.local_devices()
    monkeypatch.setattr(device, "memory_stats", lambda: JAX_0_10_2_CPU)
    assert owners.read(0) == ()
    monkeypatch.setattr(device, "platform", "cpu")
    assert owners.read(0) == ()
    assert not notes


def tensorflow(put_in, told, *, initialized=True):
    devices = [SimpleNamespace(name="/device:GPU:0")]
    context = SimpleNamespace(
        _initialized=initialized, list_logical_devices=lambda kind: devices if kind == "GPU" else []
    )
    experimental = SimpleNamespace(get_memory_info=lambda name: told)
    put_in(
        tensorflow={"config": SimpleNamespace(experimental=experimental)},
        tensorflow__python__eager__context={"_context": context},
    )


def test_tensorflows_tensors(put_in, owners):
    tensorflow(put_in, TENSORFLOW_2_21_0_CPU | {"current": 5 * MIB})
    assert owners.read(0) == (Share(name="tensorflow", held=5 * MIB, used=5 * MIB),)
    assert owners.read(1) == ()


def test_tensorflow_is_not_started(put_in, owners):
    tensorflow(put_in, {"current": 5 * MIB}, initialized=False)
    assert owners.read(0) == ()


def returned(_, value):
    return value


def resource(kind, upstream=None, **answers):
    methods = {name: partialmethod(returned, value) for name, value in answers.items()}
    if upstream is not None:
        methods["get_upstream"] = lambda _: upstream
    if "allocation_counts" in methods:
        methods["allocation_counts"] = answers["allocation_counts"]
    return type(kind, (), methods)()


CUDA = resource("CudaMemoryResource")


@pytest.mark.parametrize(
    ("chain", "share"),
    [
        (CUDA, None),
        (
            resource("StatisticsResourceAdaptor", CUDA, allocation_counts=RMM_26_10_0),
            Share(name="rmm", held=MIB, used=MIB),
        ),
        (
            resource("StatisticsResourceAdaptor", CUDA, allocation_counts=RMM_23_12_0),
            Share(name="rmm", held=MIB, used=MIB),
        ),
        (
            resource("PoolMemoryResource", CUDA, pool_size=64 * MIB),
            Share(name="rmm", held=64 * MIB, used=None),
        ),
        (
            resource(
                "TrackingResourceAdaptor",
                resource("PoolMemoryResource", CUDA, pool_size=64 * MIB),
                get_allocated_bytes=3 * MIB,
            ),
            Share(name="rmm", held=64 * MIB, used=3 * MIB),
        ),
        (
            resource(
                "LimitingResourceAdaptor",
                resource("ManagedMemoryResource"),
                get_allocated_bytes=3 * MIB,
            ),
            Share(name="rmm", held=0, used=0, managed=3 * MIB),
        ),
        (
            resource(
                "StatisticsResourceAdaptor",
                resource("PinnedHostMemoryResource"),
                allocation_counts=RMM_26_10_0,
            ),
            None,
        ),
    ],
    ids=["silent", "statistics", "older", "pool", "tracked pool", "managed", "host"],
)
def test_rmms_resources(put_in, owners, chain, share):
    put_in(rmm={}, rmm__mr={"get_per_device_resource": lambda device: chain})
    assert owners.read(0) == (() if share is None else (share,))


def test_numbas_arrays_and_those_that_wait(put_in, owners):
    automatic = type("AutoFreePointer", (), {})
    kinds = {
        "AutoFreePointer": automatic,
        "MappedMemory": type("MappedMemory", (automatic,), {}),
        "ManagedMemory": type("ManagedMemory", (automatic,), {}),
    }
    allocations = {}
    for at, (kind, size) in enumerate(zip(kinds.values(), (3, 5, 7), strict=True)):
        allocations[at] = kind()
        allocations[at].size = size * MIB
    manager = SimpleNamespace(
        allocations=allocations, deallocations=SimpleNamespace(_size=11 * MIB)
    )
    device = SimpleNamespace(primary_context=SimpleNamespace(memory_manager=manager))
    driver = SimpleNamespace(devices={0: device, 1: SimpleNamespace(primary_context=None)})
    put_in(numba__cuda={}, numba__cuda__cudadrv__driver={"driver": driver, **kinds})
    found = Share(name="numba", held=14 * MIB, used=3 * MIB, managed=7 * MIB)
    assert owners.read(0) == (found,)
    assert owners.read(1) == owners.read(2) == ()


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (FrameworkReading(held=1, used=2), "holds 1 B and uses 2 B"),
        (FrameworkReading(held=-1), "holds -1 B"),
        (FrameworkReading(held="many"), "holds many B"),
        (FrameworkReading(held=1, managed=1.5), "holds 1 B"),
        (FrameworkReading(held=1 << 64), "which cannot be"),
    ],
)
def test_what_cannot_be_so_is_unknown_and_said_once(notes, reading, message):
    asked = []
    owners = FrameworkQueries(
        notes.append, single_framework("jax", lambda device: asked.append(device) or reading)
    )
    assert owners.read(0) == owners.read(0) == ()
    assert asked == [0, 0]  # once more, for a pool that was in the middle of a change
    (note,) = notes
    assert message in note
    assert note.startswith("What JAX holds of the card is not known: it says")


def test_a_pool_that_shrank_between_its_figures_is_asked_again(notes):
    told = iter([FrameworkReading(held=1, used=2), FrameworkReading(held=2, used=1)])
    owners = FrameworkQueries(notes.append, single_framework("cupy", lambda device: next(told)))
    assert owners.read(0) == (Share(name="cupy", held=2, used=1),)
    assert not notes


def test_a_broken_package_costs_one_note(put_in, owners, notes, cupy):
    cupy.held = MIB
    put_in(rmm={}, rmm__mr={})  # of another version
    for _ in range(3):
        assert [share.name for share in owners.read(0)] == ["cupy"]
    (note,) = notes
    assert "get_per_device_resource" in note


class OwnError(BaseException):
    """An exception of a library that is not derived from Exception."""


@pytest.mark.parametrize("fault", [SystemExit(3), KeyboardInterrupt(), MemoryError(), OwnError()])
def test_whatever_a_library_raises_costs_its_line_and_prints_nothing(
    notes, fault, monkeypatch, capsys
):
    def read(device):
        raise fault

    second = Framework(name="jax", modules=(), read=lambda _: FrameworkReading(held=MIB))
    asked = FrameworkQueries(notes.append, (*single_framework("cupy", read), second))
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    assert [share.name for share in asked.read_in_time(0)] == ["jax"]
    assert [share.name for share in asked.read_in_time(0)] == ["jax"]
    assert len(notes) == 1
    assert not printed
    assert capsys.readouterr() == ("", "")


def test_a_module_that_answers_nothing_costs_its_own_line(monkeypatch, cupy, owners, notes):
    class Lazy:
        def __getattribute__(self, name):
            raise ImportError("libcudart is missing")

    cupy.held = MIB
    monkeypatch.setitem(sys.modules, "rmm", Lazy())
    assert [share.name for share in owners.read(0)] == ["cupy"]
    (note,) = notes
    assert "libcudart is missing" in note


@pytest.mark.parametrize("fault", [SystemExit(3), KeyboardInterrupt(), OwnError()])
def test_what_ends_a_thread_that_is_waited_for_is_raised_as_an_error(fault):
    def call():
        raise fault

    with pytest.raises(RuntimeError, match=type(fault).__name__):
        call_with_timeout(call, 10)


def test_a_framework_that_hangs_costs_at_most_its_limit(notes, monkeypatch):
    monkeypatch.setattr(readings, "LIMIT_S", 0.01)
    done = threading.Event()
    try:
        assert (
            FrameworkQueries(
                notes.append, single_framework("jax", lambda device: done.wait())
            ).read_in_time(0)
            == ()
        )
        again = single_framework("jax", lambda device: FrameworkReading(held=1))
        assert FrameworkQueries(notes.append, again).read_in_time(0) == ()
    finally:
        done.set()
        readings._hung.clear()


def test_one_that_hangs_is_named_and_left(notes):
    entered, done = threading.Event(), threading.Event()

    def read(device):
        entered.set()
        done.wait()

    owners = FrameworkQueries(notes.append, single_framework("numba", read))
    assert owners.disable_hanging() is None
    thread = threading.Thread(target=owners.read, args=(0,))
    thread.start()
    entered.wait()
    try:
        assert "Numba did not say within a second" in owners.disable_hanging()
        assert FrameworkQueries(notes.append, single_framework("numba", read)).read(0) == ()
    finally:
        done.set()
        thread.join()
        readings._hung.clear()
