"""The sidebar after restarts, reloads and hostile messages."""

import pytest

from tests.browser.pages import KERNEL, LOAD, PANEL, Notebook, expect, golden, hostile

UNTIL_STOPPED = """\
from pathlib import Path
n = 0
while not Path("{name}.stop").exists():
    n += 1
    x = torch.zeros(n % 50 << 18, device="cuda")
    time.sleep(0.02)"""
FOLLOWED = f"{PANEL}._front.all.length"


@pytest.mark.cells(LOAD + "\nimport time", UNTIL_STOPPED)
def test_a_page_reloaded_in_the_middle_of_a_cell_is_live_before_its_end(notebook, page, lab):
    notebook.run(0)
    notebook.run(1, wait=False)
    page.get_by_test_id("nbmem-card-0").wait_for()
    page.reload()
    notebook.show_sidebar()
    notebook.wait_link("live")
    page.get_by_test_id("nbmem-card-0").wait_for()
    expect(page.get_by_test_id("nbmem-running")).to_contain_text("In [2]")
    lab.touch(f"{notebook.name}.stop")
    page.get_by_test_id("nbmem-cells").locator("[data-cell='2']").wait_for()
    page.get_by_test_id("nbmem-card-0").get_by_text("NVIDIA L4 (virtual)").wait_for()


@pytest.mark.cells(LOAD + "\nimport time", UNTIL_STOPPED)
def test_two_tabs_on_one_notebook_are_both_live(notebook, context, lab):
    notebook.run(0)
    notebook.run(1, wait=False)
    second = Notebook(context.new_page(), lab, notebook.name)
    second.open(wait=False)
    second.show_sidebar()
    second.page.get_by_test_id("nbmem-card-0").wait_for()
    lab.touch(f"{notebook.name}.stop")
    notebook.wait_run()
    for one in (notebook, second):
        one.page.get_by_test_id("nbmem-cells").locator("[data-cell='2']").wait_for()
    second.expect_bytes("peak", notebook.bytes_of("peak"))


@pytest.mark.oldest
@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')", new_process=True)
def test_a_restart_is_said_and_survived(notebook, page):
    notebook.run(0)
    notebook.run(1)
    page.get_by_test_id("nbmem-card-0").wait_for()
    notebook.restart()
    notebook.wait_link("not-loaded")
    expect(page.get_by_test_id("nbmem-card-0")).to_have_count(0)
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1)
    page.get_by_test_id("nbmem-card-0").wait_for()


@pytest.mark.cells("1 + 1")
def test_hostile_messages_and_other_versions_are_a_sentence_and_no_crash(notebook, page):
    notebook.wait_link("not-loaded")
    notebook.push(*[data for data in hostile() if isinstance(data, dict)])
    notebook.wait_link("other-version")
    marked = "<img src=x onerror='window.broken = 1'>"
    report = golden("last_report") | {"title": marked, "notes": [marked, "x" * 10_000]}
    notebook.push(golden("sample"), report, golden("cell_ended"))
    notebook.wait_link("live")
    page.get_by_test_id("nbmem-report").get_by_text(marked).first.wait_for()
    assert page.evaluate("() => window.broken") is None
    node = f"{PANEL}.node"
    fits = page.evaluate(f"() => {node}.scrollWidth <= {node}.clientWidth")
    assert fits, "a long text makes the panel wider"


@pytest.mark.cells("1 + 1")
@pytest.mark.parametrize(
    ("load", "link", "text"),
    [("lambda shell: None", "too-old", "Update it"), ("lambda shell: 1 / 0", "failed", "Zero")],
    ids=("silent", "failing"),
)
def test_why_loading_brought_nothing_stays_said(notebook, page, load, link, text):
    notebook.execute(
        "import sys, types; sys.modules['nbmem'] = types.ModuleType('nbmem'); "
        f"sys.modules['nbmem'].load_ipython_extension = {load}"
    )
    notebook.wait_link("not-loaded")
    page.evaluate(
        f"""() => {{
            const kernel = {KERNEL};
            const ask = kernel.requestCommInfo.bind(kernel);
            window.asked = 0;
            kernel.requestCommInfo = async options => {{
                const found = await ask(options);
                window.asked += 1;
                return found;
            }};
        }}"""
    )
    page.get_by_test_id("nbmem-load").click()
    page.wait_for_function("() => window.asked > 0")
    before = page.evaluate("() => window.asked")
    notebook.run(0)
    page.wait_for_function("before => window.asked > before", arg=before)
    notebook.wait_link(link)
    expect(page.get_by_test_id("nbmem-nothing")).to_contain_text(text)


@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')")
def test_the_sidebar_follows_the_front_notebook_and_releases_closed_ones(notebook, page, lab):
    notebook.run(0)
    notebook.wait_link("live")
    lab.notebook("other.ipynb", "1 + 1")
    notebook.command("docmanager:open", path="other.ipynb")
    notebook.wait_link("not-loaded")
    python = {"name": "python3"}
    notebook.command("console:create", activate=True, kernelPreference=python)
    page.wait_for_function(f"() => {FOLLOWED} === 3")
    notebook.command("docmanager:open", path=notebook.name)
    notebook.wait_link("live")
    page.evaluate("""() => [...window.jupyterapp.shell.widgets('main')]
        .filter(widget => widget.title.label !== window.jupyterapp.shell.currentWidget.title.label)
        .forEach(widget => widget.dispose())""")
    page.wait_for_function(f"() => {FOLLOWED} === 1")


@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')")
def test_an_idle_kernel_is_left_alone(notebook, lab, page):
    notebook.run(0)
    notebook.run(1)
    page.get_by_test_id("nbmem-card-0").wait_for()
    kernel = page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
    )
    activity = [lab.get(f"api/kernels/{kernel}")["last_activity"]]
    while len(activity) < 3 or activity[-1] != activity[-3]:  # quiet for two seconds
        assert len(activity) < 20, f"a kernel at rest is asked again and again: {activity}"
        page.evaluate("() => new Promise(resolve => setTimeout(resolve, 1000))")
        activity.append(lab.get(f"api/kernels/{kernel}")["last_activity"])
