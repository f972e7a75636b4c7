"""Triton kernels that Inductor writes, which are never compiled.

A launch only drops the known values of tensors that the kernel writes. Where Inductor has several
configurations for a kernel, its first launch times each. It does so beside a buffer that clears the
card's cache, on copies of what the kernel overwrites. This changes the allocator's state.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/runtime/triton_heuristics.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/runtime/benchmarking.py

Known limit: which configuration wins is not known, nor whether an earlier process has found it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._inductor.runtime import hints, triton_heuristics

from nbmem.virtual.devices import CUDA, is_virtual
from nbmem.virtual.patches.patcher import Patches, patches_of

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.machine import Machine

_WRITTEN = ("in_out_ptr", "out_ptr")
"""How Inductor names the arguments that a kernel writes to."""
_HEURISTICS = "triton_heuristics."
"""How the decorator of a kernel's function begins."""


def timed_on_card(machine: Machine, act: Callable[[], Any]) -> float:
    """Time something as Inductor does: alone, then beside a buffer.

    The buffer clears the card's cache.

    Returns:
        Milliseconds, the same for all: between two paths the first is taken.
    """
    act()
    gpu = machine.current
    cleared = torch.empty(gpu.card.l2_bytes // 4, dtype=torch.int32, device=CUDA[gpu.index])
    act()
    del cleared
    return 1.0


class Config:
    """A configuration of Inductor's heuristics.

    It replaces Triton's, whether Triton is installed or not.
    """

    def __init__(
        self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3, **_more: Any
    ) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.num_ctas = 1
        self.maxnreg = self.pre_hook = None


class InductorConfig(Config):
    """Inductor's own kind of configuration.

    Inductor derives it from Triton's where that is installed.
    """

    def __init__(self, *args: Any, dynamic_scale_rblock: bool = True, **more: Any) -> None:
        super().__init__(*args, **more)
        self.dynamic_scale_rblock = dynamic_scale_rblock


class Tuning(NamedTuple):
    """Configurations that a kernel's first launch times.

    Beside them, what is copied meanwhile.

    Attributes:
        choices: Configurations; one is not timed.
        over: The arguments that the kernel writes over.
        spares: Whether those are copied to the CPU where copies on the card would raise its peak.
    """

    choices: int = 0
    over: frozenset[str] = frozenset()
    spares: bool = True


class PlannedKernel:
    """A kernel of Inductor's that is not compiled, by its source.

    The generated wrapper calls `run`.

    Args:
        mode: The mode of the cards.
        source: Inductor's source for Triton.
        timed: Sources that have been timed, without their kernels' names: Inductor times each once.
        tunes: Whether its first launch times it.
    """

    def __init__(self, mode: CardMode, source: str, timed: set[str], *, tunes: bool = True) -> None:
        self._mode = mode
        self._timed = timed
        function = _function(source)
        names = [] if function is None else [argument.arg for argument in function.args.args]
        self._key = source if function is None else source.replace(function.name, "")
        self._written = [at for at, name in enumerate(names) if name.startswith(_WRITTEN)]
        self._tuning = _tuning(source, function) if tunes and function is not None else Tuning()
        self._over = [at for at, name in enumerate(names) if name in self._tuning.over]

    def run(self, *args: Any, **_options: Any) -> None:
        """Launch the kernel: forget the values that it writes.

        The first launch also takes the memory of its tuning.
        """
        if self._mode.machine is not None:
            self._mode.machine.current.launch_unseen()
        if self._tuning.choices > 1 and self._key not in self._timed:
            self._timed.add(self._key)
            self._time(args)
        for at in self._written:
            if at < len(args) and is_virtual(args[at]):
                self._mode.values.forget(args[at])

    def _time(self, args: tuple[Any, ...]) -> None:
        machine = self._mode.machine
        if machine is None:
            return
        size = machine.current.card.l2_bytes // 4
        for _ in range(self._tuning.choices):
            # Anew for each: clearing the cache may have raised the peak and left free memory.
            copied = self._copied(args)
            copies = [torch.clone(tensor) for tensor in copied]
            del copies
            cleared = torch.empty(size, dtype=torch.int32, device=CUDA[machine.current.index])
            copies = [torch.clone(tensor) for tensor in copied]
            del copies, cleared

    def _copied(self, args: tuple[Any, ...]) -> list[torch.Tensor]:
        """Return overwritten arguments that are copied on the card.

        The others are copied to the CPU, where the kernel's tuning permits it.
        """
        room = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        copied = []
        for at in self._over:
            nbytes = _reach(args[at]) if at < len(args) else 0
            if 0 < nbytes <= room or not self._tuning.spares:
                copied.append(args[at])
                room -= nbytes
        return copied


def _reach(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first to its last element.

    0 for a tensor without elements.
    """
    if not tensor.numel():
        return 0
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def _function(source: str) -> ast.FunctionDef | None:
    """Return the kernel's definition; None if the source is not Triton's.

    A template has functions of its own, before the kernel and behind it, which are not launched.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return None
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    return next((one for one in functions if _heuristic(one) is not None), None)


def _heuristic(function: ast.FunctionDef) -> ast.expr | None:
    """Return the decorator that says how the kernel is launched.

    None for a function without one.
    """
    for one in function.decorator_list:
        if isinstance(one, ast.Call) and ast.unparse(one.func).startswith(_HEURISTICS):
            return one
    return None


def _tuning(source: str, function: ast.FunctionDef) -> Tuning:
    """Return the tuning that Inductor's own heuristics choose.

    They run with a replaced last step, which records the configurations.
    """
    heuristic = _heuristic(function)
    decorator = (heuristic and ast.get_source_segment(source, heuristic)) or ""
    found: list[Tuning] = []

    def noted(_size_hints: Any, configs: list[Any], *_: Any, **facts: Any) -> Any:
        meta = facts.get("inductor_meta") or {}
        different = {(str(one.kwargs), one.num_warps, one.num_stages) for one in configs}
        over = frozenset(meta.get("mutated_arg_names", ()))
        found.append(Tuning(len(different), over, bool(meta.get("optimize_mem", True))))
        return lambda kernel: kernel

    patches = Patches()
    kinds = {"Config": Config, "InductorConfig": InductorConfig}
    patches.apply(patches_of(triton_heuristics, {"cached_autotune": noted, **kinds}))
    try:
        known = {**vars(hints), "triton_heuristics": triton_heuristics, "__file__": ""}
        known.update(AttrsDescriptor=dict, instance_descriptor=dict)  # Triton's own, if it is there
        eval(decorator, {**known, "inf": float("inf"), "nan": float("nan")})  # noqa: S307 - Inductor's
    except Exception:  # noqa: BLE001 - a kind of kernel that has other heuristics is not timed
        return Tuning()
    finally:
        patches.undo()
    return found[0] if found else Tuning()
