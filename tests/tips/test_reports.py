"""Tips name the true cause of public bug reports, and keep what they promise."""

import pytest

from nbmem.report.tips.rules import RULES
from tests.tips.reports.catalogue import FOLDER, MEASURES, read_reports
from tests.tips.reports.table import PAGE, read_results, section

REPORTS = {report.name: report for report in read_reports()}
CI = (
    "fastai_outputs",
    "forum_two_graphs",
    "gradcam_hooks",
    "pytorch_oom_retry",
    "so_validation_loss",
    "transformers_past_graph",
)
"""Reports that each run of the tests judges; `long` judges all others, too."""
REMEDIES = {"held_by_name", "memory_limit", "other_processes"}
"""Keys of remedies under an out-of-memory error that are no tips."""
RERUN = "run `python -m tests.tips.reports --table`"


@pytest.fixture(scope="module")
def judged():
    pytest.importorskip("torch", reason="the programs are torch programs")
    from tests.tips.reports.run import judge

    return judge


@pytest.mark.parametrize("name", CI)
def test_the_first_tip_names_the_cause_and_keeps_its_promise(judged, name):
    verdict = judged(REPORTS[name])
    assert verdict["right"], verdict["tips"]
    assert verdict["kept"], verdict
    assert not verdict["false"]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(REPORTS.keys() - set(CI)))
def test_no_verdict_is_worse_than_the_stored_one(judged, name):
    verdict, stored = judged(REPORTS[name]), read_results()[name]
    assert verdict["right"] >= stored["right"], verdict["tips"]
    assert bool(verdict["kept"]) >= bool(stored["kept"]), verdict
    assert len(verdict["false"]) <= len(stored["false"]), verdict["false"]


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_report_is_whole(report):
    known = {rule.name for rule in RULES} | REMEDIES
    for rule in report.rules:
        assert rule.startswith("none-yet: ") or rule.removeprefix("oom:") in known
    assert report.measure in MEASURES
    assert report.source.startswith("https://")
    assert report.cured != report.program, "it needs a line `CURED = False`"
    compile(report.program, report.name, "exec")


def test_every_program_has_its_report():
    assert {path.stem for path in (FOLDER / "programs").glob("*.py")} == REPORTS.keys()


def test_the_stored_verdicts_are_of_these_programs():
    stored = {name: result["digest"] for name, result in read_results().items()}
    assert stored == {name: report.digest() for name, report in REPORTS.items()}, RERUN


def test_the_page_has_the_stored_verdicts():
    assert PAGE.read_text(encoding="utf-8").endswith("\n" + section(read_results())), RERUN
