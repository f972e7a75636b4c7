"""AOTInductor on a virtual card: packages of programs.

A package holds the program, which is planned when it is called. On a card it holds machine code,
and its constants are one block of cudaMalloc's, beside torch's allocator, for as long as the loaded
model exists. That holds here, too. A call takes what Inductor plans for the same program.

https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_inductor/__init__.py
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/csrc/inductor/aoti_runtime/model_base.h

Known limits: what compiling takes on a card to time kernels is not counted (all arguments of one
kernel at a time). The seeds of attention (16 bytes) are live there to the end of a call.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import weakref
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from nbmem.core.units import round_up
from nbmem.virtual.devices import is_virtual
from nbmem.virtual.patches.patcher import Patch, patches_of
from nbmem.virtual.tensors.operator_call import tensors_in
from nbmem.virtual.tensors.shapes import as_meta
from nbmem.virtual.tensors.storages import dataless_tensor

if TYPE_CHECKING:
    from nbmem.virtual.dispatch.card_mode import CardMode
    from nbmem.virtual.hardware.gpu import VirtualGPU
    from nbmem.virtual.hardware.machine import Machine

REFUSED = (
    "AOTInductor compiles a program into a library of its card's machine code, and a virtual GPU "
    "runs none. As a package it can be planned: torch._inductor.aoti_compile_and_package(program), "
    "and torch._inductor.aoti_load_package(path) of what that returns."
)
_MARK = "nbmem"
"""A file in the package: which constants it has, and that it holds no machine code."""
_TIMED_BEFORE: dict[str, Any] = {"aot_inductor.package": True, "shape_padding": False}
"""Settings without timing at the first call: neither kernels (plans depend on the first setting),
nor products against padded ones. The plain ones are taken here."""
_ALIGNED = 64
_PAGE = 2 << 20
"""cudaMalloc of more than a MiB takes whole ones."""
_BASE = 0x7E00_0000_0000
"""The address of constants: far from the allocator's segments."""


class AheadOfTime:
    """Makes packages of programs on a virtual card, and loads them."""

    def __init__(self, mode: CardMode, machine: Machine) -> None:
        self._mode = mode
        self._machine = machine
        self._next = _BASE

    def patches(self) -> list[Patch]:
        """Return patches of torch._inductor's AOTInductor functions.

        Inductor's package is not imported for them: empty if it is not there.
        """
        package: Any = sys.modules.get("torch._inductor")
        if package is None:
            return []
        original_inner: Any = getattr(package, "_aoti_compile_and_package_inner", None)
        original_package: Any = getattr(package, "aoti_compile_and_package", None)
        original_compile: Any = getattr(package, "aot_compile", None)
        original_load: Any = getattr(package, "aoti_load_package", None)
        programs: list[Any] = []

        def package_program(exported_program: Any, *args: Any, **options: Any) -> Any:
            programs.append(exported_program)
            try:
                return original_package(exported_program, *args, **options)
            finally:
                programs.pop()

        def inner(gm: Any, args: Any, kwargs: Any = None, **options: Any) -> Any:
            if not (programs and _is_on_card(gm, args, kwargs)):
                return original_inner(gm, args, kwargs, **options)
            return _save(programs[-1], options.get("package_path"))

        def compile_library(gm: Any, args: Any, kwargs: Any = None, **options: Any) -> Any:
            if _is_on_card(gm, args, kwargs):
                raise NotImplementedError(REFUSED)
            return original_compile(gm, args, kwargs, **options)

        def load(
            path: Any,
            run_single_threaded: bool = False,  # noqa: FBT001, FBT002 - torch's
            device_index: int = -1,
        ) -> Any:
            if not _is_marked(path):
                return original_load(path, run_single_threaded, device_index)
            return PackagedModel(self, path, device_index)

        return patches_of(
            package,
            {
                "aoti_compile_and_package": package_program,
                "_aoti_compile_and_package_inner": inner,
                "aot_compile": compile_library,
                "aoti_load_package": load,
            },
            only_existing=True,
        )

    def gpu(self, device_index: int) -> VirtualGPU:
        """Return the card of an index; -1 is the current one."""
        return self._machine.current if device_index < 0 else self._machine.gpus[device_index]

    def constants(
        self, gpu: VirtualGPU, likes: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], int]:
        """Allocate a model's constants in one block of the card.

        The block is beside torch's allocator. Returns tensors like the given ones, and the block's
        bytes.

        Raises:
            RuntimeError: The card is full.
        """
        sizes = {name: as_meta(like).untyped_storage().nbytes() for name, like in likes.items()}
        held = round_up(sum(round_up(size, _ALIGNED) for size in sizes.values()), _PAGE)
        if held > gpu.free_bytes:
            raise RuntimeError("CUDA error: out of memory")
        gpu.library_bytes += held
        made, addr = {}, self._next
        self._next += held
        for name, like in likes.items():
            shape = tuple(like.size()), tuple(like.stride()), like.storage_offset()
            made[name] = dataless_tensor(*shape, like.dtype, sizes[name], gpu.index)
            self._mode.storages.borrow(made[name], gpu, addr)
            addr += round_up(sizes[name], _ALIGNED)
        return made, held


class PackagedModel:
    """A loaded package, with the methods of torch's AOTICompiledModel."""

    def __init__(self, ahead: AheadOfTime, path: Any, device_index: int) -> None:
        beside: dict[str, str] = {_MARK: ""}
        program = torch.export.load(path, extra_files=beside)
        first: dict[str, str] = json.loads(beside[_MARK])
        named = {**program.state_dict, **_tensors(program.constants)}
        self._names = sorted({*first.values()})
        gpu = ahead.gpu(device_index)
        made, held = ahead.constants(gpu, {name: named[name] for name in self._names})
        weakref.finalize(self, _give_back, gpu, held)
        for place in (program.state_dict, program.constants):
            found = {name: made[first[name]] for name in place if name in first}
            place.update({name: _like(place[name], value) for name, value in found.items()})
        # Sizes that may change are planned for any, as when it was compiled.
        dynamic = bool(program.range_constraints)
        self._run = torch.compile(program.module(), dynamic=dynamic, options=_TIMED_BEFORE)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model."""
        with torch.no_grad():
            return self._run(*args, **kwargs)

    def get_metadata(self) -> dict[str, str]:
        """Return the metadata of a package for CUDA."""
        return {"AOTI_DEVICE_KEY": "cuda"}

    def get_constant_fqns(self) -> list[str]:
        """Return the names of the constants."""
        return list(self._names)

    def load_constants(
        self,
        constants_map: dict[str, torch.Tensor],
        *,
        check_full_update: bool,
        user_managed: bool = False,  # noqa: ARG002 - torch's
        allow_h2d_copy: bool = False,  # noqa: ARG002 - torch's
    ) -> None:
        """Write other values over the constants, which takes no memory.

        Raises:
            RuntimeError: One is missing though all were to be there.
        """
        missing = set(self._names) - set(constants_map)
        if check_full_update and missing:
            raise RuntimeError(f"constants that were not given: {', '.join(sorted(missing))}")


def _is_on_card(model: Any, args: Any, kwargs: Any) -> bool:
    held = [*model.parameters(), *model.buffers(), *tensors_in((args, kwargs), {})]
    return any(is_virtual(tensor) for tensor in held)


def _tensors(constants: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in constants.items() if isinstance(value, torch.Tensor)}


def _like(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `other`, as a parameter where `value` is one.

    Which path a matrix product takes depends on whether it requires a gradient.
    """
    if not isinstance(value, torch.nn.Parameter):
        return other
    return torch.nn.Parameter(other, requires_grad=value.requires_grad)


def _constants(program: Any) -> dict[str, str]:
    """Map each constant that the program uses to a name of its tensor.

    Constants that are the same tensor have the first one's name.
    """
    named = {**program.state_dict, **_tensors(program.constants)}
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    used = [n.name for n in program.graph.nodes if n.op == "placeholder" and n.users]
    first: dict[int, str] = {}
    return {
        names[one]: first.setdefault(named[names[one]].data_ptr(), names[one])
        for one in used
        if one in names
    }


def _save(program: Any, path: Any) -> Any:
    """Save a program without its constants' values; return the path.

    The values are not known. Without a path, a temporary folder is made.
    """
    if path is None:
        path = str(Path(tempfile.mkdtemp(prefix="nbmem-package-")) / "model.pt2")
    light = copy.copy(program)
    light._example_inputs = None
    light._state_dict = {n: _like(value, as_meta(value)) for n, value in program.state_dict.items()}
    light._constants = program.constants | {
        name: as_meta(value) for name, value in _tensors(program.constants).items()
    }
    torch.export.save(light, path, extra_files={_MARK: json.dumps(_constants(program))})
    return path


def _is_marked(path: Any) -> bool:
    try:
        with zipfile.ZipFile(path) as package:
            return any(name.rpartition("/")[2] == _MARK for name in package.namelist())
    except (OSError, zipfile.BadZipFile):
        return False  # torch raises the error
    finally:
        if hasattr(path, "seek"):
            path.seek(0)


def _give_back(gpu: VirtualGPU, held: int) -> None:
    gpu.library_bytes -= held
