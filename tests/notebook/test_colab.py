"""Colab: IPython 7.34, its own error display and no comm.

The shell's differences are those of googlecolab/colabtools at 3c07d776, google/colab/_shell.py. Its
front end draws each output in a frame of another origin: nothing of the page is there, a form that
it does not know is passed over, and a comm that none of its own code opened goes nowhere.
"""

import json
import sys

import pytest
from IPython import version_info

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
ipykernel = pytest.importorskip("ipykernel")
pytest.importorskip("torch")

from tests.views.test_html import KEPT_ATTRIBUTES, KEPT_TAGS, Reader

pytestmark = pytest.mark.skipif(version_info >= (8,), reason="Colab has IPython 7.34")
FORMS = {"text/plain", "text/html"}
"""What Colab draws of what nbmem sends."""
KERNEL = """\
import sys
from ipykernel import zmqshell
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from traitlets import Type


class Shell(zmqshell.ZMQInteractiveShell):
    def _showtraceback(self, etype, evalue, stb):
        content = {"traceback": stb, "ename": etype.__name__, "evalue": str(evalue)}
        hook = self.displayhook
        hook.session.send(hook.pub_socket, "error", content, hook.parent_header, ident=hook.topic)
        self._last_traceback = stb


class Kernel(IPythonKernel):
    shell_class = Type(Shell)


IPKernelApp.launch_instance(kernel_class=Kernel)
"""
CELLS = (
    "%load_ext nbmem\n%nbmem gpu T4\nimport torch",
    (
        "%%memtrace train\nkept = torch.ones(1 << 20, device='cuda')\n"
        "short = torch.ones(1 << 20, device='cuda')\ndel short"
    ),
    "torch.empty(20 << 30, dtype=torch.uint8, device='cuda')",
    "%%memtrace --max-peak 1MiB\nmore = torch.ones(1 << 20, device='cuda')",
    "%nbmem top",
    "%nbmem free kept more",
)


class FrontEnd(nbclient.NotebookClient):
    """Run cells and keep the kinds of messages that came."""

    def process_message(self, msg, cell, cell_index):
        self.kinds.add(msg["msg_type"])
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The cells' outputs, and the kinds of messages that came with them."""
    folder = tmp_path_factory.mktemp("colab")
    (folder / "launch.py").write_text(KERNEL)
    spec = folder / "kernels" / "colab" / "kernel.json"
    spec.parent.mkdir(parents=True)
    words = [sys.executable, str(folder / "launch.py"), "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": words, "display_name": "Colab", "language": "python"}))
    cells = [nbformat.v4.new_code_cell(code) for code in CELLS]
    book = nbformat.v4.new_notebook(cells=cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        client = FrontEnd(book, timeout=120, kernel_name="colab", allow_errors=True)
        client.kinds = set()
        client.execute()
    return [cell.outputs for cell in book.cells], client.kinds


def test_everything_is_there_in_a_form_that_colab_draws(shown):
    outputs, _ = shown
    kinds = [[output.output_type for output in cell] for cell in outputs]
    display = "display_data"
    assert kinds == [[display], [display], ["error", display], [display, "error"], *[[display]] * 2]
    for cell in outputs:
        for output in cell:
            if output.output_type == display:
                assert output.data.keys() >= FORMS


def test_a_frame_of_another_origin_needs_nothing_of_the_page(shown):
    outputs, _ = shown
    for output in (output for cell in outputs for output in cell if "data" in output):
        html = output.data["text/html"]
        read = Reader(html)
        assert {tag for tag, _ in read.tags} <= {*KEPT_TAGS, "pre", "code", "button"}
        assert {name for _, attributes in read.tags for name in attributes} <= KEPT_ATTRIBUTES
        assert all(
            image["src"].startswith("data:image/svg+xml;base64,") for image in read.all("img")
        )
        assert "var(--" not in html


def test_the_html_says_what_the_text_says(shown):
    outputs, _ = shown
    report = outputs[1][0].data
    for words in (
        ": 8.0 MiB allocated",
        "Tesla T4 (virtual)",
        "user tensors",
        "temporaries",
    ):
        assert words in report["text/plain"]
        assert words in " ".join(Reader(report["text/html"]).words)
    assert "free, at line 1 of the cell" in outputs[2][1].data["text/html"]
    assert outputs[3][1].evalue.startswith("In [4] peaked at 8.0 MiB allocated")
    assert "8.0 MiB" in outputs[5][0].data["text/plain"]


def test_no_comm_is_opened(shown):
    _, kinds = shown
    # What a page with the extension would take, where the kernel sends it.
    assert ("comm_msg" in kinds) == (ipykernel.version_info >= (6, 18))
    assert "comm_open" not in kinds


def test_nothing_is_said_of_the_sidebar_that_is_not_there(shown):
    outputs, _ = shown
    assert not [one for cell in outputs for one in cell if one.output_type == "stream"]
