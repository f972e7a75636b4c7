"""Parsing of user-written lines: quotes, paths, options, statements."""

import pytest

from nbmem.core.arguments import add_device, parser_of
from nbmem.core.errors import UsageError
from nbmem.frontends.notebook.options import CellOptions, parse_cell_line, parse_statement_line


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", CellOptions()),
        ("first --stacks run", CellOptions(name="first run", stacks=True)),
        ('"the model\'s run"', CellOptions(name="the model's run")),
        (r"--save C:\runs\a.nbmem", CellOptions(save=r"C:\runs\a.nbmem")),
        ('--save="my runs/a.nbmem" --no-widget', CellOptions(save="my runs/a.nbmem", widget=False)),
        ("--max-peak 2GiB --device 1", CellOptions(max_peak=2 << 30, device=1)),
        ("a - b", CellOptions(name="a - b")),
    ],
)
def test_a_cells_line(line, options):
    assert parse_cell_line(line) == options


@pytest.mark.parametrize(
    ("line", "options", "statement"),
    [
        ("model(x)", CellOptions(), "model(x)"),
        ("--stacks x = f('--gpu')  # it's", CellOptions(stacks=True), "x = f('--gpu')  # it's"),
        ("--gpu T4 --stacks -x", CellOptions(gpu="T4", stacks=True), "-x"),
        ("--gpu=T4 -x", CellOptions(gpu="T4"), "-x"),
        ('--save "my runs/a.nbmem" f()', CellOptions(save="my runs/a.nbmem"), "f()"),
    ],
)
def test_a_statements_line(line, options, statement):
    assert parse_statement_line(line) == (options, statement)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--device", "--device needs a value: `--device N`. It means: report card N"),
        ("--device x", "--device x is not a card's number"),
        ("--devise 1", "%nbmem x does not know --devise 1. Did you mean --device?"),
        ("1", "%nbmem x does not know 1. `%nbmem x --help` lists"),
        ("--dev 1", "Did you mean --device?"),  # nothing is abbreviated
    ],
)
def test_a_mistake_is_one_sentence(line, sentence):
    with pytest.raises(UsageError) as raised:
        parser_of("%nbmem x", add_device).read(line)
    assert sentence in str(raised.value)
