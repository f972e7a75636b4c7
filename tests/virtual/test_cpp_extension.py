"""Extensions that a program compiles while a virtual card is active."""

import pytest

pytest.importorskip("setuptools", reason="torch's compiler of extensions needs it")

from torch.utils import cpp_extension

from nbmem import virtual
from nbmem.virtual.warnings import uncompiled

pytestmark = pytest.mark.torch


@pytest.fixture
def compiled(monkeypatch):
    """Return the names of the extensions that torch compiles."""
    names = []
    monkeypatch.setattr(cpp_extension, "_jit_compile", lambda name, *_, **__: names.append(name))
    return names


def test_cuda_sources_are_refused_at_once(compiled):
    with virtual.activated("T4") as gpu:
        with pytest.raises(RuntimeError) as caught:
            cpp_extension.load("mine", ["a.cpp", "kernels/b.cu"], build_directory="unused")
        assert str(caught.value) == uncompiled("mine")
        assert uncompiled("mine") in gpu.notes
    assert compiled == []


def test_other_sources_are_compiled(compiled):
    with virtual.activated("T4"):
        cpp_extension.load("plain", ["a.cpp"], build_directory="unused")
    cpp_extension.load("without_a_card", ["b.cu"], build_directory="unused")
    assert compiled == ["plain", "without_a_card"]
