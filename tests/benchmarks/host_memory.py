"""Measure the host memory of an estimate for a 7-billion-weight Llama."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

from nbmem.estimates.card_choice import card_for
from nbmem.estimates.programs import programs
from nbmem.estimates.runs.probe_run import Request, probe
from nbmem.estimates.runs.subprocess_client import EstimateProcess

SCRIPT = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=4096, intermediate_size=11008, num_attention_heads=32,
    num_hidden_layers=int(sys.argv[1]),
)
model = LlamaForCausalLM(config).cuda().train()
model.gradient_checkpointing_enable()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
words = torch.randint(0, 32000, (1, 2048), device="cuda")
model(input_ids=words, labels=words).loss.backward()
optimizer.step()
"""


def main() -> None:
    """Print time and host memory of the estimating process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32, help="32 make 6.7 billion weights")
    layers = parser.parse_args().layers
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llama.py")
        path.write_text(SCRIPT)
        begin = time.perf_counter()
        with EstimateProcess(programs.script(str(path), (str(layers),))) as apart:
            found = apart.call(probe, Request(card=card_for("H100"))).probe
        seconds = time.perf_counter() - begin
    if found.failure is not None:
        sys.exit(str(found.failure))
    host = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(
        f"{layers} layers, one step with checkpoints, {found.allocated / 2**30:.2f} GiB at the "
        f"card's peak: {seconds:.1f} s, {host:,} MiB of host memory"
    )


if __name__ == "__main__":
    main()
