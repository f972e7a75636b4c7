"""A user's session in a notebook, from load to save."""

import json
import os
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

import nbmem.core.runtime.entry_points

NET = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(net.parameters())
data = TensorDataset(torch.zeros(64, 256))
"""
TRAIN = """
for (x,) in DataLoader(data, batch_size=32, num_workers=WORKERS):
    net(x.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BATCH = """
batch = 64
x = torch.zeros(batch, 1 << 18, device="cuda")
y = (x * 2).sum()
"""


def main():
    assert nbmem.core.runtime.entry_points.sys.platform == os.environ["NBMEM_TEST_PLATFORM"]
    shell = InteractiveShell.instance()

    def run(code):
        shell.run_cell(code, store_history=True).raise_error()
        return shell.user_ns

    run("%load_ext nbmem")
    run("%nbmem gpu T4")
    run(NET)
    for workers in ("0", "1"):
        run(f"%%memtrace --save {workers}.nbmem\n{TRAIN.replace('WORKERS', workers)}")
        report = nbmem.open(f"{workers}.nbmem").report()
        phases = {row.name for row in report.phases}
        assert {"forward", "backward", "optimizer", "zero_grad"} <= phases, phases
        faults = [note for note in report.notes if "nbmem lost" in note or "left out" in note]
        assert not faults, faults
    for line in ("", "top", "tips", "history", "gpus", "diff 0.nbmem 1.nbmem", "free cache"):
        run(f"%nbmem {line}")
    run("%nbmem save cell.nbmem")
    run("%nbmem open cell.nbmem")
    run("%nbmem save cell.nbmem")  # over the file that is open
    nbmem.open("cell.nbmem").save("cell.nbmem")
    run("%nbmem export html cell.html\n%nbmem export json cell.json")
    run("%%nbmem fit batch --gpu T4 --between 16 4096 --json fit.json" + BATCH)
    run("%%nbmem plan --gpu T4 --batch batch --json plan.json" + BATCH.replace("64", "40_000"))
    for name in ("cell", "fit", "plan"):
        assert json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
    run("%unload_ext nbmem")
    print("done")


if __name__ == "__main__":
    main()
