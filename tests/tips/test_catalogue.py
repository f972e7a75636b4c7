"""docs/tips.md is what tools/tips.py writes."""

import importlib.util
from pathlib import Path

import pytest

from nbmem.report.tips.rules import RULES
from tests.tips.programs import FREEING, REWRITING

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def writer():
    spec = importlib.util.spec_from_file_location("write_tips", ROOT / "tools" / "tips.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def written(writer):
    return writer.TARGET.read_text(encoding="utf-8")


@pytest.mark.parametrize("part", ["catalogue", "scenarios"])
def test_the_page_is_fresh(writer, written, part):
    assert getattr(writer, part)() in written, "write it again: python tools/tips.py"


def test_every_program_has_its_measured_line(writer, written):
    _, _, table = written.partition(writer.MEASURED)
    table, _, _ = table.partition("\n## ")
    rules = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert rules == [program.rule for program in (*FREEING, *REWRITING)]


def test_every_rule_has_a_program_or_a_test_of_its_own():
    here = Path(__file__).parent
    beside = here.parent / "frameworks" / "test_advice.py"
    own = (
        "test_attributes_not_moved.py",
        "test_checkpointing_off.py",
        "test_predictions.py",
        "test_gradient_cycles.py",
        "test_growing_input.py",
        "test_kept_after_use.py",
        "test_commands.py",
        "test_large_result.py",
        "test_language_models.py",
        "test_large_temporaries.py",
        "test_needless_graphs.py",
        "test_partly_used.py",
        "test_sharded.py",
        "test_streams.py",
        "test_threads.py",
        "test_unused_memory.py",
        "test_written_out_activation.py",
    )
    files = (*(here / name for name in own), beside)
    told = "".join(path.read_text() for path in files)
    shown = {program.rule for program in (*FREEING, *REWRITING)}
    assert [r.name for r in RULES if r.name not in shown and r.name not in told] == []
