"""The API of torch.cuda: counters, history, streams and NVML."""

import os
import re
from pathlib import Path

import pytest
import torch

from nbmem import virtual


def test_counters_agree_with_each_other(gpu):
    x = torch.ones(1000, device="cuda")
    raw = torch._C._cuda_memoryStats(0)
    assert raw["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated() == 4096
    assert raw["reserved_bytes"]["all"]["current"] == torch.cuda.memory_reserved() == 2 << 20
    assert raw["requested_bytes"]["all"]["current"] == 4000
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.max_memory_allocated() == 4096
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_device_alloc"] == 0
    assert "GPU reserved memory" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


UNANSWERED = {
    "_cuda_cudaHostAllocator",  # an address in C++
    "_cuda_load_module",  # compiled code
    "_cuda_record_memory_history_legacy",  # of a deprecated form
    "_cudart",  # torch.cuda.cudart() is the card's
}


def test_what_torch_asks_of_its_own_core_is_answered(gpu):
    """Whole corners of torch.cuda went unanswered while every program here passed."""
    package = Path(torch.__file__).parent
    folders = [package / name for name in ("cuda", "accelerator", "backends", "amp")]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    asked = {
        name
        for path in sources
        for name in re.findall(r"_C\.(_(?:cuda|accelerator)\w*)", path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 40
    assert {name for name in asked if not hasattr(torch._C, name)} <= UNANSWERED


accelerators = pytest.mark.skipif(
    not hasattr(getattr(torch, "accelerator", None), "memory_allocated"), reason="since torch 2.9"
)


@accelerators
def test_the_accelerators_counters_are_cudas(gpu):
    accelerator = torch.accelerator
    assert accelerator.memory_stats() == {}
    x = torch.ones(1000, device="cuda")
    assert accelerator.memory_allocated() == accelerator.memory_allocated("cuda:0") == 4096
    known = torch.cuda.memory_stats()
    known.pop("num_oom_rejections", None)
    assert accelerator.memory_stats() == known
    assert accelerator.max_memory_reserved() == accelerator.memory_reserved() == 2 << 20
    del x
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == 0
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["num_device_alloc"] == 0
    accelerator.empty_cache()
    assert accelerator.memory_reserved() == 0
    if hasattr(accelerator, "get_memory_info"):
        assert accelerator.get_memory_info() == torch.cuda.mem_get_info()


@pytest.mark.skipif(
    not hasattr(getattr(torch, "accelerator", None), "Graph"), reason="since torch 2.12"
)
def test_an_accelerators_graph_keeps_its_pool_until_it_is_reset(gpu):
    graph, stream = torch.accelerator.Graph(), torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    with torch.cuda.stream(stream), graph:
        y = x + 1
    del y
    torch.accelerator.empty_cache()
    graph.replay()
    held = torch.cuda.memory_reserved()
    graph.reset()
    torch.accelerator.empty_cache()
    assert held - torch.cuda.memory_reserved() == 22 << 20, "y's segment, its generator's"
    with pytest.raises(RuntimeError), torch.accelerator.Graph():
        pass


def test_record_stream_keeps_memory_until_the_other_stream_is_done(gpu):
    stream = torch.cuda.Stream()
    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        y = torch.ones(1 << 20, device="cuda")
    x.record_stream(stream)
    del x
    raw = torch._C._cuda_memoryStats(0)
    assert raw["active_bytes"]["all"]["current"] == 8 << 20
    assert torch.cuda.memory_allocated() == 4 << 20
    torch.cuda.synchronize()
    z = torch.ones(1, device="cuda")
    assert torch._C._cuda_memoryStats(0)["active_bytes"]["all"]["current"] == (4 << 20) + 512
    del y, z
    assert torch.cuda.current_stream().cuda_stream == 0


def test_a_program_that_never_synchronises_does_not_pile_up(gpu):
    stream = torch.cuda.Stream()
    for _ in range(3000):
        x = torch.ones(1 << 20, device="cuda")
        x.record_stream(stream)
    assert torch.cuda.max_memory_reserved() < 2 * 1024 * (4 << 20)


def test_optimizer_steps_are_annotated(gpu):
    torch.cuda.memory._record_memory_history(context=None)
    model = torch.nn.Linear(4, 4).cuda()
    torch.optim.SGD(model.parameters(), 0.1).step()
    notes = torch.cuda.memory._snapshot()["external_annotations"]
    assert [(n["name"], n["stage"]) for n in notes] == [
        ("Optimizer.step#SGD.step", "START"),
        ("Optimizer.step#SGD.step", "END"),
    ]


def test_events_measure_time(gpu):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.ones(10, device="cuda").sum()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) >= 0


def test_a_memory_pool(gpu):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
    y = torch.ones(1 << 20, device="cuda")
    assert {s["segment_pool_id"] for s in torch.cuda.memory_snapshot()} == {(0, 0), pool.id}
    del x, y


def test_random_state_and_seeds(gpu):
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(1)
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state)


def test_settings_change_while_running(gpu):
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    torch.ones(1, device="cuda")
    assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]


def test_nvml_reports_the_process_and_its_growth():
    import pynvml

    with virtual.activated("H100", other_processes={4242: 1 << 30}) as gpu:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
        assert pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) > 0
        assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [4242]
        x = torch.ones(64, 64, device="cuda")
        mine, other = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        assert (mine.pid, other.usedGpuMemory) == (os.getpid(), 1 << 30)
        assert mine.usedGpuMemory == gpu.card.context_bytes + (2 << 20)
        x @ x
        grown = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)[0].usedGpuMemory
        assert grown - mine.usedGpuMemory == gpu.card.cublas_bytes + (32 << 20)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        assert memory.total == gpu.card.nvml_total == memory.used + memory.free
        told_apart = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        assert told_apart.reserved == gpu.card.driver_bytes
        assert told_apart.used + told_apart.reserved == memory.used
        with pytest.raises(pynvml.NVMLError):
            pynvml.nvmlDeviceGetHandleByIndex(1)


def test_the_probes_of_the_recorder_cannot_tell_the_difference(gpu):
    from nbmem.capture.devices.nvml import NvmlProbe

    torch.ones(1, device="cuda")
    probe = NvmlProbe()
    reading = probe.read(0)
    assert reading.process == gpu.process_bytes
    assert reading.total == gpu.card.nvml_total
    assert reading.driver == gpu.card.driver_bytes + gpu.card.unowned_with(1)
    assert reading.used == reading.driver + gpu.process_bytes
    probe.close()


def test_an_older_driver_does_not_tell_its_own_bytes(gpu, monkeypatch):
    import pynvml

    from nbmem.capture.devices.nvml import NvmlProbe

    original = pynvml.nvmlDeviceGetMemoryInfo

    def first_version(handle, version=None):
        if version is not None:
            raise pynvml.NVMLError(13)  # NVML_ERROR_FUNCTION_NOT_FOUND
        return original(handle)

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", first_version)
    torch.ones(1, device="cuda")
    reading = NvmlProbe().read(0)
    assert (reading.used, reading.driver) == (gpu.nvml_used, 0)


def test_workspaces_belong_to_threads_of_the_program(gpu):
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    y = x @ x
    assert [k[:2] for k in gpu.workspaces._held] == [("cublas", "caller")]
    y.sum().backward()
    assert [k[:2] for k in gpu.workspaces._held] == [("cublas", "caller"), ("cublas", "engine")]
    assert torch.cuda.memory_allocated() > 64 << 20
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() < 1 << 20


def test_the_environment_is_read_when_the_card_is_first_used(monkeypatch):
    """A script sets it at its top, when the card is there already."""

    def settings():
        return torch.cuda.memory._snapshot()["allocator_settings"]

    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    with virtual.activated("T4"):
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        torch.ones(1, device="cuda")
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
        torch.ones(1, device="cuda")
        assert settings()["expandable_segments"] is True
    with virtual.activated("T4", conf="max_split_size_mb:64"):
        torch.ones(1, device="cuda")
        assert settings()["max_split_size"] == 64 << 20
        assert settings()["expandable_segments"] is False
