"""Packages of AOTInductor: constants and calls.

The figures are those of torch 2.13's CUDA build on the oracle, which compiles, loads and calls the
same programs.
"""

import functools
import gc
import io

import pytest
import torch
from torch import nn

from nbmem import virtual
from nbmem.virtual.patches.compiled.compiler import PLANNED
from tests.virtual.allocation_history import allocation_sizes

pytestmark = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")
inductor = pytest.importorskip("torch._inductor")


def program(model, *args, **sizes):
    with torch.no_grad():
        return torch.export.export(model.cuda().eval(), args, **sizes)


def layers():
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512), nn.LayerNorm(512))


class Tied(nn.Module):
    """A module with a tied, an unused and a plain constant."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4096, 256)
        self.head = nn.Linear(256, 4096, bias=False)
        self.head.weight = self.words.weight
        self.norm = nn.BatchNorm1d(256)
        self.scale = torch.full((256,), 2.0, device="cuda")

    def forward(self, ids):
        return {"logits": self.head(self.norm(self.words(ids)) * self.scale)}


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the figures are of torch 2.13's compiler")
def test_a_packaged_program_takes_what_it_takes_on_the_oracle(gpu, tmp_path):
    x = torch.zeros(64, 512, device="cuda")
    rows = torch.export.Dim("rows", min=2, max=512)
    (x @ x.t()).sum()  # the library's workspace first
    exported = program(layers(), x, dynamic_shapes=({0: rows},))
    path = inductor.aoti_compile_and_package(exported, package_path=tmp_path / "layers.pt2")
    del exported
    gc.collect()
    allocated, held = torch.cuda.memory_allocated(), gpu.process_bytes
    compiled = inductor.aoti_load_package(path)
    assert (torch.cuda.memory_allocated(), gpu.process_bytes - held) == (allocated, 10_485_760)
    for rows in (64, 64, 100):
        given = torch.zeros(rows, 512, device="cuda")
        result = rows * 512 * 4
        assert allocation_sizes(functools.partial(compiled, given)) == [
            4 * result,
            result,
            -4 * result,
        ]
    assert not compiled(x).requires_grad
    del compiled
    gc.collect()
    assert gpu.process_bytes == held
    assert gpu.notes == []


def test_constants_are_there_once_if_the_program_uses_them(gpu):
    ids = torch.zeros(4, dtype=torch.long, device="cuda")
    package = io.BytesIO()
    inductor.aoti_compile_and_package(program(Tied(), ids), package_path=package)
    held = gpu.process_bytes
    package.seek(0)
    compiled = inductor.aoti_load_package(package)
    names = compiled.get_constant_fqns()
    assert len(names) == 6
    assert {"scale", "norm.running_var"} < set(names)
    assert gpu.process_bytes - held == 6 << 20  # 4 MiB of words, and five kilobytes of others
    assert compiled(ids)["logits"].shape == (4, 4096)
    compiled.load_constants({}, check_full_update=False)
    with pytest.raises(RuntimeError, match=r"were not given: .*scale"):
        compiled.load_constants({}, check_full_update=True)


def test_a_package_is_loaded_on_another_card(tmp_path):
    path = str(tmp_path / "layers.pt2")
    virtual.activate("H100")
    x = torch.zeros(64, 512, device="cuda")
    assert inductor.aoti_compile_and_package(program(layers(), x), package_path=path) == path
    del x
    virtual.deactivate()
    gpu = virtual.activate("T4")
    compiled = inductor.aoti_load_package(path, device_index=0)
    assert compiled(torch.zeros(64, 512, device="cuda")).device == torch.device("cuda:0")
    assert gpu.library_bytes == 10_485_760
    del compiled
    virtual.deactivate()


def test_constants_that_find_no_room_are_an_error(gpu, tmp_path):
    x = torch.zeros(64, 512, device="cuda")
    path = inductor.aoti_compile_and_package(program(layers(), x))
    full = torch.empty(gpu.free_bytes - (8 << 20), dtype=torch.uint8, device="cuda")
    held = gpu.process_bytes
    with pytest.raises(RuntimeError, match="CUDA error: out of memory"):
        inductor.aoti_load_package(path)
    assert gpu.process_bytes == held
    del full
    torch.cuda.empty_cache()  # the allocator's cache is no room for it
    assert inductor.aoti_load_package(path)(x).shape == (64, 512)


def test_a_library_is_refused_in_a_sentence_on_a_card_alone(gpu, monkeypatch):
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx_aot", lambda *_, **__: "compiled")
    layer, ones = nn.Linear(4, 4), (torch.ones(4),)
    assert inductor.aot_compile(torch.export.export(layer, ones).module(), ones) == "compiled"
    x = torch.ones(4, device="cuda")
    with pytest.raises(NotImplementedError, match="As a package it can be planned"):
        inductor.aot_compile(program(layer, x).module(), (x,))


def test_a_file_that_is_no_package_is_torchs_to_refuse(gpu, tmp_path):
    (tmp_path / "no.pt2").write_bytes(b"no package")
    with pytest.raises(RuntimeError):
        inductor.aoti_load_package(str(tmp_path / "no.pt2"))
