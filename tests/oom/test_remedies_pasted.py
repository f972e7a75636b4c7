"""Pasted remedies use the user's names, run, and are enough."""

import gc

import pytest

import nbmem
from nbmem.report.analysis.program_names import BODY

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("card")]
NET = """
import torch
from torch import nn
lm = nn.Sequential(
    *(nn.Sequential(nn.Linear(4096, 4096, device="cuda"), nn.GELU()) for _ in range({layers}))
){mode}
adamw = torch.optim.SGD(lm.parameters())
"""
EMPTY = """
import torch
empty = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
"""
PIECES = """
blocks = [empty(1024) for _ in range(12)]
del blocks
kept = [empty(600) for _ in range(12)]
empty(4096)
"""
FAULTS = {
    "memory_limit": (
        "import torch\ntorch.cuda.set_per_process_memory_fraction(0.1)",
        "torch.empty(3 << 30, dtype=torch.uint8, device='cuda')",
    ),
    "held_by_name": (
        NET.format(layers=20, mode="")
        + "ckpt = {k: v.clone() for k, v in lm.state_dict().items()}",
        "torch.empty(12_800 << 20, dtype=torch.uint8, device='cuda')",
    ),
    "gradients_kept": (
        NET.format(layers=20, mode="")
        + "lm(torch.zeros(19_600, 4096, device='cuda')).sum().backward()\n"
        "adamw.step()",
        "yhat = lm(torch.zeros(19_600, 4096, device='cuda'))",
    ),
    "no_grad_missing": (
        NET.format(layers=20, mode=".eval()"),
        "yhat = lm(torch.zeros(30_000, 4096, device='cuda'))",
    ),
    "checkpointing": (
        NET.format(layers=20, mode=""),
        "yhat = lm(torch.zeros(30_000, 4096, device='cuda', requires_grad=True))",
    ),
    "fragmentation": (EMPTY, PIECES),
}
RESTART = {"fragmentation"}
"""A setting is read when torch touches the card; test_explained.py tries it on a new one."""


@pytest.mark.parametrize("rule", FAULTS)
def test_a_remedy_is_pasted_among_other_names_and_is_enough(rule, monkeypatch):
    import torch

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # so that it is put back
    before, cell = FAULTS[rule]
    names = {"__name__": "__main__"}
    with pytest.raises(torch.OutOfMemoryError), nbmem.trace("cell", namespace=names) as trace:
        exec(compile(f"{before}\n{cell}", "cell.py", "exec"), names)
    mine = next(one for one in trace.report().ooms[0].remedies if one.rule == rule)
    assert mine.code is not None
    assert "model" not in mine.code
    assert "optimizer" not in mine.code
    gc.collect()  # the exception, which pytest keeps in a cycle
    code = mine.code.replace(BODY, cell)
    exec(compile(code, "pasted.py", "exec"), names)
    if rule not in RESTART and code == mine.code:
        exec(compile(cell, "cell.py", "exec"), names)
