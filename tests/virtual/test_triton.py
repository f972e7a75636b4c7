"""Launches of Triton kernels, with a fake Triton."""

import contextlib
import contextvars
import importlib
import inspect
import sys
import types
import warnings

import pytest
import torch

with contextlib.suppress(ImportError):  # before a stand-in has the name of one of its parts
    importlib.import_module("triton.testing")

from nbmem import virtual
from nbmem.virtual.patches.triton.compiled_kernels import PATIENCE_S, LazyKernel, Scratch
from nbmem.virtual.patches.triton.launches import COLD_CACHE
from nbmem.virtual.warnings import TRITON, unknown_scratch


class Kernel:
    """Fake of a compiled function, as a launch reads it."""

    def __init__(self, function):
        self.fn = function
        self.signature = inspect.signature(function)
        self.pre_run_hooks = []
        self.__name__ = function.__name__

    def run(self, *args, grid, warmup, **options):
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def copy_kernel(x, y, n, BLOCK=64): ...  # noqa: N803 - as such constants are named


def descriptor_kernel(x, y, n):
    calls_one(x)


def make(x):
    return tl.make_tensor_descriptor(x, shape=[4])  # noqa: F821 - never called


calls_one = types.SimpleNamespace(fn=make)


@pytest.fixture
def triton(monkeypatch):
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = type("JITFunction", (Kernel,), {"run": Kernel.run})
    driver = types.ModuleType("triton.runtime.driver")
    driver.DriverConfig = type("DriverConfig", (), {"active": None})
    for module in (jit, driver):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return types.SimpleNamespace(
        kernel=jit.JITFunction(copy_kernel),
        with_descriptor=jit.JITFunction(descriptor_kernel),
        driver=driver.DriverConfig(),
    )


def test_launches_pass_and_are_mentioned_once(triton):
    with virtual.activated("L4") as gpu, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        y = torch.zeros(2, device="cuda", dtype=torch.int64)
        for _ in range(2):
            triton.kernel.run(y, y, 2, grid=(1,), warmup=False, num_warps=4)
        assert y[0].item() == 1  # what it wrote is not known
        assert [str(one.message) for one in caught].count(TRITON) == 1
        assert gpu.notes.count(TRITON) == 1
        driver = triton.driver.active
        assert driver.get_active_torch_device() == torch.device("cuda:0")
        assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 58
        assert driver.get_device_capability() == (8, 9)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        triton.kernel.run(None, grid=(1,), warmup=False)


def test_the_hosts_code_around_a_launch_runs(triton, gpu):
    x, seen = torch.ones(4, device="cuda"), []

    def grid(named):
        seen.append((named["n"], named["BLOCK"]))
        return (1,)

    triton.kernel.pre_run_hooks.append(lambda *args, **options: seen.append(len(args)))
    triton.kernel.run(x, x, 4, grid=grid, warmup=False, BLOCK=128)
    assert seen == [3, (4, 128)]


def test_a_launch_refuses_what_it_would_refuse(triton, gpu):
    x = torch.ones(4, device="cuda")
    with pytest.raises(ValueError, match=r"argument \(at 1\) cannot be accessed from Triton"):
        triton.kernel.run(x, torch.ones(4), 4, grid=(1,), warmup=False)
    with pytest.raises(TypeError, match="missing a required argument: 'n'"):
        triton.kernel.run(x, x, grid=(1,), warmup=False)


class Compiled:
    """Fake of a kernel that Triton's compiler makes."""

    def __init__(self):
        self.metadata = types.SimpleNamespace(
            shared=96, global_scratch_size=128, global_scratch_align=64, num_ctas=2
        )

    def _init_handles(self):
        self.n_regs = 40


@pytest.fixture
def compiler(monkeypatch):
    """Record the arguments of Triton's compiler."""
    requests = []

    def run(self, *args, grid, warmup, **options):
        assert warmup
        assert not self.pre_run_hooks
        requests.append([*args, *options.items()])
        return Compiled()

    monkeypatch.setattr(Kernel, "run", run)
    return requests


def test_a_kernel_is_compiled_when_it_is_asked(compiler, triton, gpu):
    x = torch.ones(4, device="cuda", dtype=torch.half)
    triton.kernel.pre_run_hooks.append(lambda *args, **options: None)
    launched = triton.kernel.run(x, x[1:], 4, grid=(1,), warmup=False, BLOCK=128)
    only_compiled = triton.kernel.run(x, x, 4, grid=(1,), warmup=True)
    del x
    assert torch.cuda.memory_allocated() == 0  # it keeps what tensors are, not the tensors
    assert not compiler
    assert (launched.n_regs, launched.metadata.shared) == (40, 96)
    with pytest.raises(AttributeError, match="n_regs"):
        _ = only_compiled.n_regs  # as on a card, before it is loaded
    first, second, *others = compiler[0]
    assert (first.dtype, second.data_ptr() - first.data_ptr(), others) == (
        torch.half,
        2,
        [4, ("BLOCK", 128)],
    )
    assert len(triton.kernel.pre_run_hooks) == 1


def test_a_kernel_that_cannot_be_compiled_says_so(triton, gpu):
    x = torch.ones(4, device="cuda")
    made = triton.kernel.run(x, x, grid=(1,), warmup=False, n=4)
    with pytest.raises(AttributeError, match=r"n_regs of the kernel copy_kernel .*0 active"):
        _ = made.n_regs


def test_scratch_is_taken_from_the_programs_allocator(compiler, triton, gpu, monkeypatch):
    parts = types.ModuleType("triton.runtime._allocation")
    parts.NullAllocator = type("NullAllocator", (), {})
    parts._allocator = contextvars.ContextVar("allocator")
    parts._allocator.set(parts.NullAllocator())
    monkeypatch.setitem(sys.modules, parts.__name__, parts)
    x, kernel, requests = torch.ones(4, device="cuda"), triton.with_descriptor, []
    kernel.run(x, x, 4, grid=(3, 5), warmup=False)

    def allocate(size, alignment, stream):
        requests.append((size, alignment))
        return torch.empty(size, dtype=torch.int8, device="cuda")

    parts._allocator.set(allocate)
    before = torch.cuda.memory_allocated()
    triton.kernel.run(x, x, 4, grid=(3, 5), warmup=False)
    assert not compiler  # compiling takes seconds, and neither of the two can ask for any
    kernel.run(x, x, 4, grid=lambda named: (3, named["n"] + 1), warmup=False)
    kernel.run(x, x, 4, grid=(1,), warmup=False, num_warps=2)  # of a tuner, say
    assert len(compiler) == 1
    assert requests == [(3 * 5 * 2 * 128, 64), (2 * 128, 64)]
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() == before + 4096


def test_compiling_for_scratch_ends(compiler):
    notes = []
    scratch, kernel = Scratch(notes.append), LazyKernel("copy", Compiled, loaded=True)
    assert scratch.of(copy_kernel, kernel, [None, 3]).num_ctas == 2
    scratch._spent_s = PATIENCE_S
    assert scratch.of(copy_kernel, kernel, [None, 4]).num_ctas == 2
    assert scratch.of(copy_kernel, kernel, [7, 3]) is None
    assert notes == [unknown_scratch("copy")]


def test_tritons_own_cublas_passes(triton, gpu, monkeypatch):
    cublas = types.SimpleNamespace(CublasLt=None)
    library = types.SimpleNamespace(nvidia=types.SimpleNamespace(cublas=cublas))
    monkeypatch.setitem(sys.modules, "triton._C.libtriton", library)
    with virtual.activated("H100"):
        a = torch.zeros(2, 2, device="cuda", dtype=torch.int64)
        made = cublas.CublasLt(torch.empty(1 << 20, dtype=torch.int8, device="cuda"))
        made.matmul(a, a, a)
        assert a[0, 0].item() == 1  # what it wrote is not known
    assert cublas.CublasLt is None


def test_a_benchmark_takes_its_buffer_and_ends_soon(triton, gpu):
    torch.cuda.reset_peak_memory_stats()
    active = triton.driver.active
    events = [active.get_device_interface().Event(enable_timing=True) for _ in range(2)]
    cache = active.get_empty_cache_for_benchmark()
    active.clear_cache(cache)
    del cache
    active.get_device_interface().synchronize()
    assert torch.cuda.max_memory_allocated() == COLD_CACHE
    assert torch.cuda.memory_allocated() == 0
    assert int(100 / events[0].elapsed_time(events[1])) == 0  # repetitions in 100 ms


def test_a_tuned_kernel_of_tritons_own(gpu):
    triton = pytest.importorskip("triton", reason="Triton's own tuner")
    taken = []

    def before(named):
        taken.append(torch.empty(1 << 18, device="cuda"))
        taken.clear()

    configs = [triton.Config({"BLOCK": n}, pre_hook=before) for n in (64, 128)]
    kernel = triton.autotune(configs=configs, key=["n"])(triton.jit(copy_kernel))
    x = torch.ones(1024, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    kernel[lambda named: (triton.cdiv(1024, named["BLOCK"]),)](x, x, 1024)
    assert torch.cuda.max_memory_allocated() == COLD_CACHE + (1 << 20) + 4096
    assert kernel.best_config.kwargs == {"BLOCK": 64}


def test_a_launch_that_torch_wraps_passes(gpu):
    triton = pytest.importorskip("triton", reason="Triton's own kernels")
    x, kernel = torch.ones(64, device="cuda"), triton.jit(copy_kernel)
    torch.library.wrap_triton(kernel)[(1,)](x, x, 64, BLOCK=64)
    assert gpu.notes.count(TRITON) == 1
