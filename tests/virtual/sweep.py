"""Train real models on the virtual card and on the CPU.

    python -m tests.virtual.sweep torchvision|timm|transformers [NAME ...]

prints a line for each model: alike, or in which way of training it raises on the card alone, has
results of other shapes, has weights, gradients or optimizer state of other bytes, or leaves memory
behind. A model that the CPU cannot run says nothing about the card, and not every fault is one:
autocast casts other operators for CUDA than for the CPU, so that a model may mix types on a real
card, too. Each runs in a process of its own for at most a minute of computing.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import multiprocessing
import resource
import sys
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from nbmem import virtual
from nbmem.virtual import warnings as notes
from nbmem.virtual.hardware.cudnn import client
from tests.virtual import zoo

SECONDS = 60
ENDED = f"ended, perhaps after {SECONDS} s"
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
BOUNDS = {notes.MASKED_SELECT, notes.NMS, notes.NONZERO, notes.REPEAT, notes.UNIQUE}
"""What the card says where a size depends on values: then sizes are not compared."""
WAYS = ("inference", "float32", "bf16", "fp16", "checkpointing")


def run(made: tuple[Any, Any], device: str, way: str) -> dict[str, Any]:
    """Return the geometry after one step with a copy of a model.

    Args:
        made: A model and its arguments, on the CPU.
        device: "cpu" or "cuda".
        way: One of WAYS.
    """
    torch.manual_seed(0)
    model, inputs = copy.deepcopy(made)
    model = model.to(device)
    inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), inputs)
    return _infer(model, inputs) if way == "inference" else _train(model, inputs, device, way)


def _infer(model: Any, inputs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with torch.inference_mode():
        outputs = model.eval()(**inputs)
        if getattr(model, "can_generate", bool)() and model.main_input_name == "input_ids":
            length = {"max_new_tokens": 4, "min_new_tokens": 4}
            found["generated"] = model.generate(**inputs, **length).size()
    found["outputs"] = [(t.size(), t.dtype) for t in _floats(outputs)]
    return found


def _train(model: Any, inputs: Any, device: str, way: str) -> dict[str, Any]:
    model.train()
    if way == "checkpointing":
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    scaler = torch.amp.GradScaler(device, enabled=way == "fp16")
    with torch.autocast(device, HALF[way]) if way in HALF else contextlib.nullcontext():
        outputs = model(**inputs)
        loss = sum(t.float().mean() for t in _floats(outputs) if t.requires_grad)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    named = dict(model.named_parameters())
    return {
        "sizes": [t.size() for t in _floats(outputs)],
        "weights": {name: _bytes(p) for name, p in named.items()},
        "buffers": {name: _bytes(b) for name, b in model.named_buffers()},
        "gradients": {name: _bytes(p.grad) for name, p in named.items()},
        "state": {
            f"{name}.{key}": _bytes(value)
            for name, p in named.items()
            for key, value in optimizer.state[p].items()
        },
    }


def _floats(outputs: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(outputs) if isinstance(outputs, dict) else outputs)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _bytes(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return tuple(tensor.size()), tensor.dtype, tensor.untyped_storage().nbytes()


@dataclass
class Outcome:
    """Outcome of one way to run a model on the card.

    Attributes:
        found: What `run` says; None if it raised.
        error: What it raised, and where.
        left: Bytes that were still allocated afterwards.
        bound: Whether a size on the card is an upper bound, since it depends on values.
    """

    found: dict[str, Any] | None
    error: str
    left: int
    bound: bool


def on_card(made: tuple[Any, Any], way: str) -> Outcome:
    """Run a model one way on a new card."""
    with virtual.activated("H100 80GB") as gpu:
        found, error = _attempt(made, "cuda", way)
        bound = not BOUNDS.isdisjoint(gpu.notes)
        for value in gc.get_objects():
            if isinstance(value, functools._lru_cache_wrapper) and _tensors_in(value):
                value.cache_clear()  # The model's library would keep it on a real card, too.
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        return Outcome(found, error, torch.cuda.memory_allocated(), bound)


def _tensors_in(cache: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in gc.get_referents(cache))


def differences(made: tuple[Any, Any], ways: list[str]) -> Iterator[str]:
    """Yield a line for each fault of the card."""
    trained: Any = None
    for way in ways:
        card = on_card(made, way)
        # Whichever the way, a trained model has the same bytes: the CPU need not go them all.
        if card.error or way in {"inference", "float32"} or trained is None:
            expected, refused = _attempt(made, "cpu", way)
        else:
            expected = trained
        if expected is None:
            yield f"{way}: not on the CPU: {refused.splitlines()[0]}"
            if way == "float32":
                return
        elif card.found is None:
            yield f"{way}: FAULT raises {card.error}"
        else:
            trained = expected if way == "float32" else trained
            if card.left:
                yield f"{way}: FAULT {card.left} bytes are left"
            for what, value in expected.items():
                if difference := _difference(card.found[what], value, bound=card.bound):
                    yield f"{way}: FAULT {what}: {difference}"


def _attempt(made: Any, device: str, way: str) -> tuple[dict[str, Any] | None, str]:
    """Return the result of `run`, or its error."""
    try:
        return run(made, device, way), ""
    except Exception as err:  # noqa: BLE001 - whatever it is, it is the finding
        frames = "".join(traceback.format_list(traceback.extract_tb(err.__traceback__)[-4:]))
        return None, f"{type(err).__name__}: {' '.join(str(err).split())[:300]}\n{frames}"


def _difference(found: Any, expected: Any, *, bound: bool) -> str:
    """The first difference; an upper bound may use what the CPU's values leave alone."""
    if not isinstance(expected, dict):
        return "" if bound or found == expected else f"{found}, on the CPU {expected}"[:500]
    for name in {**expected, **found}:
        there, here = found.get(name), expected.get(name)
        if there != here and not (bound and here is None):
            return f"{name} {there}, on the CPU {here}"
    return ""


def _one(family: str, name: str, answer: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    client.library_path = lambda: None  # What cuDNN would take is not the question.
    try:
        made = zoo.build(family, name)
    except Exception as err:  # noqa: BLE001 - nothing to compare
        answer.send(f"not built: {type(err).__name__}: {err}")
    else:
        ways = [way for way in WAYS if way != "checkpointing" or zoo.checkpoints(made[0])]
        for line in differences(made, ways):
            answer.send(line)
    answer.send("")


def _received(answer: Any) -> Iterator[str]:
    while True:
        try:
            line = answer.recv()
        except EOFError:
            yield ENDED
            return
        if not line:
            return
        yield line


def main() -> int:
    """Run the models of a family; return 1 after a fault."""
    family, *chosen = sys.argv[1:]
    names = zoo.names(family)
    with virtual.activated("H100 80GB"):
        gc.freeze()  # What is loaded once for all need not be looked through again and again.
    processes = multiprocessing.get_context("fork")
    counts = {"alike": 0, "not on the CPU": 0, "fault": 0, "no answer": 0}
    for name in chosen or names:
        answer, question = processes.Pipe(duplex=False)
        process = processes.Process(target=_one, args=(family, name, question))
        process.start()
        question.close()
        lines = list(_received(answer))
        process.join()
        faulty = any("FAULT" in line for line in lines)
        verdict = "fault" if faulty else "not on the CPU" if lines else "alike"
        verdict = "no answer" if ENDED in lines and not faulty else verdict
        counts[verdict] += 1
        print("\n  ".join([f"{name}: {verdict}", *lines]), flush=True)  # noqa: T201
    print(counts)  # noqa: T201
    return 1 if counts["fault"] else 0


if __name__ == "__main__":
    sys.exit(main())
