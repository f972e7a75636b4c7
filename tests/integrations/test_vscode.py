"""VS Code draws the outputs of a notebook, through code-server.

`make integrations` installs it (tools/vscode.py) and names its folder in NBMEM_VSCODE. Its notebook
renderer, its webview's policy and its choice among an output's forms are VS Code's own.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

VSCODE = os.environ.get("NBMEM_VSCODE")
CHROMIUM = os.environ.get("NBMEM_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(VSCODE is None, reason="`make integrations` brings VS Code"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
CELLS = (
    """\
%load_ext nbmem
%nbmem gpu T4
import torch
from torch import nn
model = nn.Sequential(nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())""",
    """\
%%memtrace train
for step in range(2):
    x = torch.randn(512, 1000, device='cuda')
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()""",
    "%nbmem history",
    "torch.empty(20 << 30, dtype=torch.uint8, device='cuda')",
)
SEEN = """() => {
  const ours = [...document.querySelectorAll(".output:not(.error)")];
  const all = (name) => ours.flatMap((output) => [...output.querySelectorAll(name)]);
  return {
    pictures: all("img").map((i) => [i.complete, i.naturalWidth, i.clientWidth]),
    remote: all("[src], [href]").map((e) => e.src || e.href).filter((a) => !a.startsWith("data:")),
    scripts: all("script").length,
    tables: all("table").length,
    wide: ours.filter((output) => output.scrollWidth > output.clientWidth + 1).length,
    text: ours.map((output) => output.innerText).join("\\n"),
  };
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an executed notebook."""
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("torch", reason="the notebook takes memory with torch")
    folder = tmp_path_factory.mktemp("opened")
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, allow_errors=True, timeout=300).execute()
    nbformat.write(notebook, folder / "shown.ipynb")
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start VS Code's server with trusted folders."""
    data = tmp_path_factory.mktemp("vscode")
    settings = data / "data" / "User" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        json.dumps(
            {
                "security.workspace.trust.enabled": False,
                "workbench.startupEditor": "none",
                "chat.disableAIFeatures": True,
            }
        )
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [os.environ.get("NBMEM_NODE", "node"), Path(VSCODE, "lib/vscode/out/server-main.js")]
    command += ["--host", "127.0.0.1", "--port", port, "--server-data-dir", data]
    command += ["--without-connection-token", "--accept-server-license-terms"]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        place = f"http://127.0.0.1:{port}"
        try:
            _wait_for(place, process)
            yield place
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # Node.js is a child where a wheel brings it


def _wait_for(place, process):
    for _ in range(600):
        assert process.poll() is None, "VS Code's server has ended"
        try:
            urllib.request.urlopen(place, timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("VS Code's server does not answer")


@pytest.fixture
def page():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": 1344, "height": 2400})
        page.set_default_timeout(90_000)
        yield page
        chromium.close()


def opened(page, server, folder):
    """Open the frame in which VS Code draws the outputs."""
    page.goto(f"{server}/?{urllib.parse.urlencode({'folder': str(folder)})}")
    item = page.get_by_role("treeitem", name="shown.ipynb")
    item.wait_for()
    editor = page.locator(".notebookOverlay")
    for _ in range(20):  # until the extension that reads notebooks is there, nothing opens
        item.dblclick()
        try:
            editor.wait_for(timeout=5_000)
        except Exception:  # noqa: BLE001 - Playwright's own, which is not imported here
            continue
        break
    outputs = page.frame_locator("iframe.webview").frame_locator("iframe")
    outputs.get_by_text("free, at In [4], line 1").wait_for()
    return next(frame for frame in page.frames if "fake.html" in frame.url)


def test_vs_code_draws_the_report_with_its_own_renderer(page, server, folder):
    refused, asked = [], []
    page.on("console", lambda said: refused.append(said.text) if "Refused" in said.text else None)
    page.on("request", lambda request: asked.append(request.url))
    frame = opened(page, server, folder)
    seen = frame.evaluate(SEEN)
    forms = page.locator(".output-inner-container").evaluate_all(
        "all => all.map(one => one.getAttribute('output-mime-type'))"
    )
    assert forms.count("text/html") == 4
    assert set(forms) == {"text/html", "application/vnd.code.notebook.error"}
    assert re.search(r": \d+\.\d MiB allocated, \d+\.\d MiB reserved", seen["text"])
    assert "No renderer could be found" not in seen["text"]
    assert len(seen["pictures"]) == 2
    assert all(whole and width and shown for whole, width, shown in seen["pictures"])
    assert seen["tables"] >= 5
    assert (seen["remote"], seen["scripts"], seen["wide"]) == ([], 0, 0)
    assert refused == []
    hosts = {urllib.parse.urlsplit(url).hostname for url in asked}
    assert {host for host in hosts if host and not host.endswith("vscode-cdn.net")} <= {
        "127.0.0.1",
        "open-vsx.org",  # its own gallery of extensions
    }
