"""A real kernel's outputs, as a notebook saves them."""

import re
import time

import pytest
from IPython import version_info

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

from jupyter_client import BlockingKernelClient
from jupyter_core.utils import run_sync

LOAD = "%load_ext nbmem\n%nbmem gpu L4\nimport torch"


RESET = """\
if "nbmem" in get_ipython().extension_manager.loaded:
    get_ipython().run_line_magic("unload_ext", "nbmem")
get_ipython().reset(new_session=True)"""


class Kernel:
    """A kernel that runs notebooks one after the other."""

    def __init__(self):
        self._client = nbclient.NotebookClient(_notebook(), timeout=120, kernel_name="python3")
        self.run()

    def run(self, *cells, **options):
        """Return the outputs of these cells, and the failure that ended them."""
        book = self._client.nb = _notebook(*cells)
        failed = None
        try:
            self._client.execute(**{"cleanup_kc": False, **options})
        except nbclient.exceptions.CellExecutionError as err:
            failed = err
        return [cell.outputs for cell in book.cells if "outputs" in cell], failed

    def reset(self):
        """Unload nbmem and forget all variables and cells."""
        execute = run_sync(self._client.kc.execute_interactive)
        reply = execute(RESET, silent=True, timeout=60)
        assert reply["content"]["status"] == "ok"

    def connect(self):
        """Return a client that gets each message as it comes."""
        client = BlockingKernelClient(connection_file=self._client.km.connection_file)
        client.load_connection_file()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return client

    def interrupt(self):
        """Interrupt the cell that runs."""
        run_sync(self._client.km.interrupt_kernel)()

    def close(self):
        """End the process."""
        self.run(cleanup_kc=True)


def _notebook(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


@pytest.fixture(scope="module")
def kernels():
    """The kernel that the tests share; none before the first and after a failure."""
    running = []
    yield running
    for kernel in running:
        kernel.close()


@pytest.fixture
def kernel(kernels, request):
    """A kernel as after its start, but for the modules that it has imported."""
    if not kernels:
        kernels.append(Kernel())
    failures = request.session.testsfailed
    yield kernels[0]
    if request.session.testsfailed == failures:
        kernels[0].reset()
    else:
        kernels.pop().close()


@pytest.fixture
def notebook(kernel):
    """Run cells in the shared kernel; return the outputs, also of a failure."""
    return kernel.run


@pytest.fixture
def new_kernel():
    """A kernel that has imported nothing."""
    kernel = Kernel()
    yield kernel
    kernel.close()


def _reports(outputs):
    return [o.data for o in outputs if o.output_type == "display_data" and "text/html" in o.data]


def test_a_report_is_saved_as_text_and_as_html_of_its_own(notebook):
    outputs, failed = notebook(LOAD, "%%memtrace\nkept = torch.zeros(1 << 20, device='cuda')")
    assert failed is None
    assert len(outputs[1]) == 1, "it has taken the progress line's place"
    (report,) = _reports(outputs[1])
    assert "NVIDIA L4" in report["text/plain"]
    assert "NVIDIA L4" in report["text/html"]
    assert "<script" not in report["text/html"]
    assert "http" not in report["text/html"].replace("http://www.w3.org/", "")


def test_a_failing_cell_stops_the_notebook_and_still_shows_its_report(notebook):
    outputs, failed = notebook(
        LOAD,
        "%%memtrace\nkept = torch.zeros(1 << 20, device='cuda')\nraise ValueError('mine')",
        "print('never')",
    )
    assert failed is not None
    assert failed.ename == "ValueError"
    (error,) = [o for o in outputs[1] if o.output_type == "error"]
    assert "----> 3 raise ValueError" in _plain(error.traceback)
    assert "nbmem" not in _plain(error.traceback)
    assert len(_reports(outputs[1])) == 1
    assert outputs[2] == []


def test_out_of_memory_in_the_cell_is_the_users_error_with_a_report(notebook):
    outputs, failed = notebook(
        LOAD,
        "%%memtrace\nkept = torch.zeros(1 << 28, device='cuda')\n"
        "more = torch.empty(30 << 30, dtype=torch.uint8, device='cuda')",
    )
    assert failed.ename == "OutOfMemoryError"
    report, why = [shown["text/plain"] for shown in _reports(outputs[1])]
    assert report.startswith("Peak 1.")
    assert " until memory ran out; " in report.splitlines()[0]
    assert ": 1.00 GiB allocated" in report
    old = version_info < (8,)  # keeps no list of the cells that it compiled
    where = "line 3 of the cell" if old else "In [2], line 3"
    assert why.startswith("Ran out of memory: 30.00 GiB asked for, ")
    assert f" free, at {where}, " in why
    assert "1.00 GiB" in why


def test_a_peak_above_the_limit_fails_the_notebook(notebook):
    outputs, failed = notebook(
        LOAD, "%%memtrace --max-peak 1MiB\nkept = torch.zeros(1 << 20, device='cuda')", "print(1)"
    )
    assert failed.ename == "MemoryPeakExceededError"
    assert "above the limit of 1.0 MiB" in failed.evalue
    assert len(_reports(outputs[1])) == 1
    assert outputs[2] == []


def test_await_in_a_traced_cell(notebook):
    outputs, failed = notebook(
        LOAD,
        "%%memtrace\nimport asyncio\nawait asyncio.sleep(0.01)\n"
        "kept = torch.zeros(1 << 20, device='cuda')\nprint('awaited')",
    )
    assert failed is None
    assert [o.text for o in outputs[1] if o.output_type == "stream"] == ["awaited\n"]
    assert len(_reports(outputs[1])) == 1


def test_capture_keeps_the_cells_output_and_not_the_report(notebook):
    outputs, failed = notebook(
        LOAD,
        "%%memtrace\n%%capture held\nkept = torch.zeros(1 << 20, device='cuda')\nprint('hidden')",
        "print(held.stdout)",
    )
    assert failed is None
    assert [o.output_type for o in outputs[1]] == ["display_data"]
    assert outputs[2][0].text.startswith("hidden")


def test_the_users_own_peak_counter_is_never_reset(notebook):
    outputs, failed = notebook(
        LOAD,
        "big = torch.zeros(1 << 24, device='cuda'); del big",
        "%%memtrace\nsmall = torch.zeros(1 << 10, device='cuda')",
        "print(torch.cuda.max_memory_allocated())",
    )
    assert failed is None
    assert outputs[3][0].text == f"{(1 << 26)}\n"


def test_the_history_knows_every_cell_that_touched_the_card(notebook):
    outputs, failed = notebook(
        LOAD,
        "a = torch.zeros(1 << 20, device='cuda')",
        "%%memtrace second\nb = torch.zeros(1 << 20, device='cuda')",
        "%nbmem history",
    )
    assert failed is None
    (table,) = _reports(outputs[3])
    rows = table["text/plain"].splitlines()
    assert rows[1].split()[:1] == ["[2]"]
    assert "+4.0 MiB" in rows[2]
    assert rows[3].split() == ["[3]", "second"]


def test_unloading_takes_the_virtual_card_out(notebook):
    outputs, failed = notebook(
        "import torch; before = torch.cuda.is_available, torch.zeros",
        LOAD,
        "print(torch.cuda.is_available())",
        "%unload_ext nbmem",
        "print((torch.cuda.is_available, torch.zeros) == before)",
    )
    assert failed is None
    assert outputs[2][0].text == outputs[4][0].text == "True\n"


def test_reloading_leaves_the_card_and_its_tensors(notebook):
    outputs, failed = notebook(
        "import torch; print(torch.cuda.is_available())",
        LOAD,
        "kept = torch.zeros(1 << 20, device='cuda')",
        "%reload_ext nbmem",
        "%%memtrace\nmore = kept + 1",
        "%unload_ext nbmem",
        "print(torch.cuda.is_available())",
    )
    assert failed is None
    assert len(_reports(outputs[4])) == 1
    assert outputs[6][0].text == outputs[0][0].text


def test_a_thread_that_allocates_is_part_of_the_cell(notebook):
    outputs, failed = notebook(
        LOAD,
        "%%memtrace\nimport threading\nkept = []\n"
        "work = lambda: kept.append(torch.zeros(1 << 20, device='cuda'))\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "[t.start() for t in threads]\n[t.join() for t in threads]\nNone",
    )
    assert failed is None
    (report,) = _reports(outputs[1])
    assert ": 16.0 MiB allocated" in report["text/plain"]


def _plain(traceback):
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))


# Short naps in the second: ipykernel itself hears an interrupt only when its loop wakes up.
@pytest.mark.parametrize(
    "wait",
    ["time.sleep(60)", "import asyncio\nfor _ in range(600):\n    await asyncio.sleep(0.1)"],
    ids=["sync", "await"],
)
def test_an_interrupted_cell_shows_its_report(wait, kernel):
    client = kernel.connect()
    try:
        client.execute_interactive(LOAD, timeout=120)
        message = client.execute(
            "%%memtrace\nimport time\nkept = torch.zeros(1 << 20, device='cuda')\n"
            f"print('waiting', flush=True)\n{wait}"
        )
        seen = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            got = client.get_iopub_msg(timeout=60)
            if got["parent_header"].get("msg_id") != message:
                continue
            seen.append((got["msg_type"], got["content"]))
            if got["msg_type"] == "stream" and "waiting" in got["content"]["text"]:
                kernel.interrupt()
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                break
        kinds = [kind for kind, _ in seen]
        assert "error" in kinds
        shown = [c["data"]["text/plain"] for _, c in seen if "transient" in c]
        assert len([text for text in shown if "NVIDIA L4" in text]) == 1
        reply = client.execute_interactive("assert kept is not None", timeout=60)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()


def test_loading_into_a_kernel_imports_neither_numpy_nor_a_report(new_kernel):
    look = "import sys\nprint([m for m in LATER if m in sys.modules])"
    later = "LATER = ['numpy', 'nbmem.report.model', 'nbmem.estimates', 'nbmem.core.session.oom']"
    outputs, failed = new_kernel.run(f"{later}\n%load_ext nbmem", look, f"import numpy\n{look}")
    assert failed is None
    assert outputs[1][0].text == "[]\n"
    assert outputs[2][0].text == "['numpy']\n"  # the list would show one
