"""A full card: torch's error after its retries, and recovery."""

import gc
import re
import subprocess
import sys

import pytest
import torch

from nbmem import virtual


def fill():
    held = []
    while True:
        held.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))


def test_the_message_is_torchs(gpu):
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        fill()
    message = str(caught.value)
    pattern = (
        r"CUDA out of memory\. Tried to allocate 2\.00 GiB\. GPU 0 has a total capacity of "
        r"79\.18 GiB of which \d+\.\d\d [GM]iB is free\. Including non-PyTorch memory, this "
        r"process has \d+\.\d\d GiB memory in use\. Of the allocated memory \d+\.\d\d GiB is "
        r"allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated\. If reserved "
        r"but unallocated memory is large try setting "
        r"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation\.  See "
        r"documentation for Memory Management  \(https://docs\.pytorch\.org/docs/stable/notes/"
        r"cuda\.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf\)"
    )
    assert re.fullmatch(pattern, message), message


def test_limit_and_other_processes_are_named():
    with virtual.activated("H100", other_processes={802: 1610612736}):
        torch.cuda.set_per_process_memory_fraction(0.02)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Process 802 has 1\.50 GiB memory in use\. "
        ) as err:
            fill()
        assert "1.58 GiB allowed; Of the allocated memory" in str(err.value)


def test_the_error_is_caught_and_the_program_goes_on(gpu):
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fill()
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
    stats = torch.cuda.memory_stats()
    assert stats["num_ooms"] == 1
    assert stats["num_alloc_retries"] == 1
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.ones(1 << 20, device="cuda").is_cuda


def test_the_error_does_not_hold_the_failed_operators_arguments(gpu):
    def step():
        x = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
        return torch.cat([x, x])

    try:
        step()
    except torch.cuda.OutOfMemoryError as err:
        frames = []
        trace = err.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        assert frames[-1].endswith(("dispatch.py", "test_oom.py"))
    assert torch.cuda.memory_allocated() == 0


def test_a_small_card_is_full_sooner():
    with virtual.activated("T4"), pytest.raises(torch.OutOfMemoryError, match=r"14\.56 GiB"):
        torch.empty(15 << 30, dtype=torch.uint8, device="cuda")


def test_settings_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with virtual.activated("H100"):
        torch.ones(1, device="cuda")
        assert torch.cuda.memory._snapshot()["segments"][0]["is_expandable"]


SCRIPT = """
import torch
from nbmem import virtual

virtual.activate("T4")
x = torch.randn(4, device="cuda")
print(x.sin().sum().item())
torch.empty(1 << 40, device="cuda")
"""


def test_neither_the_traceback_nor_the_warning_shows_the_virtual_cards_own_frames(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "train.py:7: NbmemWarning" in done.stderr
    assert 'train.py", line 8' in done.stderr
    assert "CUDA out of memory" in done.stderr
    assert "dispatch.py" not in done.stderr
    assert "factories.py" not in done.stderr


class Hungry(torch.autograd.Function):
    """Asks in backward for more than any card has."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        torch.empty(1 << 40, device="cuda")
        return gradient


def test_a_backward_that_fails_lets_go_of_all_that_it_had_not_done(gpu):
    def step():
        x = torch.zeros(1024, 1024, device="cuda", requires_grad=True)
        losses = []
        for n in range(4):  # the engine's queue has a branch of each when the error comes
            x = (x * 2).exp()
            x = Hungry.apply(x) if n == 2 else x
            losses.append(x.sum())
        sum(losses).backward()

    with pytest.raises(torch.OutOfMemoryError):
        step()
    gc.collect()
    assert torch.cuda.memory_allocated() == 0, "as on a card, whose threads empty their queues"
