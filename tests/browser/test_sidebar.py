"""The sidebar beside a notebook in JupyterLab, with a real kernel on a virtual card."""

import re

import pytest

from tests.browser.pages import LOAD, PANEL, expect, expect_own_colours, golden, picture

TRAIN = """\
%%memtrace
layers = [torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True) for _ in range(12)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    batch = torch.randn(4 + 2 * (step % 3), 512, 1024, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated())"""


@pytest.mark.oldest
@pytest.mark.cells(LOAD, TRAIN, name="train.ipynb")
def test_the_numbers_move_while_a_training_cell_runs(notebook, page):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1, wait=False)
    page.get_by_test_id("nbmem-card-0").wait_for()
    notebook.watch_readings()
    page.wait_for_function("() => window.seen.size > 5")
    page.get_by_test_id("nbmem-running").get_by_text("step").wait_for()
    page.locator("[data-part=weights]").first.wait_for()
    notebook.wait_run()
    python = int(notebook.printed(1))
    page.get_by_test_id("nbmem-report").wait_for()
    verdict = page.get_by_test_id("nbmem-verdict")
    assert int(verdict.get_attribute("data-bytes")) == python
    in_cells = page.get_by_test_id("nbmem-cells").locator("[data-cell='2'] [data-bytes]")
    assert int(in_cells.get_attribute("data-bytes")) == python
    assert notebook.bytes_of("peak") == python
    # JupyterLab's own panel of what runs has it, too.
    process = page.get_by_test_id("nbmem-process").inner_text()
    page.evaluate("() => window.jupyterapp.shell.activateById('jp-running-sessions')")
    running = page.locator("#jp-running-sessions")
    running.get_by_text("GPU memory", exact=True).wait_for()
    running.get_by_text(process, exact=True).wait_for()


@pytest.mark.cells(
    "%load_ext nbmem\n%nbmem gpu L4\nimport torch",
    TRAIN.replace("40", "400"),
    name="train.ipynb",
)
def test_pictures_for_the_readme(notebook, page, pictures):
    if pictures is None:
        pytest.skip("no folder for pictures is named in NBMEM_PICTURES")
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1, wait=False)
    page.get_by_test_id("nbmem-card-0").wait_for()
    notebook.command("application:toggle-left-area")
    notebook.drag_sidebar(360)
    notebook.watch_readings()
    page.wait_for_function("() => window.seen.size > 40")
    for theme in ("Dark", "Light"):
        notebook.theme(f"JupyterLab {theme}")
        picture(page, pictures, f"sidebar-{theme.lower()}")
    notebook.command("notebook:interrupt-kernel")


@pytest.mark.cells(LOAD, "x = torch.zeros(2**22, device='cuda')")
def test_a_narrow_panel_shows_all_of_it(notebook, page, pictures):
    notebook.run(0)
    notebook.run(1)
    notebook.push(golden("sample"), golden("last_report"), golden("processes"))
    page.get_by_test_id("nbmem-others").wait_for()
    notebook.drag_sidebar(200)
    panel = page.locator("#nbmem-sidebar")
    expect_own_colours(page, panel)
    node = f"{PANEL}.node"
    assert page.evaluate(f"() => {node}.scrollWidth <= {node}.clientWidth")
    page.set_viewport_size({"width": 1344, "height": 1500})
    picture(page, pictures, "sidebar-narrow", panel)


GAPS = """() => {
    const boxes = [...document.querySelectorAll('.nbmem-Figures > div')]
        .map(box => box.getBoundingClientRect());
    return boxes.slice(1).map((box, i) => [box, boxes[i]])
        .filter(([box, before]) => box.top === before.top)
        .map(([box, before]) => box.left - before.right);
}"""


@pytest.mark.cells(
    "%load_ext nbmem\nimport torch",
    "from nbmem import virtual\nvirtual.activate('L4')\n"
    "x = torch.zeros(1020 << 18, device='cuda'); del x",
    "y = torch.zeros(862 << 18, device='cuda'); del y",
    "%nbmem off",
    "y = torch.zeros(700 << 18, device='cuda')\nimport time; time.sleep(1); del y",
)
def test_a_peak_that_was_not_counted_is_the_least(notebook, page, pictures):
    status, badges = page.get_by_test_id("nbmem-status"), page.locator(".nbmem-Badge")
    rows = page.get_by_test_id("nbmem-cells")
    notebook.run(0)
    notebook.run(1)  # nbmem was not told of the card: a reset could have been missed
    expect(badges).to_have_text(["peak ≥ 1,020.0 MiB"], use_inner_text=True)
    expect(status).to_have_text("GPU 0 B of 22.49 GiB, peak ≥ 1,020.0 MiB", use_inner_text=True)
    rows.locator("[data-cell='2']").get_by_text("≥ 1,020.0 MiB").wait_for()
    for width in (200, 250, 300, 360, 460):
        notebook.drag_sidebar(width)
        assert min(page.evaluate(GAPS)) >= 12
    picture(page, pictures, "peak-least-light")
    notebook.run(2)
    expect(badges).to_have_text(["peak ≥ 1,020.0 MiB", "peak 862.0 MiB"], use_inner_text=True)
    expect(status).to_have_text("GPU 0 B of 22.49 GiB, peak 862.0 MiB", use_inner_text=True)
    picture(page, pictures, "peak-exact-light")
    notebook.theme("JupyterLab Dark")
    picture(page, pictures, "peak-exact-dark")
    notebook.run(3)
    notebook.run(4)
    expect(status).to_have_text(re.compile("peak ≥ 700.0 MiB$"), use_inner_text=True)
    picture(page, pictures, "peak-least-dark")


@pytest.mark.cells("%load_ext nbmem\n%nbmem gpu T4\nimport torch", "%nbmem off", "%nbmem gpu L4")
def test_a_virtual_card_is_shown_before_anything_is_on_it(notebook, page):
    notebook.run(0)
    status, running = page.get_by_test_id("nbmem-status"), page.locator(".nbmem-Running")
    expect(status).to_have_text("GPU 0 B of 15.00 GiB, peak 0 B", use_inner_text=True)
    expect(running).to_have_text("no cell runs")
    page.get_by_test_id("nbmem-card-0").get_by_text("Tesla T4 (virtual)").wait_for()
    expect(page.get_by_test_id("nbmem-line")).to_have_count(0)
    notebook.run(1)
    notebook.run(2)
    expect(status).to_have_text("GPU 0 B of 22.49 GiB, peak 0 B", use_inner_text=True)


@pytest.mark.cells("1 + 1")
def test_without_a_gpu_a_virtual_card_is_chosen_from_a_menu(notebook, page):
    notebook.wait_link("not-loaded")
    page.get_by_test_id("nbmem-load").click()
    notebook.wait_link("live")
    menu = page.get_by_test_id("nbmem-virtual-card")
    menu.select_option("L4")
    page.get_by_test_id("nbmem-said").get_by_text("virtual NVIDIA L4").wait_for()
    page.wait_for_function(
        "() => document.querySelector('[data-testid=nbmem-virtual-card]').value === 'L4'"
    )
    menu.select_option("off")
    page.get_by_test_id("nbmem-said").get_by_text("is out").wait_for()


@pytest.mark.oldest
@pytest.mark.cells(LOAD, "x = torch.zeros(2**22, device='cuda')\nprint(x.nbytes)", "1 + 1")
def test_a_cell_that_has_run_has_a_row_and_a_badge(notebook, page):
    notebook.run(0)
    notebook.run(1)
    row = page.get_by_test_id("nbmem-cells").locator("[data-cell='2']")
    row.get_by_text("+16.0 MiB").wait_for()
    badge = page.locator(".nbmem-Badge")
    expect(badge).to_have_text("peak 16.0 MiB · kept +16.0 MiB", use_inner_text=True)
    status = page.get_by_test_id("nbmem-status")
    expect(status).to_have_text("GPU 16.0 MiB of 22.49 GiB, peak 16.0 MiB", use_inner_text=True)
    text = re.compile(r"^NVIDIA L4 \(virtual\): 16,777,216 bytes of ")
    expect(status).to_have_attribute("title", text)
    expect(page.get_by_test_id("nbmem-line-peak")).to_have_count(1)
    notebook.command("application:toggle-right-area")
    status.click()
    page.get_by_test_id("nbmem-sidebar").wait_for()
    active = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    notebook.select(2)
    row.get_by_role("button").click()
    page.wait_for_function(f"() => ({active})() === 1")
    notebook.command("nbmem:toggle-badges")
    badge.wait_for(state="detached")
    notebook.command("nbmem:toggle-badges")
    badge.wait_for()


EXPECT = """\
from nbmem.estimates.runs import worker_processes as processes
expected = []
processes.prepare = lambda: expected.append(True)"""


@pytest.mark.oldest
@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')", "print(expected)")
def test_a_command_of_the_palette_traces_the_cell(notebook, page):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.select(1)
    notebook.command("apputils:activate-command-palette")
    page.locator(".lm-CommandPalette-input").fill("Trace This Cell")
    page.locator(".lm-CommandPalette-item[data-command='nbmem:trace-cell']").click()
    page.get_by_test_id("nbmem-report").wait_for()
    assert notebook.sources()[1].startswith("%%memtrace\n")
    expect(page.get_by_test_id("nbmem-cells")).to_contain_text("traced")
    notebook.execute(EXPECT)
    notebook.select(1)
    for line in ("%nbmem fit", "%%nbmem fit", "%%nbmem plan"):  # told once, and a kernel that rests
        page.evaluate(
            """line => window.jupyterapp.shell.currentWidget.content.activeCell.model
                .sharedModel.setSource(line)""",
            line,
        )
    notebook.run(2)
    assert notebook.printed(2) == "[True]\n"


@pytest.mark.cells(LOAD, "x = torch.zeros(2**25, device='cuda')\ndel x")
def test_a_button_of_the_toolbar_frees_the_cache(notebook, page):
    notebook.run(0)
    notebook.run(1)
    page.wait_for_function(
        "() => document.querySelector('[data-testid=nbmem-reserved]')?.dataset.bytes > 1e8"
    )
    page.locator("[data-jp-item-name=nbmem-free]").get_by_role("button").click()
    page.locator(".Toastify__toast").wait_for()
    expect(page.get_by_test_id("nbmem-reserved")).to_have_attribute("data-bytes", "0")


@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')")
def test_a_hidden_panel_draws_nothing(notebook, page):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.command("application:toggle-right-area")
    before = page.evaluate(f"() => {PANEL}.drawn")
    notebook.run(1)
    notebook.wait_idle()
    assert page.evaluate(f"() => {PANEL}.drawn") == before
    notebook.show_sidebar()
    page.get_by_test_id("nbmem-card-0").wait_for()


@pytest.mark.cells(LOAD, "x = torch.zeros(2**20, device='cuda')")
def test_a_keyboard_and_a_screen_reader_find_everything(notebook, page):
    notebook.run(0)
    notebook.run(1)
    notebook.push(golden("last_report"))
    panel = page.locator("#nbmem-sidebar")
    page.get_by_test_id("nbmem-report").wait_for()
    for control in panel.locator("button, select, summary").all():
        assert control.evaluate("node => node.tabIndex") == 0
        assert control.evaluate(
            "node => (node.innerText || node.ariaLabel || node.labels?.[0]?.innerText).trim()"
        )
    for chart in panel.locator("[role=img]").all():
        assert chart.get_attribute("aria-label")
    page.get_by_text("Show as a table").focus()
    page.keyboard.press("Enter")
    page.get_by_test_id("nbmem-readings").locator("tbody tr").first.wait_for()
