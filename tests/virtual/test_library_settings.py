"""Settings of CUDA's libraries and their bytes."""

import pytest
import torch

from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB

backends = torch.backends.cuda
sizes = pytest.mark.skipif(
    not hasattr(backends, "cublas_workspace_size"), reason="since torch 2.13"
)


@pytest.fixture
def product(gpu):
    x = torch.zeros(64, 64, device="cuda")

    def run():
        """Bytes that a matrix product leaves behind, and those at its peak."""
        torch.cuda.reset_peak_memory_stats()
        (x @ x).sum()
        return torch.cuda.memory_allocated() - 16384, torch.cuda.max_memory_allocated() - 32768

    return run


@sizes
def test_a_larger_workspace_takes_the_place_of_a_smaller_one(product):
    assert (backends.cublas_workspace_size(), backends.cublaslt_workspace_size()) == (32 * MIB, MIB)
    assert product()[0] == 32 * MIB
    assert backends.cublas_workspace_size(MIB) == MIB
    assert product()[0] == 32 * MIB, "what is there is large enough"
    backends.cublas_workspace_size(64 * MIB)
    assert product() == (64 * MIB, 96 * MIB), "the old one goes when the new one is there"
    torch._C._cuda_clearCublasWorkspaces()
    backends.cublas_workspace_size(1000)
    assert product()[0] == 1024
    torch._C._cuda_clearCublasWorkspaces()
    backends.cublas_workspace_size(0)
    assert product()[0] == 0
    for name in ("cublas", "cublaslt"):
        with pytest.raises(RuntimeError, match=f"^{name} workspace size must be non-negative"):
            backends.blas_workspace_size(-1, name)


def host(*names):
    statistics = torch.cuda.host_memory_stats()
    return [statistics[name] for name in names]


NOW = ("allocated_bytes.current", "active_bytes.current", "num_host_alloc", "num_host_free")


@pytest.mark.skipif(not hasattr(torch.cuda, "host_memory_stats"), reason="since torch 2.8")
def test_pinned_memory_is_blocks_of_a_power_of_two_that_are_kept(gpu):
    torch.zeros(1, device="cuda")
    first = torch.zeros(3000, pin_memory=True)
    large = torch.zeros(5 << 20).pin_memory()
    assert host(*NOW) == [33_570_816, 33_570_816, 2, 0]
    view = first[:10].pin_memory()
    assert host(*NOW) == [33_570_816, 33_570_816, 2, 0], "a view is pinned already"
    del first, view
    assert host(*NOW) == [33_570_816, 33_554_432, 2, 0]
    again = torch.zeros(4096, pin_memory=True)
    assert host(*NOW) == [33_570_816, 33_570_816, 2, 0], "of the same power of two"
    del large
    assert torch.zeros(0, pin_memory=True).numel() == 0
    torch._C._host_emptyCache()
    assert host(*NOW) == [16384, 16384, 2, 1]
    assert host("active_bytes.peak") == [33_570_816]
    if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
        torch.cuda.reset_peak_host_memory_stats()
        torch.cuda.reset_accumulated_host_memory_stats()
        assert host("active_bytes.peak", "active_bytes.allocated", *NOW[2:]) == [16384, 0, 0, 0]
    del again


def test_what_is_tuned_is_remembered(gpu):
    tunable = torch.cuda.tunable
    assert not tunable.is_enabled()
    assert tunable.tuning_is_enabled()
    assert tunable.get_rotating_buffer_size() == 50 * MIB
    tunable.enable()
    tunable.set_filename("results/a.x.csv", insert_device_ordinal=True)
    assert (tunable.is_enabled(), tunable.get_filename()) == (True, "results/a.x0.csv")
    tunable.set_rotating_buffer_size(5)
    tunable.set_max_tuning_iterations(-1)
    assert tunable.get_rotating_buffer_size() == 5 * MIB
    assert (tunable.get_max_tuning_iterations(), tunable.get_max_tuning_duration()) == (0, 30)
    assert (tunable.get_results(), tunable.read_file("/nowhere")) == ((), False)


def test_preferences_are_remembered(gpu):
    assert backends.preferred_blas_library("cublaslt").name == "Cublaslt"
    assert backends.preferred_blas_library("default").name == "Cublas"
    assert backends.preferred_linalg_library("magma").name == "Magma"
    cache = backends.cufft_plan_cache
    assert (cache.size, cache.max_size) == (0, 4096)
    cache.max_size = 10
    assert cache[0].max_size == 10
    cache.clear()
    torch.backends.cudnn.benchmark_limit = 3
    assert torch.backends.cudnn.benchmark_limit == 3


def test_a_debug_mode_that_tells_nothing_says_so(gpu):
    with pytest.warns(UserWarning, match="nothing waits"):
        torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1


def test_a_stream_from_outside_is_that_stream(gpu):
    if not hasattr(torch.cuda, "get_stream_from_external"):
        pytest.skip("since torch 2.7")
    own = torch.cuda.Stream()
    assert torch.cuda.get_stream_from_external(own.cuda_stream).cuda_stream == own.cuda_stream


def test_another_allocator_is_refused_in_a_sentence(gpu):
    with pytest.raises(UsageError, match="torch's own allocator"):
        torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")


@pytest.mark.skipif(
    not hasattr(torch._C, "_accelerator_setAllocatorSettings"), reason="since torch 2.9"
)
def test_settings_are_refused_by_torchs_class_of_error(gpu):
    put = torch._C._accelerator_setAllocatorSettings
    for text in (
        "foo:1", "garbage_collection_threshold:1.2", "max_split_size_mb:2",
        "expandable_segments:x", "pinned_num_register_threads:1024",
        "pinned_num_register_threads:3", "per_process_memory_fraction:1.1",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text.partition(":")[0]):
            put(text)
    for text in ("max_split_size_mb", "roundup_power2_divisions:[64:8"):
        with pytest.raises(RuntimeError, match="not of the form"):
            put(text)
    put("pinned_num_register_threads:128")


@pytest.mark.parametrize(("text", "part"), [("0.0", 0.0), ("0.5", 0.5), ("1.0", 1.0)])
def test_the_environment_limits_a_process_to_a_part_of_the_card(monkeypatch, text, part):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"per_process_memory_fraction:{text}")
    with virtual.activated("H100 80GB") as gpu:
        assert torch.cuda.memory.get_per_process_memory_fraction() == part
        if part < 1:
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(int(gpu.card.total_bytes * 0.6), dtype=torch.uint8, device="cuda")


def test_an_allocator_that_does_not_cache_says_what_is_not_as_on_a_card(gpu):
    torch.cuda.init()
    torch.cuda.caching_allocator_enable(value=False)
    assert not torch._C._cuda_cudaCachingAllocator_is_enabled()
    assert any("goes on caching" in note for note in gpu.notes)


@pytest.mark.skipif(not hasattr(torch.cuda, "_compile_kernel"), reason="since torch 2.8")
def test_a_kernel_from_a_string_is_launched_and_writes_what_nobody_knows(gpu):
    source = "__global__ void plus(const int* a, int* b, int n) { b[threadIdx.x] = a[0] + n; }"
    kernel = torch.cuda._compile_kernel(source, "plus")
    a, b = torch.arange(4, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
    before = torch.cuda.memory_allocated()
    kernel(grid=(1, 1, 1), block=(4, 1, 1), args=[a, b, 4])
    assert torch.cuda.memory_allocated() == before
    assert any("_compile_kernel" in note for note in gpu.notes)
    assert b.tolist() == [1] * 4, "a stand-in, no longer the zeros"
    with pytest.raises(ValueError, match="must be CUDA tensors or pinned"):
        kernel(args=[torch.zeros(4)])
    with pytest.raises(RuntimeError, match="exceeds device limit"):
        kernel.set_shared_memory_config(1 << 20)
