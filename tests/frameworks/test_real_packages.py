"""Readings of the real packages, where they are installed."""

import importlib
import sys

import pytest

from nbmem.capture.frameworks.readings import FrameworkQueries
from nbmem.core.session.frameworks import Share
from tests.frameworks.recorded_packages import (
    CUDA_12_9_10_ATTRIBUTES,
    CUPY_14_2_0_POOL,
    JAX_0_10_2_CPU,
)

MIB = 1 << 20


@pytest.fixture
def asked():
    """Read one framework; return its shares and notes."""

    def ask(name):
        notes = []
        found = [share for share in FrameworkQueries(notes.append).read(0) if share.name == name]
        return found, [note for note in notes if name in note.lower()]

    return ask


def test_cupy(asked):
    cupy = pytest.importorskip("cupy")
    pool = cupy.get_default_memory_pool()
    assert all(hasattr(pool, name) for name in CUPY_14_2_0_POOL)
    assert all(hasattr(cupy.cuda.MemoryAsyncPool, name) for name in CUPY_14_2_0_POOL)
    assert cupy.cuda.get_allocator().__self__ is pool
    if not cupy.is_available():
        assert asked("cupy") == ([], [])


def test_rmm(asked):
    rmm = pytest.importorskip("rmm")
    import ctypes

    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    source = rmm.mr.CallbackMemoryResource(lambda size, _: malloc(size), lambda *_: None)
    before = rmm.mr.get_per_device_resource(0)
    assert asked("rmm") == ([], [])  # it counts nothing by itself
    counted = rmm.mr.StatisticsResourceAdaptor(source)
    pool = rmm.mr.PoolMemoryResource(source, 16 * MIB)
    try:
        for resource, held in ((counted, MIB), (rmm.mr.TrackingResourceAdaptor(pool), 16 * MIB)):
            rmm.mr.set_per_device_resource(0, resource)
            kept = resource.allocate(MIB)
            assert asked("rmm") == ([Share(name="rmm", held=held, used=MIB)], [])
            resource.deallocate(kept, MIB)
    finally:
        rmm.mr.set_per_device_resource(0, before)


def test_jax(asked):
    jax = pytest.importorskip("jax")
    bridge = importlib.import_module("jax._src.xla_bridge")
    if not bridge._backends:
        assert asked("jax") == ([], [])
        assert not bridge._backends  # asking has not started it
    device = jax.devices("cpu")[0]
    assert device.local_hardware_id == 0
    assert device.memory_stats() is JAX_0_10_2_CPU
    if {client.platform for client in bridge._backends.values()} == {"cpu"}:
        assert asked("jax") == ([], [])


def test_tensorflow(asked):
    tensorflow = pytest.importorskip("tensorflow")
    context = sys.modules["tensorflow.python.eager.context"]
    before = context._context
    assert asked("tensorflow") == ([], [])
    assert context._context is before  # asking has not started it
    tensorflow.constant(1.0)
    assert context._context._initialized
    assert set(tensorflow.config.experimental.get_memory_info("CPU:0")) == {"current", "peak"}
    if not tensorflow.config.list_physical_devices("GPU"):
        assert asked("tensorflow") == ([], [])


def test_numba(asked):
    pytest.importorskip("numba.cuda")
    driver = importlib.import_module("numba.cuda.cudadrv.driver")
    started = driver.driver.is_initialized
    assert asked("numba") == ([], [])
    assert driver.driver.is_initialized == started  # nor has asking
    assert issubclass(driver.MappedMemory, driver.AutoFreePointer)
    manager = driver.NumbaCUDAMemoryManager(context=None)
    memory = driver.AutoFreePointer(None, 0, 3 * MIB)
    manager.allocations[1] = memory
    manager.deallocations.memory_capacity = 1 << 40
    manager.deallocations._size += 2 * MIB  # as its add_item does
    device = type("Device", (), {"primary_context": type("C", (), {"memory_manager": manager})})
    driver.driver.devices[0] = device
    try:
        assert asked("numba") == ([Share(name="numba", held=5 * MIB, used=3 * MIB)], [])
    finally:
        del driver.driver.devices[0]


def test_cuda_bindings():
    runtime = pytest.importorskip("cuda.bindings.runtime")
    kinds = runtime.cudaMemPoolAttr
    assert {
        name: int(getattr(kinds, name)) for name in CUDA_12_9_10_ATTRIBUTES
    } == CUDA_12_9_10_ATTRIBUTES
