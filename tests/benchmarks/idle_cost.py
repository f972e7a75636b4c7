"""Measure the cost of a traced cell beside idle modules.

CPU seconds of whole cells in a real shell, report included. `--gpu NAME` for a virtual card.
"""

from __future__ import annotations

import argparse
import time

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

MODULES, LAYERS = (0, 1_000, 4_000, 16_000), (100, 400, 1_600, 6_400)
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", help="a virtual card, such as T4")
    options = parser.parse_args()
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.display_pub.publish = lambda *_, **__: None
    run(shell, "import torch; from torch import nn; torch.set_num_threads(1)\n%load_ext nbmem")
    if options.gpu:
        run(shell, f"%nbmem gpu {options.gpu}")
    on = ".cuda()" if options.gpu else ""
    tiny = f"m = nn.Linear(4, 4){on}\nfor _ in range(3): m(torch.ones(1, 4){on}).sum().backward()"
    for _ in range(2):
        run(shell, f"%%memtrace\n{tiny}")
    for count in MODULES:
        run(shell, f"idle = nn.ModuleList(nn.Linear(2, 2) for _ in range({count})){on}")
        run(shell, f"%%memtrace\n{tiny}")
        took = min(run(shell, f"%%memtrace\n{tiny}") for _ in range(ROUNDS))
        print(f"{count:6} idle modules: {1e3 * took:7.0f} ms of CPU for a traced trivial cell")
    run(shell, "del idle")
    for count in LAYERS:
        run(shell, f"chain = nn.ModuleList(nn.Linear(2, 2) for _ in range({count})){on}")
        step = f"x = torch.ones(1, 2){on}\nfor layer in chain: x = layer(x)\nx.sum().backward()"
        plain = min(run(shell, step) for _ in range(ROUNDS))
        took = min(run(shell, f"%%memtrace\n{step}") for _ in range(ROUNDS))
        ratio = took / plain
        print(f"{count:6} layers: {1e3 * plain:7.0f} and traced {1e3 * took:7.0f} ms, {ratio:.1f}")


def run(shell: InteractiveShell, cell: str) -> float:
    """Run a cell; return its CPU seconds."""
    begin = time.process_time()
    shell.run_cell(cell)
    return time.process_time() - begin


if __name__ == "__main__":
    main()
