"""Estimates in a real kernel, and Ctrl-C during one."""

import json
import sys
import time

import pytest

pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("torch", reason="torch is not installed")
psutil = pytest.importorskip("psutil")

from nbmem.frontends.sidebar.requests import Done, ExpectQuestion
from tests.sidebar.kernel import Kernel

STANDING = """
import json, logging, os, random, sys, warnings
import numpy as np
warnings.simplefilter("error", ResourceWarning)
logging.getLogger("mine").addHandler(logging.NullHandler())
names = lambda: {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
state = lambda: [
    repr(warnings.filters), repr(logging.root.manager.loggerDict["mine"].handlers),
    repr(logging.root.handlers), os.getcwd(), sys.path, dict(os.environ), str(random.getstate()),
    str(np.random.get_state()), sorted(names() - {"nbmem"}), repr(sys.excepthook), sys.argv,
    sorted(n for n in globals() if not n.startswith("_")),
]
"""
CELL = """\
%%nbmem fit rows --gpu T4 --between 1 4
import logging, os, random, sys, warnings
import torch
rows = 2
warnings.simplefilter("ignore")
logging.basicConfig()
logging.getLogger("mine").handlers.clear()
random.random()
print("said")
sys.argv.append("more")
os.environ["NBMEM_WORD"] = "changed"
os.chdir("/")
x = torch.zeros(rows, 1 << 20, device="cuda")
"""
LONG = """\
%%nbmem fit rows --gpu T4
import subprocess, time, torch
rows = 2
torch.zeros(rows, device="cuda")
child = subprocess.Popen(["sleep", "600"])
open({started!r}, "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run("%load_ext nbmem")
    yield kernel
    kernel.close()


def answer(kernel, code):
    return json.loads(kernel.run(f"print(json.dumps({code}))").text())


def shown(ran):
    """Return the text under the cell at its end."""
    kinds = ("display_data", "update_display_data")
    return ran.outputs(*kinds)[-1]["data"]["text/plain"]


def test_the_kernel_stands_as_before(kernel):
    kernel.run(STANDING)
    before = answer(kernel, "state()")
    ran = kernel.run(CELL)
    assert "It fits on a Tesla T4 for every value of rows up to 4" in shown(ran)
    assert ran.text() == ""
    assert answer(kernel, "state()") == before
    me = psutil.Process(answer(kernel, "os.getpid()"))
    assert len(me.children()) == (sys.platform == "linux")  # it waits for the next question
    kernel.run("%unload_ext nbmem")
    assert not me.children()
    kernel.run("%load_ext nbmem")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each question has its own process")
def test_the_estimating_process_starts_when_a_question_is_typed(kernel):
    me = psutil.Process(answer(kernel, "os.getpid()"))
    kernel.client.complete("%nbmem gpu ", 11)
    kernel.run("pass")
    assert not me.children()
    kernel.client.complete("%%nbmem f", 9)
    kernel.run("pass")
    (child,) = me.children()
    page = kernel.page()
    assert page.ask(ExpectQuestion(id="1")) == Done(id="1", sentence="")
    assert me.children() == [child]
    kernel.run("%unload_ext nbmem")
    assert not me.children()
    kernel.run("%load_ext nbmem")


def test_an_interrupt_ends_the_cell_with_one_sentence(kernel, tmp_path):
    me = answer(kernel, "os.getpid()")
    started = tmp_path / "started"
    request = kernel.start(LONG.format(started=str(started)))
    end = time.monotonic() + 120
    while not (started.exists() and started.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    theirs = [psutil.Process(int(started.read_text())), *psutil.Process(me).children()]
    assert len(theirs) == 2
    begun = time.monotonic()
    kernel.manager.interrupt_kernel()
    ran = kernel.until_idle(request)
    assert time.monotonic() - begun < 5
    assert ran.text() == (
        "nbmem: fit rows was interrupted after 0 runs: its process is ended, and the notebook is "
        "as it was.\n"
    )
    (error,) = ran.outputs("error")  # as in any cell: Run All stops here
    assert error["ename"] == "KeyboardInterrupt"
    assert not [line for line in error["traceback"] if "/nbmem/" in line]
    assert ran.outputs("clear_output")
    _, alive = psutil.wait_procs(theirs, timeout=5)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert not psutil.Process(me).children()
