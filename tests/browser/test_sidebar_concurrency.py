"""The sidebar with several cards, notebooks and kernels at once."""

import pytest

from tests.browser.pages import KERNEL, LOAD, PANEL, expect, golden

ALLOCATE = """\
from pathlib import Path
import time
n = 0
while not Path("{name}.stop").exists():
    n += 1
    x = torch.zeros(n % 50 << 18, device="cuda")
    time.sleep(0.02)"""
READINGS = f"""name => {PANEL}._front.all
    .find(({{host}}) => host.title.label === name).model.state.samples.length"""


@pytest.mark.cells("%load_ext nbmem")
def test_each_of_several_cards_is_shown(notebook, page):
    notebook.run(0)
    notebook.wait_link("live")
    sample = golden("sample")
    first, second = sample["cards"]
    notebook.push(sample, sample | {"cards": [first, second | {"allocated": 2**20}]})
    cards = [page.get_by_test_id(f"nbmem-card-{index}") for index in (0, 1)]
    cards[1].wait_for()
    for card, figures in zip(cards, (first, second | {"allocated": 2**20}), strict=True):
        for figure in ("allocated", "peak", "reserved", "process", "free"):
            shown = card.get_by_test_id(f"nbmem-{figure}")
            expected = "" if figures[figure] is None else str(figures[figure])
            expect(shown).to_have_attribute("data-bytes", expected)
    expect(cards[1].get_by_test_id("nbmem-process")).to_have_text("unknown")


@pytest.mark.cells(LOAD, ALLOCATE, new_process=True)  # they read each other's environment
def test_notebooks_that_run_at_once_are_each_followed_and_name_each_other(notebook, page, lab):
    notebook.run(0)
    notebook.run(1, wait=False)
    page.get_by_test_id("nbmem-card-0").wait_for()
    pid = lab.get("api/kernels")[0]["id"]
    lab.notebook(
        "second.ipynb",
        "import psutil, torch\n%load_ext nbmem\nfrom nbmem import virtual\n"
        "running = psutil.process_iter(['cmdline'])  # None of a zombie\n"
        f"(pid,) = [p.pid for p in running if '{pid}' in ' '.join(p.info['cmdline'] or [])]\n"
        "virtual.activate('L4', other_processes={pid: 3 << 30})",
        ALLOCATE.replace("{name}", "second.ipynb"),
    )
    notebook.command("docmanager:open", path="second.ipynb")
    notebook.wait_link("not-loaded")
    notebook.run(0)
    notebook.run(1, wait=False)
    kernels = page.get_by_test_id("nbmem-kernels")
    other = kernels.locator(f"[data-kernel='{notebook.name}']")
    other.get_by_text("3.00 GiB").wait_for()
    here = kernels.locator("tr[aria-current]")
    expect(here).to_have_attribute("data-kernel", "second.ipynb")
    expect(page.get_by_test_id("nbmem-others")).to_have_count(0)
    first = page.evaluate(READINGS, notebook.name)
    page.wait_for_function(f"n => ({READINGS})('{notebook.name}') > n + 3", arg=first)
    other.get_by_role("button").click()
    page.get_by_test_id("nbmem-running").get_by_text("In [2]").wait_for()
    lab.touch("second.ipynb.stop")
    lab.touch(f"{notebook.name}.stop")
    page.get_by_test_id("nbmem-cells").locator("[data-cell='2']").wait_for()


@pytest.mark.cells(LOAD, ALLOCATE)
def test_a_cell_that_runs_for_minutes_stays_live(notebook, page, lab):
    """The page's clock goes on by ten minutes: whatever polls or gives up would have done so."""
    page.clock.install()
    notebook.run(0)
    notebook.run(1, wait=False)
    page.get_by_test_id("nbmem-card-0").wait_for()
    asked = f"""() => {{
        window.asked = [];
        {KERNEL}.anyMessage.connect((_, {{msg, direction}}) =>
            direction === 'send' && window.asked.push(msg.header.msg_type));
    }}"""
    page.evaluate(asked)
    page.clock.fast_forward("10:00")
    notebook.watch_readings()
    page.wait_for_function("() => window.seen.size > 3")
    assert page.evaluate("() => window.asked") == [], "a busy kernel is asked nothing"
    expect(page.get_by_test_id("nbmem-running")).to_contain_text("In [2]")
    lab.touch(f"{notebook.name}.stop")
    page.get_by_test_id("nbmem-cells").locator("[data-cell='2']").wait_for()
