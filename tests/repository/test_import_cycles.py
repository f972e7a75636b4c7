"""No module is imported by what it imports, types and lazy imports included."""

from graphlib import CycleError, TopologicalSorter

import pytest

grimp = pytest.importorskip("grimp", reason="import-linter brings it")

OWNERS = {
    "nbmem.capture.record.recorder",
    "nbmem.virtual.hardware.gpu",
    "nbmem.virtual.hardware.machine",
    "nbmem.virtual.tensors.values",
}
"""Made of parts that refer to the whole, by its type alone."""


def cycle_of(graph, without=frozenset()):
    """Return a cycle as names of modules, or None."""
    imports = {
        module: graph.find_modules_directly_imported_by(module) - without
        for module in graph.modules
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as err:
        return err.args[1]
    return None


def test_no_cycle_runs():
    runs = grimp.build_graph("nbmem", exclude_type_checking_imports=True, cache_dir=None)
    assert cycle_of(runs) is None


def test_no_cycle_of_types_but_for_parts_and_their_whole():
    graph = grimp.build_graph("nbmem", cache_dir=None)
    assert cycle_of(graph, OWNERS) is None
    assert cycle_of(graph) is not None  # else OWNERS is not needed
