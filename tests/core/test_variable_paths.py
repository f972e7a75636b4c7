"""The path to a tensor is taken apart in one place, in every form that capture writes."""

import pytest

from nbmem.core.session.variable_paths import VariablePath, parse_path

PATHS = {
    "preds[3]": (VariablePath("preds[3]"), "preds", "", True),
    "trainer.history['loss']": (VariablePath("trainer.history['loss']"), "trainer", "", True),
    "local preds[3] of evaluate()": (
        VariablePath("preds[3]", function="evaluate()"),
        "preds",
        " in evaluate()",
        True,
    ),
    "local x of <lambda>() in the traceback of ValueError": (
        VariablePath("x", function="<lambda>()"),
        "x",
        " in <lambda>()",
        True,
    ),
    "local batch of the generator batches": (
        VariablePath("batch", function="the generator batches"),
        "batch",
        " in the generator batches",
        False,
    ),
    "net.cache closed over by step": (
        VariablePath("net.cache", closed_over_by="step"),
        "net",
        " closed over by step",
        False,
    ),
    "the graph of local loss of step()": (
        VariablePath("loss", function="step()", by_graph=True),
        "loss",
        " in step()",
        True,
    ),
}


@pytest.mark.parametrize("text", PATHS)
def test_a_path_is_taken_apart(text):
    path, variable, where, can_be_deleted = PATHS[text]
    found = parse_path(text)
    assert found == path
    assert (found.variable, found.where) == (variable, where)
    assert found.can_be_deleted == can_be_deleted
