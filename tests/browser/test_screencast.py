"""A leak, a click, freed: the moving picture of the README.

`NBMEM_PICTURES=out pytest tests/browser/test_screencast.py` writes `leak.webp`.
"""

import io

import pytest

from tests.browser.pages import expect

SETUP = """\
%load_ext nbmem
%nbmem gpu T4
import torch
from torch import nn"""
TRAIN = """\
%%memtrace
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
model = nn.TransformerEncoder(layer, 12).cuda()
checkpoint = {name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(checkpoint)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    batch = torch.randn(4, 256, 1024, device="cuda")
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()"""
POINTER = """([x, y]) => {
    const id = 'screencast-pointer';
    const pointer = document.getElementById(id) ?? document.createElement('div');
    pointer.id = id;
    pointer.style = `position:fixed;left:${x - 11}px;top:${y - 11}px;width:22px;height:22px;` +
        'border-radius:50%;background:rgba(210,60,40,0.55);border:2px solid #ffffff;' +
        'box-sizing:border-box;z-index:99999;pointer-events:none';
    document.body.append(pointer);
}"""


class Screencast:
    """Screenshots with their times; none are taken where no pictures are wanted."""

    def __init__(self, page, folder):
        self._page, self._folder = page, folder
        self._frames = []

    def take(self, seconds):
        if self._folder is not None:
            self._frames.append((self._page.screenshot(), seconds))

    def click(self, locator):
        """Show the pointer on an element, and click it."""
        if self._folder is not None:
            box = locator.bounding_box()
            corner = [box["x"] + box["width"] - 4, box["y"] + box["height"] - 2]
            self._page.evaluate(POINTER, corner)
            self.take(1.2)
            self._page.evaluate("() => document.getElementById('screencast-pointer').remove()")
        locator.click()

    def write(self, name):
        if self._folder is None:
            return
        from PIL import Image

        first, *others = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in self._frames]
        first.save(
            self._folder / f"{name}.webp",
            save_all=True,
            append_images=others,
            duration=[round(1000 * seconds) for _, seconds in self._frames],
            loop=0,
            quality=70,
            method=6,
        )


@pytest.mark.cells(SETUP, TRAIN, name="train.ipynb")
def test_a_forgotten_checkpoint_is_named_and_freed_by_a_click(notebook, page, pictures):
    cast = Screencast(page, pictures)
    notebook.command("application:toggle-left-area")
    notebook.drag_sidebar(380)
    notebook.run(0)
    cast.take(1.5)
    notebook.run(1)
    page.wait_for_selector("[data-testid=nbx-compact]")
    tip = page.get_by_test_id("nbmem-tips").locator("li[data-rule=checkpoint_kept]")
    tip.wait_for()
    cast.take(3)
    allocated = page.get_by_test_id("nbmem-allocated")
    before = int(allocated.get_attribute("data-bytes"))
    tip.scroll_into_view_if_needed()
    cast.take(2.5)
    button = tip.locator("button.nbmem-mod-main")
    text = button.inner_text()
    assert text.startswith("Free ")
    cast.click(button)
    tip.get_by_text("freed ").wait_for()
    expect(button).to_have_count(0)
    cast.take(4)
    cast.write("leak")
    freed = before - int(allocated.get_attribute("data-bytes"))
    assert abs(freed / 2**20 - float(text.split()[1])) < 0.1
