"""The sidebar changes nothing of JupyterLab and leaves nothing behind."""

import pytest

from tests.browser.pages import KERNEL, LOAD, PANEL, expect

BLOCK = """\
from pathlib import Path
import sys, time
n = 0
while not Path("{name}.stop").exists():
    n += 1
    if "torch" in sys.modules:
        x = sys.modules["torch"].zeros(n % 50 << 18, device="cuda")
    if n % 50 == 0:
        print("turn", n)
    time.sleep(0.02)"""
RUN_AT_ONCE = f"""i => {{
    const kernel = {KERNEL};
    const book = window.jupyterapp.shell.currentWidget.content;
    kernel.anyMessage.connect(function begin(_, {{msg, direction}}) {{
        if (direction === 'send' && /^comm_|subshell/.test(msg.header.msg_type)) {{
            kernel.anyMessage.disconnect(begin);
            book.activeCellIndex = i;
            window.cellRun = window.jupyterapp.commands.execute('notebook:run-cell');
        }}
    }});
}}"""
"""Run a cell as soon as the page asks the kernel for something."""
STATUSES = f"""() => {{
    window.statuses = [{KERNEL}.status];
    {KERNEL}.statusChanged.connect((_, status) => window.statuses.push(status));
}}"""
DRAW_TWICE = f"""async () => {{
    for (let i = 0; i < 2; i++) {{
        {PANEL}.update();
        await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
    }}
}}"""
"""React keeps what it drew before beside what it draws now."""
COMMS = """\
import comm
print([one.target_name for one in comm.get_comm_manager().comms.values()])"""


def kernel_statuses_during_the_cell(notebook, index):
    """Collect JupyterLab's kernel statuses until well into the cell."""
    page = notebook.page
    output = page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-OutputArea-output")
    output.get_by_text("turn 50").wait_for()
    page.evaluate(STATUSES)
    turns = notebook.printed(index).count("turn") + 2
    output.get_by_text(f"turn {50 * turns}").wait_for()
    page.locator("#jp-main-statusbar").get_by_text("| Busy").wait_for()
    return page.evaluate("() => window.statuses")


@pytest.mark.cells("1 + 1", BLOCK, LOAD, BLOCK.replace("stop", "second.stop"))
def test_a_kernel_is_shown_busy_for_as_long_as_its_cell_runs(notebook, page, lab):
    """A request's own `idle` would be taken for the cell's: JupyterLab's #10701.

    Up to 4.4 its own debugger, which asks when a notebook opens, is taken for the cell.
    """
    notebook.run(0)
    notebook.run(1, wait=False)
    without = kernel_statuses_during_the_cell(notebook, 1)
    lab.touch(f"{notebook.name}.stop")
    notebook.wait_run()
    notebook.wait_link("not-loaded")
    notebook.run(2, wait=False)
    page.evaluate(RUN_AT_ONCE, 3)
    page.get_by_test_id("nbmem-card-0").wait_for()
    assert kernel_statuses_during_the_cell(notebook, 3) == without == ["busy"]
    lab.touch(f"{notebook.name}.second.stop")
    notebook.wait_run()
    page.get_by_test_id("nbmem-card-0").get_by_text("NVIDIA L4 (virtual)").wait_for()


@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')", COMMS)
def test_what_is_closed_leaves_nothing_behind(notebook, page, lab):
    notebook.run(0)
    notebook.run(1)
    page.get_by_test_id("nbmem-card-0").get_by_text("NVIDIA L4 (virtual)").wait_for()
    page.locator(".nbmem-Badge").wait_for()
    page.evaluate(f"""() => {{
        window.model = new WeakRef({PANEL}._front.current.model);
        window.jupyterapp.shell.currentWidget.dispose();
    }}""")
    page.get_by_test_id("nbmem-nothing").get_by_text("Open a notebook").wait_for()
    page.evaluate(DRAW_TWICE)
    page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    held = page.evaluate("() => window.model.deref() !== undefined")
    assert not held, "a signal, a timer or a comm still leads to the model"

    notebook.command("docmanager:open", path=notebook.name)
    page.get_by_test_id("nbmem-card-0").get_by_text("NVIDIA L4 (virtual)").wait_for()
    notebook.run(2)
    assert notebook.printed(2) == "['nbmem', 'nbmem.rpc']\n", "the closed page's comm is closed"

    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    notebook.wait_link("no-kernel")
    assert lab.get("api/kernels") == []
    page.evaluate(f"() => {PANEL}.dispose()")
    assert not page.evaluate("() => window.jupyterapp.commands.hasCommand('nbmem:load')")
    expect(page.locator(".nbmem-Badge")).to_have_count(0)
