"""Suggestions for mistyped names and commands."""

import pytest

from nbmem.core.arguments import LineParser
from nbmem.core.errors import UsageError
from nbmem.core.suggestions import suggest, suggest_path
from nbmem.estimates.programs import variable_binding


@pytest.mark.parametrize(
    ("word", "meant"),
    [("T40", "T4"), ("a100", "A100 80GB"), ("rtx 3009", "RTX 3090"), ("Gaudi", None), ("", None)],
)
def test_a_mistyped_name_is_suggested_in_its_own_case(word, meant):
    known = ["A100 80GB", "T4", "RTX 3090"]
    assert suggest(word, known) == (f"Did you mean {meant}? " if meant else "")
    assert suggest("T40", known, "`%nbmem gpu {}`") == "Did you mean `%nbmem gpu T4`? "


def test_an_unknown_command_is_answered_with_the_nearest_or_all():
    parser = LineParser("nbmem")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=LineParser)
    for name in ("run", "report"):
        commands.add_parser(name)
    with pytest.raises(
        UsageError,
        match=r"^nbmem has no command 'repor'. Did you mean `nbmem report`\? "
        r"`nbmem --help` lists all\.$",
    ):
        parser.parse_known_args(["repor"])
    with pytest.raises(UsageError, match=r"^nbmem has no command 'xyz'. There are: run, report\.$"):
        parser.parse_known_args(["xyz"])


def test_a_mistyped_path_is_suggested_with_its_folder(tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "ranks").mkdir()
    mistyped = tmp_path / "trainn.py"
    assert suggest_path(mistyped) == f"Did you mean {tmp_path / 'train.py'}?"
    assert suggest_path(tmp_path / "rank", folder=True) == f"Did you mean {tmp_path / 'ranks'}?"
    for unlike in ("rank", "x.nbmem", "none/train.py"):
        assert suggest_path(tmp_path / unlike) == "Check the path."


MEANT = "not assigned in .* Did you mean `batch`[?] Put"


def test_a_mistyped_variable_is_suggested_where_it_has_a_whole_number():
    with pytest.raises(UsageError, match=MEANT):
        variable_binding.in_script("bacth", "batch = 8\nbacht = 'none'\nx = y = batch")
    with pytest.raises(UsageError, match=MEANT):
        variable_binding.in_cell("bacth", "", {"batch": 8, "bacht": "no number"}, ["batch"])
