"""`nbmem.free` and `nbmem.top` in a program without IPython."""

import sys

import pytest
import torch

import nbmem
from nbmem import virtual
from nbmem.core.errors import UsageError
from nbmem.core.units import MIB


@pytest.fixture
def names(program):
    """Return the names of a program on a virtual card."""
    with virtual.activated("H100 80GB"):
        yield program
        program.clear()


def execute(names, code):
    exec(f"import torch\n{code}", names)


def test_variables_are_freed_to_the_byte(names):
    execute(names, "x = torch.zeros(3 << 18, device='cuda'); kept = [x, x + 1]")
    freed = nbmem.free("kept[1]", "x")
    assert [one.measured for one in freed.actions] == [3 * MIB, 0]
    assert freed.measured == freed.actions[0].predicted == 3 * MIB
    assert "x" not in names
    assert names["kept"][1] is None
    assert "x: nothing was freed, because kept holds 3.0 MiB (kept[0])." in str(freed)
    assert "kept[1]: 3.0 MiB freed." in freed._repr_mimebundle_()["text/html"]


def test_the_cache_goes_back_to_the_driver(names):
    execute(names, "x = torch.zeros(3 << 18, device='cuda'); del x")
    reserved = torch.cuda.memory_reserved()
    freed = nbmem.free("cache")
    assert freed.measured == freed.actions[0].predicted == reserved > 0
    assert torch.cuda.memory_reserved() == 0


def test_what_a_failed_call_left_behind_is_freed(names):
    def fails():
        inside = torch.zeros(1 << 18, device="cuda")
        raise ValueError(inside.shape)

    try:
        fails()
    except ValueError as err:
        sys.last_value, sys.last_traceback = err, err.__traceback__  # as an interpreter keeps them
    assert torch.cuda.memory_allocated() == MIB
    freed = nbmem.free("traceback")
    assert freed.measured == freed.actions[0].predicted == MIB
    assert not hasattr(sys, "last_value")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ((), "Name what to free"),
        (("out",), "Outside of IPython no results are kept"),
        (("y",), "There is no variable 'y'"),
        (("__name__",), "__name__ belongs to Python, not to your program"),
        (("torch",), "torch is an imported module"),
    ],
)
def test_what_cannot_be_freed_is_a_sentence(names, what, why):
    execute(names, "x = torch.zeros(3 << 18, device='cuda')")
    with pytest.raises(UsageError, match=why):
        nbmem.free(*what)
    assert torch.cuda.memory_allocated() == 3 * MIB


def test_the_largest_tensors_have_their_names(names):
    assert str(nbmem.top()) == "Nothing lives on a card: torch has no memory allocated there."
    execute(
        names, "model = torch.nn.Linear(512, 256).cuda(); x = torch.zeros(3 << 18, device='cuda')"
    )
    top = nbmem.top(1)
    assert [row.name for row in top.holdings[0]] == ["x", "model.weight", "model.bias"]
    assert sum(row.block for row in top.holdings[0]) == torch.cuda.memory_allocated()
    output = str(top).splitlines()
    assert len(output) == 2
    assert output[0].startswith("Card 0: 3.0 MiB requested of 3.5 MiB allocated now")
    assert "<table" in top._repr_mimebundle_()["text/html"]
