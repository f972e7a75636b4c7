"""Apply simpler estimators: `python -m tests.accuracy.baselines NAME`.

- shapes: parameters, gradients, optimizer state and the outputs of all layers, from shapes alone.
- tracker: torch's MemTracker over fake tensors on the CPU, two iterations: the second has the
  optimizer's state, and every later one is like it.
- x4: the rule that accelerate prints for training with Adam, four times the parameters (inference:
  1.2 times).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from typing import Any

import torch
from torch import nn

from tests.accuracy.one import AMP, optimizer_of
from tests.accuracy.workloads import CFG

STATES = {"sgd": 0, "sgdm": 1, "adam": 2, "adamw": 2, "rmsprop": 1, "adagrad": 1, "adafactor": 0}
"""Parameter-sized tensors that an optimizer keeps."""


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def shapes(name: str) -> int:
    """Estimate by shapes alone, without lifetimes or temporaries."""
    build, opts = CFG[name]
    with torch.device("meta"):
        model, batch, loss_of = build()
        data = batch()
    if opts.get("ckpt"):  # shapes know nothing of recomputing, and without a cache values are read
        model.gradient_checkpointing_disable()
        model.config.use_cache = True
    total = 0
    half = 2 if opts.get("amp") or opts.get("purebf16") else 1

    def count(module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        nonlocal total
        if isinstance(output, torch.Tensor):
            total += _size(output) // (half if output.is_floating_point() else 1)

    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(count)
    with torch.no_grad():
        loss_of(model, data)
    weights = sum(_size(p) for p in model.parameters())
    held = sum(_size(b) for b in model.buffers()) + sum(_size(t) for t in _flat(data))
    copies = 1 if opts.get("infer") else 2 + STATES[opts["opt"]]
    return weights * copies + held + total


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _flat(item)]
    return [value]


def tracker(name: str) -> int:
    """Estimate by live tensors, without allocator or kernels."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    build, opts = CFG[name]
    if opts.get("offload"):
        raise NotImplementedError("tensors on the CPU cannot be offloaded to it")
    with torch.device("meta"):  # initial values may be read while they are made (trunc_normal_)
        model, batch, loss_of = build()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = model.to_empty(device="cpu")
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        if opts.get("purebf16"):
            model = model.bfloat16()
        model.train(not opts.get("infer"))
        optimizer = optimizer_of(model, opts)
        watch = MemTracker()
        watch.track_external(model, optimizer)
        with watch:
            for iteration in range(2):
                if iteration:
                    watch.reset_mod_stats()
                data = batch()
                with contextlib.ExitStack() as stack:
                    if opts.get("amp"):
                        stack.enter_context(torch.autocast("cpu", AMP[opts["amp"]]))
                    if opts.get("infer"):
                        stack.enter_context(torch.no_grad())
                    loss = loss_of(model, data)
                if not opts.get("infer"):
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=not opts.get("zero"))
        peak = watch.get_tracker_snapshot("peak")
        return max(int(by_kind["Total"]) for by_kind in peak.values())


def x4(name: str) -> int:
    """Estimate four times the bytes of the weights, 1.2 times for inference."""
    build, opts = CFG[name]
    with torch.device("meta"):
        weights = sum(_size(p) for p in build()[0].parameters())
    return int(weights * (1.2 if opts.get("infer") else 4))


LIMIT = 120
"""Seconds of the processor for one estimate: MemTracker looks at every module at each operator."""
BASELINES = {"shapes": shapes, "tracker": tracker, "x4": x4}


def _too_long(number: int, frame: Any) -> None:
    del number, frame
    raise TimeoutError(f"not done after {LIMIT} s of the processor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(CFG))
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, _too_long)
    found: dict[str, int | str] = {}
    for key, estimate in BASELINES.items():
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        try:
            found[key] = estimate(options.name)
        except Exception as err:  # noqa: BLE001 - a baseline that cannot run this is a result, too
            found[key] = f"{type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}"
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
