"""Inductor shortcuts give the results of Inductor's own code."""

import logging
import re

import pytest
import torch
from torch.nn import functional

from nbmem import virtual
from nbmem.virtual.patches.compiled.compiler import PLANNED
from nbmem.virtual.patches.patcher import Patches

pytestmark = pytest.mark.skipif(not PLANNED, reason="this release's compiler is not planned")


@pytest.fixture
def ways():
    """Answer a question of Inductor's sizes with and without shortcuts."""
    from torch._inductor.sizevars import SizeVarAllocator

    from nbmem.virtual.patches.compiled.inductor_shortcuts import shortcut_patches

    patches = Patches()

    def answered(ask):
        sizes = SizeVarAllocator()
        own = ask(sizes)
        patches.apply(shortcut_patches())
        try:
            return own, [ask(sizes), ask(SizeVarAllocator())]
        finally:
            patches.undo()

    return answered


def test_numbers_and_expressions_are_what_torch_makes_of_them(ways):
    import sympy
    from torch.utils._sympy.functions import FloorDiv, ModularIndexing

    x, y = sympy.symbols("i0 i1", integer=True, nonnegative=True)
    ranges = {x: sympy.Integer(64), y: sympy.Integer(8)}
    for left, right in ((3, 3), (3, sympy.Integer(4)), (sympy.Integer(4), 4), (x, 2), (x, x)):
        own, quick = ways(
            lambda sizes, one=left, two=right: sizes.statically_known_equals(one, two)
        )
        assert quick == [own, own]
    for expr in (
        8 * (x + y) + 3 * y,
        ModularIndexing(x, 1, 64) + FloorDiv(y, 8),
        ModularIndexing(x, 1, 32) + 32 * ModularIndexing(x, 32, 2),
        sympy.Integer(7),
    ):
        own, quick = ways(lambda sizes, one=expr: sizes.simplify(one))
        assert quick == [own, own]
        own, quick = ways(lambda sizes, one=expr: sizes._simplify_with_ranges(one, ranges))
        assert quick == [own, own]


def test_an_expression_is_simplified_anew_once_a_size_is_known(ways):
    import sympy
    from torch._inductor.sizevars import SizeVarAllocator

    from nbmem.virtual.patches.compiled.inductor_shortcuts import shortcut_patches

    size, x = sympy.symbols("s0 i0", integer=True, nonnegative=True)
    patches = Patches()
    patches.apply(shortcut_patches())
    try:
        sizes = SizeVarAllocator()
        assert sizes.simplify(size * x) == size * x
        sizes.replacements[size] = sympy.Integer(4)
        assert sizes.simplify(size * x) == 4 * x
    finally:
        patches.undo()


def test_a_graph_is_written_where_torch_keeps_a_trace_of_it(monkeypatch):
    from nbmem.virtual.patches.compiled.inductor_shortcuts import shortcut_patches

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    patches = Patches()
    patches.apply(shortcut_patches())
    try:
        trace = logging.getLogger("torch.__trace")
        monkeypatch.setattr(trace, "handlers", [])
        assert not graph.print_readable(print_output=False)
        monkeypatch.setattr(trace, "handlers", [logging.NullHandler()])
        assert "def forward" in graph.print_readable(print_output=False)
    finally:
        patches.undo()


def test_a_plan_is_written_to_the_letter_as_without_them(monkeypatch):
    from torch._inductor.graph import GraphLowering

    from nbmem.virtual.patches.compiled import inductor_shortcuts as quick

    texts = []
    true_codegen = GraphLowering.codegen

    def codegen(graph):
        wrapper, *more = true_codegen(graph)
        texts.append(re.sub(r"/\S+|AOT ID.*", "", wrapper.value))
        return wrapper, *more

    def net(table, picture, places):
        larger = functional.interpolate(functional.pad(picture, (1, 2)), scale_factor=1.5)
        words = functional.layer_norm(table[places], (32,)).softmax(-1)
        return larger.flatten(1)[:, :512].sum() + (words * (places.long() + 1)[:, None]).sum()

    monkeypatch.setattr(GraphLowering, "codegen", codegen)
    for patches in (quick.shortcut_patches, list):
        monkeypatch.setattr(quick, "shortcut_patches", patches)
        with virtual.activated("H100") as gpu:
            table = torch.randn(64, 32, device="cuda", requires_grad=True)
            picture = torch.randn(2, 4, 20, 20, device="cuda", requires_grad=True)
            torch.compile(net)(table, picture, torch.zeros(16, dtype=torch.int32).cuda()).backward()
            assert gpu.notes == []
    assert len(texts) == 4
    assert texts[:2] == texts[2:]
