"""Variables that can be varied, and the sentence where one cannot."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from nbmem.core.errors import UsageError
from nbmem.estimates.programs import variable_binding


@dataclasses.dataclass(frozen=True)
class Frozen:
    batch_size: int = 4


CELLS = [
    ("batch", "batch = 4"),
    ("batch", "batch: int = 4"),
    ("batch", "batch, length = 4, 512"),
    ("batch", "if True:\n    batch = 4"),
    ("batch_size", "loader = dict(data=0, batch_size=4)"),
    ("cfg.batch_size", "cfg.batch_size = 4"),
    ("cfg.batch_size", "cfg = SimpleNamespace(batch_size=4, lr=1)"),
    ("cfg.batch_size", "cfg = SimpleNamespace()\ncfg.batch_size = 4"),
    ("config['batch_size']", "config = {'lr': 1, 'batch_size': 4}"),
    ("config[batch_size]", "config = dict(batch_size=4)"),
    ("config['train']['batch']", "config = {'train': 1}\nconfig['train'] = {'batch': 4}"),
]


@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_what_the_cell_writes_is_replaced(name, cell):
    bound = variable_binding.in_cell(name, cell, {}, ())
    assert bound.value == 4
    names = {"SimpleNamespace": SimpleNamespace, "cfg": SimpleNamespace()}
    exec(variable_binding.compile_with_value(cell, "<cell>", bound, 7), names)
    held = names["loader"]["batch_size"] if "loader" in names else eval(bound.name, names)
    assert held == 7


@pytest.mark.parametrize("name", ["batch", "cfg.batch_size", "frozen.batch_size", "sizes['batch']"])
def test_what_the_notebook_holds_is_replaced_in_a_copy(name):
    held = {
        "batch": 4,
        "cfg": SimpleNamespace(batch_size=4),
        "frozen": Frozen(),
        "sizes": {"batch": 4},
    }
    bound = variable_binding.in_cell(name, "train()", held, held)
    assert (bound.value, bound.line) == (4, None)
    variable_binding.put(held, bound.name, 7)
    assert eval(name, held) == 7


def test_a_name_in_the_cell_counts_before_a_call_that_takes_it():
    cell = "batch = 4\nloader = DataLoader(data, batch=batch)"
    assert variable_binding.in_cell("batch", cell, {}, ()).line == 1
    cell = "train(Config(batch=batch), batch=8)"
    assert variable_binding.in_cell("batch", cell, {"batch": 4}, ("batch",)).line is None


@pytest.mark.parametrize(
    ("name", "cell", "sentence"),
    [
        ("batch", "for batch in range(3): pass", "not assigned as a whole number"),
        ("batch", "batch = 2\nbatch = 3", r"assigned more than once \(lines 1, 2\)"),
        ("batch", "f(batch=2); g(batch=3)", r"assigned more than once \(lines 1, 1\)"),
        ("batch", "def f(): batch = 4", "Put `batch = 32` on a line of its own"),
        ("cfg.batch", "cfg = Config()", r"cfg is made in the program \(line 1\), and its batch"),
        ("cfg.lr", "train(cfg)", "cfg.lr is not assigned in the cell"),
        ("held", "train()", "held is 3 in the notebook, but the cell does not use it"),
        ("f(x)", "f(x)", "is not the name of a variable"),
    ],
)
def test_what_cannot_be_varied_says_what_to_write(name, cell, sentence):
    with pytest.raises(UsageError, match=sentence):
        variable_binding.in_cell(name, cell, {"held": 3, "cfg": SimpleNamespace(lr=0.1)}, ("cfg",))


@pytest.mark.parametrize("name", ["batch_size", "batch-size", "--batch-size"])
@pytest.mark.parametrize("words", [("-v", "--batch-size", "4"), ("-v", "--batch_size=4")])
def test_an_argument_of_a_script_is_a_variable(name, words):
    bound = variable_binding.in_script(name, "import argparse", words)
    assert (bound.name, bound.value) == ("batch_size", 4)
    assert words[bound.argument_index].endswith("4")


def test_an_argument_that_is_not_given_is_a_sentence():
    script = "parser.add_argument('--batch-size', type=int)"
    with pytest.raises(UsageError, match="at the end of the line: -- --batch-size 32"):
        variable_binding.in_script("batch_size", script)
    with pytest.raises(UsageError, match="--batch-size is not a whole number: large"):
        variable_binding.in_script("batch_size", script, ("--batch-size", "large"))
