"""Lines that are inserted at one place, and beside a line that is replaced."""

import ast

from nbmem.estimates.programs.source_edits import Edit

SOURCE = "import torch\nmodel = torch.nn.Linear(2, 2)\nmodel(x)\n"


def test_two_insertions_above_a_line_stand_in_their_order():
    edit = Edit.of(SOURCE)
    assert edit.insert(1, "first()")
    assert edit.insert(1, "second()")
    assert edit.result().splitlines()[1:3] == ["first()", "second()"]


def test_an_insertion_above_a_replaced_line_stays():
    made = ast.parse(SOURCE).body[1]
    before, after = Edit.of(SOURCE), Edit.of(SOURCE)
    assert before.insert(1, "above()")
    assert before.replace(made, made, "model = f()")
    assert after.replace(made, made, "model = f()")
    assert after.insert(1, "above()")
    assert before.result() == after.result()
    assert before.result().splitlines()[1:3] == ["above()", "model = f()"]


def test_a_line_that_is_replaced_twice_has_the_last_text():
    made = ast.parse(SOURCE).body[1]
    edit = Edit.of(SOURCE)
    assert edit.replace(made, made, "model = f()")
    assert edit.replace(made, made, "model = g()")
    assert edit.result().splitlines() == ["import torch", "model = g()", "model(x)"]
