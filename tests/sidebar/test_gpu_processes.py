"""Other processes by name, from the driver, psutil and Jupyter."""

import json
import os
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import psutil
import pytest

from nbmem.api.live_tensors import in_use_now
from nbmem.capture.processes import gpu_processes, jupyter_kernels, jupyter_servers
from nbmem.core.files import kernel_status
from nbmem.core.gpu_processes import GpuProcess, KernelStatus, OccupiedCard
from nbmem.core.units import GIB, MIB
from nbmem.frontends.cli import main
from nbmem.views.gpu_processes import render_gpu_processes
from tests.faults.fake_nvml import OTHER, OTHER_PID, FakeNvml

KERNEL = "0f2d9a52-3c0e-4ac0-9f2b-5c1f8b7e4a11"
TELLS = KernelStatus(
    cell="In [12]", held=(("weights", 2 * GIB),), allocated=3 * GIB, reserved=4 * GIB
)


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def kernel_process():
    """Start an idle process that looks like a Jupyter kernel."""
    wait = "import sys; sys.stdin.read()"
    line = [sys.executable, "-c", wait, "-f", f"/run/kernel-{KERNEL}.json"]
    with subprocess.Popen(line, stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


class FakeServer(BaseHTTPRequestHandler):
    """A Jupyter server of one session that records requests."""

    token = "secret"

    def do_GET(self):
        self._answer(self.path == "/lab/api/sessions", [
            {"path": "work/train.ipynb", "kernel": {"id": KERNEL, "execution_state": "busy"}}
        ])  # fmt: skip

    def do_DELETE(self):
        threading.Event().wait(self.server.takes_s)  # a real one waits for the kernel's end
        self._answer(self.path == f"/lab/api/kernels/{KERNEL}", {})

    def _answer(self, known, form):
        self.server.asked.append((self.command, self.path))
        right = self.headers.get("Authorization") == f"token {self.token}"
        self.send_response(200 if known and right else 403)
        self.end_headers()
        self.wfile.write(json.dumps(form).encode() if known and right else b"")

    def log_message(self, *_args):
        pass


@pytest.fixture
def server(tmp_path):
    found = HTTPServer(("127.0.0.1", 0), FakeServer)
    found.asked, found.takes_s = [], 0.0
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{found.server_port}/lab/"
    for name, form in {
        "jpserver-1.json": {"url": address, "token": FakeServer.token},
        "jpserver-2.json": {"url": "http://192.0.2.1/", "token": "for nobody"},
        "nbserver-3.json": [],
    }.items():
        (tmp_path / name).write_text(json.dumps(form))
    yield found
    found.shutdown()
    found.server_close()


def test_a_kernel_has_its_notebooks_name_and_tells_what_it_holds(server, kernel_process):
    process = psutil.Process(kernel_process.pid)
    place = kernel_status.status_folder() / f"{process.pid}.json"
    kernel_status.write_status(TELLS, began=0.0)
    raw = json.loads((kernel_status.status_folder() / f"{os.getpid()}.json").read_text())
    place.write_text(json.dumps(raw | {"pid": process.pid, "began": process.create_time()}))
    found = gpu_processes.describe_process(process.pid, OTHER, jupyter_servers.kernels())
    assert (found.notebook, found.busy, found.kernel) == ("work/train.ipynb", True, KERNEL)
    assert found.own
    assert found.status == TELLS
    assert server.asked == [("GET", "/lab/api/sessions")]


def test_a_server_elsewhere_is_not_asked():
    assert jupyter_servers._is_here("http://127.0.0.1:8888/")
    assert jupyter_servers._is_here("https://[::1]:8888/")
    assert jupyter_servers._is_here("http://localhost:8888/")
    assert not jupyter_servers._is_here("http://192.0.2.1/")
    assert not jupyter_servers._is_here("http://localhost.example.org/")
    assert not jupyter_servers._is_here("file:///etc/passwd")


def test_a_file_is_this_users_alone_and_goes():
    kernel_status.write_status(TELLS, began=psutil.Process().create_time())
    place = kernel_status.status_folder() / f"{os.getpid()}.json"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(kernel_status.status_folder().stat().st_mode) == 0o700
    assert kernel_status.read_status(os.getpid(), began=psutil.Process().create_time()) == TELLS
    assert [file.name for file in kernel_status.status_folder().iterdir()] == [place.name]
    kernel_status.remove_status()
    assert not place.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1, "began": 1}', "\x00", '{"pid": "x"'])
def test_a_file_of_anything_says_nothing(text):
    (kernel_status.status_folder() / f"{os.getpid()}.json").write_text(text)
    assert kernel_status.read_status(os.getpid(), began=1.0) is None


def test_a_status_file_of_an_earlier_process_id_is_ignored():
    kernel_status.write_status(TELLS, began=psutil.Process().create_time() - 60)
    assert kernel_status.read_status(os.getpid(), began=psutil.Process().create_time()) is None


def test_a_folder_of_another_user_is_not_used():
    kernel_status.status_folder().chmod(0o777)
    assert kernel_status.status_folder() is None
    kernel_status.write_status(TELLS, began=0.0)
    assert kernel_status.read_status(os.getpid(), began=0.0) is None


def test_every_card_is_read_with_its_processes(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    (card,) = gpu_processes.cards_now(kernels={})
    mine, other = card.neighbours
    assert (mine.pid, mine.own) == (os.getpid(), True)
    assert (other.pid, other.used, other.gone) == (OTHER_PID, OTHER, True)
    text = in_use_now()
    assert "(this process)" in text
    assert "no such process" in text
    assert "it has ended and the driver still holds its memory" in text


def test_a_driver_that_is_not_there_is_a_sentence(monkeypatch):
    library = FakeNvml()

    def fails():
        raise library.NVMLError("NVML Shared Library Not Found")

    library.misbehave("nvmlInit", fails)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert in_use_now() == (
        "NVML cannot be read (NVML Shared Library Not Found): no card of NVIDIA's is seen here. "
        "Check that nvidia-smi runs in this environment."
    )


def test_what_cannot_be_known_is_one_sentence_each():
    mps = GpuProcess(pid=7, used=30 * MIB, user="root", command="nvidia-cuda-mps-server")
    text = render_gpu_processes((
        OccupiedCard(index=0, name="A", total=80 * GIB, used=9 * GIB, neighbours=(mps,)),
        OccupiedCard(index=1, name="B", total=80 * GIB, used=9 * GIB, mig=True),
        OccupiedCard(index=2, name="C", total=80 * GIB, used=40 * MIB),
    ))  # fmt: skip
    assert (
        text
        == """\
0  A: 9.00 GiB of 80.00 GiB in use, 71.00 GiB free
  pid  user      used  what
    7  root  30.0 MiB  nvidia-cuda-mps-server

1  B: 9.00 GiB of 80.00 GiB in use, 71.00 GiB free

2  C: 40.0 MiB of 80.00 GiB in use, 79.96 GiB free

- An MPS server runs on card 0: programs under it share one context, and the driver may count it \
for the server.
- Nobody is named for 8.97 GiB of card 0: a container, MIG or the driver hides whose they are; \
nvidia-smi on the host, as root, may say.
- Card 1 is cut into slices (MIG): the driver tells processes and their bytes only to root."""
    )


def test_a_kernel_is_shut_down_by_its_server_once_it_is_confirmed(
    monkeypatch, capsys, server, kernel_process
):
    line = ["gpus", "--shut-down", str(kernel_process.pid)]
    for answer, asked in (("\n", 0), ("y\n", 1)):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=lambda line=answer: line))
        assert main(line) == 0
        assert server.asked.count(("DELETE", f"/lab/api/kernels/{KERNEL}")) == asked
    assert "work/train.ipynb; busy: all that it holds is lost." in capsys.readouterr().err


def test_a_servers_time_to_end_a_kernel_is_waited_for(monkeypatch, server):
    monkeypatch.setattr(jupyter_servers, "TIMEOUT_S", 0.3)
    server.takes_s = 0.5
    assert jupyter_servers.shut_down(jupyter_servers.kernels()[KERNEL])
    monkeypatch.setattr(jupyter_servers, "END_S", 0.1)
    assert not jupyter_servers.shut_down(jupyter_servers.kernels()[KERNEL])


@pytest.mark.parametrize(("option", "what"), [("--shut-down", "end it"), ("--free", "ask it")])
def test_what_is_no_kernel_of_the_users_is_left_alone(capsys, server, option, what):
    assert main(["gpus", option, str(os.getppid())]) == 2
    assert f"so nbmem does not {what}" in capsys.readouterr().err
    assert all(method == "GET" for method, _ in server.asked)


def test_a_kernel_without_nbmem_is_not_asked_to_free(capsys, server, kernel_process):
    assert main(["gpus", "--free", str(kernel_process.pid)]) == 1
    assert "it runs a cell just now, so it is not asked." in capsys.readouterr().err


def test_a_process_that_does_not_answer_returns_none(kernel_process):
    assert jupyter_kernels.free_cache(kernel_process.pid) is None  # there is no such file
    assert jupyter_kernels.free_cache(os.getppid()) is None
