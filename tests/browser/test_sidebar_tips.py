"""Buttons of a tip: insert code, run a command, mute."""

import re

import pytest

from tests.browser.pages import LOAD, expect, golden

KEEP = """\
%%memtrace
layers = [torch.nn.Linear(1024, 1024) for _ in range(4)]
model = torch.nn.Sequential(*layers).cuda()
checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(checkpoint)
model(torch.zeros(256, 1024, device="cuda")).sum().backward()"""
KEPT = 4 * (1024 * 1024 + 1024) * 4


def finding(tries=(), **fields):
    """The shared message's finding, with these fields, and the rules that can be tried."""
    report = golden("last_report")
    return report | {"findings": [report["findings"][0] | fields], "tries": list(tries)}


@pytest.mark.cells(LOAD, KEEP, KEEP, "%nbmem tips", "%nbmem unmute checkpoint_kept", KEEP)
def test_a_muted_tip_is_gone_until_it_is_unmuted(notebook, page):
    notebook.run(0)
    notebook.run(1)
    tip = page.get_by_test_id("nbmem-tips").locator("li[data-rule=checkpoint_kept]")
    tip.get_by_role("button", name="Do not show this advice again").click()
    page.get_by_test_id("nbmem-said").get_by_text("%nbmem unmute checkpoint_kept").wait_for()
    tip.wait_for(state="detached")
    notebook.run(2)
    page.get_by_test_id("nbmem-cells").locator("[data-cell='3']").wait_for()
    assert tip.count() == 0, "the next report has it again"
    notebook.run(3)
    page.locator(".jp-OutputArea").get_by_text("Muted: checkpoint_kept.").wait_for()
    notebook.run(4)
    notebook.run(5)
    tip.wait_for()


@pytest.mark.cells(LOAD, KEEP, "print(torch.cuda.memory_allocated())", "y = 2")
def test_a_tip_inserts_its_code_runs_its_command_and_can_be_shown_again(notebook, page):
    notebook.run(0)
    notebook.run(1)
    notebook.run(2)
    before = int(notebook.printed(2))
    tip = page.get_by_test_id("nbmem-tips").locator("li[data-rule=checkpoint_kept]")
    tip.get_by_text("Add as a cell").click()
    inserted = notebook.sources()[3]
    assert inserted.startswith("del checkpoint")
    expect(tip.locator("pre")).to_contain_text(inserted)
    tip.get_by_role("button", name="Do not show this advice again").click()
    tip.wait_for(state="detached")
    page.get_by_role("button", name="Show again").click()
    tip.get_by_text("Free 16.0 MiB now").click()
    tip.get_by_text("freed 16.0 MiB (measured)").wait_for()
    expect(tip.get_by_text("Free 16.0 MiB now")).to_have_count(0)
    notebook.run(2)
    assert before - int(notebook.printed(2)) == KEPT


@pytest.mark.cells(LOAD, "kept = torch.zeros(2**22, device='cuda')", "print(kept.nbytes)")
def test_a_hostile_report_can_have_nothing_done(notebook, page):
    notebook.run(0)
    notebook.run(1)
    for command in (
        {"name": "run_code", "arguments": ["cache"]},
        {"name": "free", "arguments": ["kept; import os"]},
        {"name": "free", "arguments": ["kept"] * 9},
    ):
        notebook.push(finding(command=command, title=str(command)))
        page.get_by_test_id("nbmem-tips").get_by_text(str(command)).wait_for()
        expect(page.get_by_role("button", name=re.compile("^Free .* now$"))).to_have_count(0)
    notebook.push(finding(command={"name": "free", "arguments": ["kept"]}))
    page.get_by_role("button", name=re.compile("^Free .* now$")).click()
    page.get_by_test_id("nbmem-said").get_by_text("not what a finding of the last").wait_for()
    notebook.run(2)
    assert int(notebook.printed(2)) == 2**24, "it is there"


@pytest.mark.cells(LOAD, "kept = torch.zeros(2**22, device='cuda')", "")
def test_a_tip_is_tried_in_a_cell_of_its_own(notebook, page):
    notebook.run(0)
    notebook.run(1)
    tries = page.get_by_role("button", name="Try it")
    for rule, known in (("x\nimport os", ["x\nimport os"]), ("grows_each_step", [])):
        notebook.push(finding(known, rule=rule, title=repr(rule)))
        page.get_by_test_id("nbmem-tips").get_by_text(repr(rule)).wait_for()
        expect(tries).to_have_count(0)
    notebook.push(finding(["grows_each_step"], rule="grows_each_step"))
    tries.click()
    page.locator(".jp-OutputArea").get_by_text("There is no report yet").wait_for()
    assert "%nbmem try grows_each_step" in notebook.sources()
