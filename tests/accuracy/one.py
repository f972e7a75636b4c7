"""Run one workload on the virtual H100 and print its counters as JSON.

With --here it is run on the card that the process has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from nbmem import virtual
from nbmem.engine import process
from tests.accuracy.workloads import CFG

ITERATIONS = 3
AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


def optimizer_of(model: torch.nn.Module, opts: dict[str, Any]) -> torch.optim.Optimizer:
    optim, params = torch.optim, list(model.parameters())
    foreach = False if opts.get("noforeach") else None
    return {
        "sgd": lambda: optim.SGD(params, 1e-3),
        "sgdm": lambda: optim.SGD(params, 1e-3, momentum=0.9),
        "adam": lambda: optim.Adam(params, 1e-4, fused=opts.get("fused"), foreach=foreach),
        "adamw": lambda: optim.AdamW(params, 1e-4),
        "rmsprop": lambda: optim.RMSprop(params, 1e-4),
        "adagrad": lambda: optim.Adagrad(params, 1e-3),
        "adafactor": lambda: optim.Adafactor(params, 1e-3),
    }[opts["opt"]]()


def on_card(value: Any, opts: dict[str, Any]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(on_card(item, opts) for item in value)
    value = value.cuda()
    if opts.get("channels_last") and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def process_bytes() -> int:
    """Return what the process holds; on an own card, what everybody does."""
    gpu = virtual.active()
    if gpu is not None:
        return gpu.process_bytes
    free, total = torch.cuda.mem_get_info()
    return total - free


class Run:
    """The training loop of the recordings, with counters by phase."""

    def __init__(self, name: str) -> None:
        self.build, self.opts = CFG[name]
        self.bounds: list[dict[str, Any]] = []

    def bound(self, phase: str, iteration: int) -> None:
        cuda = torch.cuda
        self.bounds.append(
            {
                "end_of": phase,
                "it": iteration,
                "allocated": cuda.memory_allocated(),
                "reserved": cuda.memory_reserved(),
                "peak_allocated": cuda.max_memory_allocated(),
                "peak_reserved": cuda.max_memory_reserved(),
                "process": process_bytes(),
            }
        )
        cuda.reset_peak_memory_stats()

    def go(self) -> None:
        opts = self.opts
        torch.manual_seed(0)
        model, batch, loss_of = self.build()
        if opts.get("purebf16"):
            model = model.bfloat16()
        if opts.get("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        model = model.cuda()
        infer = opts.get("infer") or opts.get("infer_grad")
        model.train(not infer)
        if opts.get("compile"):
            model = torch.compile(model)
        if opts.get("ddp"):
            torch.distributed.init_process_group("nccl", rank=0, world_size=1)
            model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
        self.bound("load", -1)
        optimizer = optimizer_of(model, opts)
        scaler = torch.amp.GradScaler("cuda") if opts.get("amp") == "fp16" else None
        for iteration in range(ITERATIONS):
            data = on_card(batch(), opts)
            self.bound("input", iteration)
            for part in range(opts.get("accum", 1)):
                if part:
                    data = on_card(batch(), opts)
                with contextlib.ExitStack() as stack:
                    if opts.get("amp"):
                        stack.enter_context(torch.autocast("cuda", AMP[opts["amp"]]))
                    if opts.get("infer"):
                        stack.enter_context(torch.no_grad())
                    if opts.get("offload"):
                        stack.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=False))
                    loss = loss_of(model, data)
                if not part:
                    self.bound("forward", iteration)
                if infer:
                    continue
                (scaler.scale(loss) if scaler else loss).backward()
                if not part:
                    self.bound("backward", iteration)
            if infer:
                continue
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            self.bound("optimizer", iteration)
            optimizer.zero_grad(set_to_none=not opts.get("zero"))
            self.bound("zero_grad", iteration)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(CFG))
    parser.add_argument("--release", default="2.11.0")
    parser.add_argument("--events", help="write the allocator's events to this file")
    parser.add_argument("--here", action="store_true", help="on the card that is here")
    options = parser.parse_args()
    run = Run(options.name)
    conf = "expandable_segments:True" if run.opts.get("expandable") else ""
    notes = []
    if not options.here:
        notes = virtual.activate("H100 80GB", release=options.release, conf=conf).notes
    else:
        process.follow_values()
        torch.cuda.memory._set_allocator_settings(conf or "expandable_segments:False")
    stacks = None
    if options.events:
        stacks = "all"
        torch.cuda.memory._record_memory_history(context=stacks, stacks="python")
    start = time.perf_counter()
    run.go()
    seconds = time.perf_counter() - start
    if options.events:
        events = torch.cuda.memory._snapshot()["device_traces"][0]
        Path(options.events).write_text(json.dumps(events), encoding="utf-8")
    json.dump({"bounds": run.bounds, "seconds": seconds, "notes": notes}, sys.stdout)


if __name__ == "__main__":
    main()
