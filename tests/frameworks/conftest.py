"""Fake packages of the recorded shape, installed for one test."""

import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest

from tests.frameworks.recorded_packages import CUDA_12_9_10_ATTRIBUTES


class Pool:
    """CuPy's MemoryPool."""

    def __init__(self, held, used):
        self.held, self.used = held, used

    def malloc(self, size):
        raise NotImplementedError

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.held

    def free_bytes(self):
        return self.held - self.used

    def free_all_blocks(self):
        self.held = self.used


class AsyncPool(Pool):
    """CuPy's MemoryAsyncPool."""


def hold(card, pool, held, used):
    """Take memory of the card for CuPy, or give it back."""
    card.library_bytes += held - pool.held
    pool.held, pool.used = held, used


@pytest.fixture
def card():
    """A virtual T4 that torch uses."""
    import torch

    from nbmem import virtual

    with virtual.activated("T4") as gpu:
        torch.empty(1, device="cuda")
        yield gpu


@pytest.fixture
def put_in(monkeypatch):
    """Install modules by their attributes; `__` stands for a dot."""

    def put(**modules):
        for key, attributes in modules.items():
            name = key if "." in key else key.replace("__", ".")
            module = ModuleType(name)
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, name, module)

    return put


@pytest.fixture
def cupy(put_in):
    """Install CuPy with an empty default pool."""
    pool = Pool(0, 0)
    cuda = {
        "MemoryPool": Pool,
        "MemoryAsyncPool": AsyncPool,
        "get_allocator": lambda: pool.malloc,
        "runtime": SimpleNamespace(getDevice=lambda: 0),
    }
    put_in(cupy__cuda=cuda)
    whole = {
        "is_available": lambda: True,
        "get_default_memory_pool": lambda: pool,
        "cuda": sys.modules["cupy.cuda"],
    }
    put_in(cupy=whole)
    return pool


@pytest.fixture
def jax(put_in):
    """Install JAX, with `told` as the first card's figures."""
    told = {}
    device = SimpleNamespace(
        id=4, local_hardware_id=0, platform="gpu", memory_stats=lambda: dict(told)
    )
    client = SimpleNamespace(local_devices=lambda: [device])
    put_in(jax={}, **{"jax._src.xla_bridge": {"_backends": {"cuda": client}}})
    return told


@pytest.fixture
def cuda_pool(put_in):
    """Install cuda-bindings with a default pool of 96 MiB, 32 in use."""
    error = IntEnum("cudaError_t", {"cudaSuccess": 0})
    kinds = IntEnum("cudaMemPoolAttr", CUDA_12_9_10_ATTRIBUTES)
    figures = {5: 96 << 20, 7: 32 << 20}
    put_in(
        cuda__bindings__runtime={
            "cudaMemPoolAttr": kinds,
            "cudaDeviceGetDefaultMemPool": lambda device: (error(0), "pool"),
            "cudaMemPoolGetAttribute": lambda pool, kind: (error(0), figures[int(kind)]),
        }
    )
