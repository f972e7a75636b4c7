"""A virtual card on the oldest supported torch."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the virtual card answers torch")

PROGRAM = """\
import torch
import torch._dynamo.repro.after_dynamo  # it takes these names itself
from torch._C import _distributed_c10d as c10d

for owner, name in (
    (torch._C, "_conv_determine_backend_memory_format"),  # torch 2.11: regions are not planned
    (torch._C._dynamo.eval_frame, "set_code_exec_strategy"),
    (torch._dynamo.types, "ConvertFrameReturn"),
    (c10d, "FakeWork"),
):
    if hasattr(owner, name):
        delattr(owner, name)

from nbmem import virtual
from nbmem.virtual.warnings import COMPILE

with virtual.activated("T4") as gpu:
    torch.distributed.init_process_group("nccl", rank=0, world_size=2)
    ones = torch.ones(4, device="cuda")
    torch.distributed.barrier(async_op=True).wait()
    for _ in range(100):
        work = torch.distributed.all_reduce(ones, async_op=True)
        assert work.wait()
        assert work.get_future().value()[0] is ones
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    layer(ones).sum().backward()
    assert torch.compile(layer.module)(ones).shape == (4,)
    assert COMPILE in gpu.notes
"""


def test_the_oldest_release_trains_communicates_and_runs_compiled_functions_eagerly():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
