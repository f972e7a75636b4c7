"""The sidebar beside a kernel on a real card."""

import json

import pytest

from tests.browser.pages import expect, picture

pytestmark = pytest.mark.gpu

LOAD = "%load_ext nbmem\nimport torch"
TRAIN = """\
%%memtrace --no-widget
from pathlib import Path
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
n = 0
while not Path("{name}.stop").exists():
    n += 1
    loss = model(torch.randn(n % 50 << 6, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()"""
SAID = """\
import json, os, pynvml
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({
    "name": torch.cuda.get_device_name(),
    "peak": torch.cuda.max_memory_allocated(),
    "allocated": torch.cuda.memory_allocated(),
    "reserved": torch.cuda.memory_reserved(),
    "processes": [
        one.usedGpuMemory
        for one in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(card)
        if one.pid == os.getpid()
    ],
}))"""


@pytest.mark.cells(LOAD, TRAIN, SAID, new_process=True)
def test_a_real_card_is_shown_live_and_as_it_is(notebook, page, lab, pictures):
    notebook.run(0)
    notebook.wait_link("live")
    notebook.run(1, wait=False)
    card = page.get_by_test_id("nbmem-card-0")
    card.wait_for()
    notebook.watch_readings()
    page.wait_for_function("() => window.seen.size > 3")
    page.get_by_test_id("nbmem-running").get_by_text("step").wait_for()
    assert page.locator("[data-part=weights]").first.is_visible()
    if pictures is not None:
        picture(page, pictures, "sidebar-card")
    lab.touch(f"{notebook.name}.stop")
    notebook.wait_run()
    verdict = page.get_by_test_id("nbmem-verdict")
    verdict.wait_for()
    notebook.run(2)
    text = json.loads(notebook.printed(2))
    expect(verdict).to_have_attribute("data-bytes", str(text["peak"]))
    card.get_by_text(text["name"]).wait_for()
    expect(card).not_to_contain_text("virtual")
    for figure in ("allocated", "reserved"):
        notebook.expect_bytes(figure, text[figure])
    if text["processes"]:  # in some containers NVML knows no process of ours
        (process,) = text["processes"]
        notebook.expect_bytes("process", process)
