"""`nbmem run`: the script is the script, and its report comes after it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from nbmem.core.session.categories import Category

pytestmark = pytest.mark.torch

CATEGORIES = [
    "weights",
    "buffers",
    "gradients",
    "optimizer_state",
    "inputs",
    "activations",
    "output_gradients",
    "temporaries",
    "workspace",
    "communication",
    "user_tensors",
    "unknown",
    "rounding",
    "pending",
    "cached_releasable",
    "cached_stuck",
    "frameworks",
    "frameworks_cached",
    "context",
    "other_processes",
    "driver",
    "free",
]


def test_the_json_has_exactly_the_documented_keys_and_balances(nbmem, script, train, tmp_path):
    done = nbmem("run", script(train), "--gpu", "A100 80GB", "--json", "out.json", new=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert list(report) == [
        "verdict",
        "device",
        "peak",
        "ledger_at_peak",
        "ledger_at_end",
        "parts_at_peak",
        "parts_at_end",
        "frameworks_at_peak",
        "frameworks_at_end",
        "machine_at_peak",
        "machine_at_end",
        "managed_at_end",
        "phases",
        "unknown",
        "dropped_events",
        "notes",
        "findings",
        "out_of_memory",
        "lines",
        "growth",
        "would_run_on",
        "would_run_on_limits",
    ]
    assert list(report["device"]) == [
        "name",
        "kind",
        "allocator",
        "total_bytes",
        "virtual",
        "engine",
        "torch",
        "shared",
        "spilled_bytes",
    ]
    assert list(report["peak"]) == ["allocated", "reserved", "active", "requested", "process"]
    ledgers = [report["ledger_at_peak"], report["ledger_at_end"]]
    for phase in report["phases"]:
        assert list(phase) == [
            "name",
            "step",
            "allocated",
            "reserved",
            "peak_allocated",
            "peak_reserved",
            "ledger_at_peak",
            "ledger_at_end",
        ]
        ledgers += [phase["ledger_at_peak"], phase["ledger_at_end"]]
    for ledger in ledgers:
        assert list(ledger) == CATEGORIES
        assert sum(ledger.values()) == report["device"]["total_bytes"]
    steps = [(p["name"], p["step"]) for p in report["phases"]]
    for step in (0, 1):
        for name in ("forward", "backward", "optimizer", "zero_grad"):
            assert (name, step) in steps
    assert report["unknown"] == report["ledger_at_peak"]["unknown"]
    assert report["dropped_events"] == 0
    weights = 4 * (256 * 512 + 512 + 512 * 10 + 10)
    assert report["ledger_at_peak"]["weights"] == weights
    assert report["ledger_at_end"]["optimizer_state"] >= 2 * weights


def test_the_json_says_that_the_card_is_a_virtual_one(nbmem, script, train, tmp_path):
    nbmem("run", script(train), "--gpu", "A100 80GB", "--json", "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["device"]["virtual"] is True


def test_the_documented_categories_are_all_there_are():
    assert [category.key for category in Category] == CATEGORIES


def test_the_report_comes_after_the_scripts_own_output(nbmem, script, train):
    done = nbmem("run", script(train), "--gpu", "L4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained\n")
    assert "NVIDIA L4" in done.stdout
    assert "weights" in done.stdout


def test_quiet_prints_nothing_of_ours(nbmem, script, train):
    done = nbmem("run", script(train), "--gpu", "L4", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_without_a_card_a_virtual_one_stands_in_and_one_line_says_so(nbmem, script, train):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a real card here")
    done = nbmem("run", script(train), "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stderr == (
        "nbmem: There is no GPU here, so a virtual NVIDIA H100 80GB HBM3 stands in: its memory is "
        "accounted for as the card would, and no values are computed.\n"
    )


def test_a_script_that_uses_no_card_is_reported_on_the_hosts_memory(nbmem, script):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a real card here")
    code = (
        "import torch\nmodel = torch.nn.Linear(512, 512)\n"
        "for _ in range(2):\n    model(torch.ones(64, 512)).sum().backward()\n"
    )
    done = nbmem("run", script(code))
    assert done.returncode == 0, done.stderr
    assert " on the host's memory (" in done.stdout
    assert "model.weight.grad (512, 512) float32" in done.stdout
    chosen = nbmem("run", script(code), "--gpu", "L4")
    output = chosen.stdout + chosen.stderr
    assert "has no report: Nothing was allocated on the chosen card" in output


def test_a_script_that_ended_before_it_used_its_card_is_said_to_have(nbmem, script):
    pytest.importorskip("torch")
    done = nbmem("run", script("import no_module_of_this_name\n"), "--gpu", "L4")
    output = done.stderr.strip().splitlines()[-1]
    assert "it ended by ModuleNotFoundError: No module named 'no_module_of_this_name'" in output
    assert output.endswith("before anything was allocated on a card.")


def test_a_saved_session_gives_the_same_report_again(nbmem, script, train, tmp_path):
    done = nbmem("run", script(train), "--gpu", "L4", "--save", "run.nbmem", "--json", "a.json")
    assert done.returncode == 0, done.stderr
    again = nbmem("report", "run.nbmem", "--json", "b.json", "--html", "b.html")
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout.removeprefix("trained\n")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    page = (tmp_path / "b.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_a_script_sees_what_python_shows_it(nbmem, script, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("value = 7\n")
    look = (
        "import sys, os, beside, json\n"
        "import __main__\n"
        "assert __main__.__dict__ is globals()\n"
        "seen = [__name__, __file__, sys.argv, sys.path[0], os.getcwd(), beside.value]\n"
        "print(json.dumps(seen))\n"
    )
    name = script(look, "sub/look.py")
    ours = nbmem("run", "--gpu", "L4", "--quiet", name, "--", "--epochs", "3")
    python = subprocess.run(
        [sys.executable, name, "--epochs", "3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ours.stdout == python.stdout, ours.stderr


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    raise ValueError('mine')\n\n\nf()\n",
        "def broken(:\n",
        "try:\n    1 / 0\nexcept Exception as err:\n    raise RuntimeError('two') from err\n",
    ],
    ids=["raises", "syntax", "chained"],
)
def test_a_script_that_raises_fails_with_pythons_own_traceback(nbmem, script, tmp_path, source):
    name = script(source)
    ours = nbmem("run", name, "--gpu", "L4", "--quiet")
    python = subprocess.run(
        [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ours.returncode == 1
    assert ours.stderr.startswith(python.stderr.partition("SyntaxError")[0])
    assert "nbmem/" not in ours.stderr


def test_what_was_recorded_before_the_exception_is_reported(nbmem, script, train, tmp_path):
    done = nbmem(
        "run", script(train + "raise ValueError('late')\n"), "--gpu", "L4", "--json", "out.json"
    )
    assert done.returncode == 1
    assert "ValueError: late" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["peak"]["allocated"] > 0


def test_out_of_memory_fails_the_script_and_is_reported(nbmem, script, train, tmp_path):
    source = train + "more = torch.empty(40 * 2**30, dtype=torch.uint8, device='cuda')\n"
    done = nbmem("run", script(source), "--gpu", "L4", "--json", "out.json")
    assert done.returncode == 1
    assert "OutOfMemoryError: CUDA out of memory." in done.stderr
    assert "Tried to allocate 40.00 GiB" in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["peak"]["allocated"] < 24 << 30


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [
        ("sys.exit(0)", (0, "")),
        ("sys.exit(7)", (7, "")),
        ("raise SystemExit", (0, "")),
        ("sys.exit('why')", (1, "why\n")),
    ],
)
def test_the_scripts_own_exit_is_honoured(nbmem, script, train, ending, exit_code):
    done = nbmem("run", script(f"{train}import sys\n{ending}\n"), "--gpu", "L4", "--quiet")
    assert (done.returncode, done.stderr) == exit_code


def test_a_reader_who_has_seen_enough_is_no_fault(script, tmp_path):
    """`nbmem run script.py | head`: the script's end is the end, and nothing is said of it."""
    command = [
        sys.executable,
        "-m",
        "nbmem",
        "run",
        script("import sys, torch\nx = torch.ones(9).cuda()\nsys.exit(5)\n"),
        "--gpu",
        "T4",
    ]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (5, "")


def _heed_ctrl_c():
    """Restore the default Ctrl-C, which background processes ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_ends_with_130_and_a_report(script, train, tmp_path):
    name = script(f"{train}print('waiting', flush=True)\nimport time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "nbmem", "run", name, "--gpu", "L4", "--json", "out.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,  # noqa: PLW1509 - one thread
    )
    for line in process.stdout:
        if line == "waiting\n":
            break
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "KeyboardInterrupt" in err
    assert "weights" in out
    assert (tmp_path / "out.json").exists()


def test_threads_of_the_script_are_waited_for(nbmem, script, tmp_path):
    source = (
        "import torch, threading, time\n"
        "def work():\n"
        "    time.sleep(0.5)\n"
        "    global kept\n"
        "    kept = torch.empty(1 << 20, dtype=torch.uint8, device='cuda')\n"
        "threading.Thread(target=work).start()\n"
    )
    done = nbmem("run", script(source), "--gpu", "L4", "--json", "out.json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["peak"]["allocated"] >= 1 << 20


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_of_a_data_loader_do_not_disturb(nbmem, script, context):
    source = (
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "if __name__ == '__main__':\n"
        "    data = TensorDataset(torch.arange(64.0))\n"
        f"    options = {{'num_workers': 2, 'multiprocessing_context': '{context}'}}\n"
        "    for (batch,) in DataLoader(data, batch_size=16, **options):\n"
        "        batch.cuda()\n"
        "    print('loaded')\n"
    )
    done = nbmem("run", script(source), "--gpu", "L4", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded\n", "")


def test_a_script_that_uses_no_card_is_one_sentence(nbmem, script):
    done = nbmem("run", script("print('hello')\n"), "--gpu", "L4")
    assert done.returncode == 0
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("nbmem: ")
    assert len(done.stderr.splitlines()) == 1


def test_without_torch_the_script_runs_and_one_sentence_says_what_is_missing(
    nbmem, script, tmp_path
):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "torch.py").write_text("raise ImportError('hidden for this test')\n")
    path = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = nbmem("run", script("print('hello')\n"), env={"PYTHONPATH": path}, new=True)
    assert done.returncode == 0
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("nbmem: torch is not installed in this environment, so there is")
    assert done.stderr.endswith("The script runs untraced.\n")


def test_a_child_that_the_script_forks_writes_no_report_of_its_own(nbmem, script, train):
    source = f"{train}import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n"
    done = nbmem("run", script(source), "--gpu", "L4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NVIDIA L4 (virtual)") == 1


def test_a_script_that_changes_its_folder_has_its_files_where_they_were_named(
    nbmem, script, train, tmp_path
):
    (tmp_path / "elsewhere").mkdir()
    moves = f"{train}\nimport os\nos.chdir('elsewhere')\n"
    outputs = ("--save", "run.nbmem", "--json", "run.json", "--html", "run.html")
    done = nbmem("run", script(moves), "--gpu", "L4", "--quiet", *outputs)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path.name for path in tmp_path.glob("run.*")} == {"run.nbmem", "run.json", "run.html"}
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_script_that_closes_its_stdout_ends_as_without_nbmem(nbmem, script, train):
    done = nbmem("run", script(f"{train}\nimport sys\nsys.stdout.close()\n"), "--gpu", "L4")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_script_sets_the_allocator_up_before_it_uses_the_card(nbmem, script):
    """As torch, which reads the environment at the first use."""
    name = script(
        'import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n'
        'import torch\n\nx = torch.ones(9, device="cuda")\n'
        'print(torch.cuda.memory_snapshot()[0]["is_expandable"])\n'
    )
    assert nbmem("run", name, "--gpu", "T4", "--quiet").stdout == "True\n"


IN_MAIN = """
import torch
def main():
    kept = []
    net = torch.nn.Linear(1024, 1024).cuda()
    for _ in range(6):
        net(torch.ones(256, 1024, device="cuda")).sum().backward()
        kept.append(torch.ones(4 << 20, device="cuda"))
if __name__ == "__main__":
    main()
"""


def test_what_the_last_function_held_is_named_at_the_end(nbmem, script, tmp_path):
    done = nbmem("run", script(IN_MAIN), "--gpu", "T4", "--json", "out.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ledger_at_end"]["user_tensors"] == 6 * (16 << 20)
    assert report["findings"][0]["title"].startswith("`kept` grows by 16.0 MiB with every step")


OUT_IN_MAIN = """
import torch
def main():
    checkpoint = {"model": torch.ones(9 << 28, device="cuda")}
    net = torch.nn.Linear(1024, 1024).cuda()
    net(torch.ones(9 << 18, 1024, device="cuda")).sum().backward()
main()
"""


def test_what_the_last_function_holds_can_be_freed_under_an_error(nbmem, script, tmp_path):
    done = nbmem("run", script(OUT_IN_MAIN), "--gpu", "T4", "--json", "out.json")
    assert "OutOfMemoryError" in done.stderr
    (error,) = json.loads((tmp_path / "out.json").read_text())["out_of_memory"]
    assert error["remedies"][0]["title"].startswith("Free checkpoint before this line")
