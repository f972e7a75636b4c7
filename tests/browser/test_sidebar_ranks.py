"""Ranks in the sidebar while a notebook's cell runs them."""

import pytest

from tests.browser.pages import PANEL, expect, golden, picture

FILE = """\
%%writefile train.py
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters())
while True:
    model(torch.randn(64 << rank, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    stop = torch.tensor(int(os.path.exists("{name}.enough")))
    dist.all_reduce(stop)
    if stop:
        break
"""
TORCHRUN = (
    "import sys\n"
    "!{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 "
    "-m nbmem run train.py --gpu H100 --save runs/today/"
)
WEIGHTS = 4 * 4 * (1024 * 1024 + 1024)


@pytest.mark.cells("%load_ext nbmem", FILE, TORCHRUN, name="ranks.ipynb")
def test_ranks_of_torchrun_are_live_in_a_notebook_that_has_no_torch(notebook, page, lab, pictures):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1)
    notebook.run(2, wait=False)
    ranks = page.get_by_test_id("nbmem-ranks")
    ranks.locator("[data-rank='1'][data-state=running]").get_by_text("step").wait_for(
        timeout=90_000
    )
    expect(page.get_by_test_id("nbmem-running")).to_have_text("In [3]: running")
    ranks.locator("tr[data-rank='0'] + tr [title='weights: 16.0 MiB']").wait_for(state="attached")
    if pictures is not None:
        notebook.command("application:toggle-left-area")
        notebook.drag_sidebar(360)
        for theme in ("Dark", "Light"):
            notebook.theme(f"JupyterLab {theme}")
            picture(page, pictures, f"sidebar-ranks-{theme.lower()}")
    lab.touch(f"{notebook.name}.enough")
    notebook.wait_run()
    page.get_by_text("no cell runs").wait_for()
    ranks.get_by_text("0 of 2 run").wait_for()
    expect(ranks.locator("[data-state=running]")).to_have_count(0)


@pytest.mark.cells("%load_ext nbmem")
def test_what_a_rank_says_is_text(notebook, page, pictures):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.push(golden("ranks_now"))
    ranks = page.get_by_test_id("nbmem-ranks")
    ranks.get_by_text("OutOfMemoryError: <b>out of memory</b>").wait_for()
    expect(ranks.get_by_text("and 2 more, with lower peaks")).to_be_visible()
    notebook.drag_sidebar(200)
    node = f"{PANEL}.node"
    assert page.evaluate(f"() => {node}.scrollWidth <= {node}.clientWidth")
    picture(page, pictures, "sidebar-ranks-narrow", page.locator("#nbmem-sidebar"))
