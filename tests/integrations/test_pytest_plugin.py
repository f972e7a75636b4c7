"""The pytest plugin: passes, failures and their sentences."""

import os
import runpy
import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = "nbmem.integrations.pytest_plugin"
TESTS = """\
import pytest
import torch

def take(mebibytes):
    return torch.empty(mebibytes << 20, dtype=torch.uint8, device="cuda")

def test_small():
    kept = take(4)

@pytest.mark.nbmem_max_peak("20MiB")
def test_with_a_limit_of_its_own():
    kept = take(16)

def test_without_a_card():
    assert torch.ones(1 << 20).sum() == 1 << 20

def test_with_the_fixture(nbmem_trace):
    kept = take(3)
    assert nbmem_trace.stop().report().peak.allocated == 3 << 20

@pytest.mark.xfail(strict=True)
@pytest.mark.nbmem_max_peak("2MiB")
def test_known_to_be_too_large():
    kept = take(3)

def test_large():
    kept = take(4)
    del kept
    kept = [take(6), take(8)]

@pytest.mark.nbmem_max_peak(10 << 20, which="reserved")
def test_of_reserved():
    kept = take(12)

@pytest.mark.nbmem_max_peak("2MiB")
def test_with_both(nbmem_trace):
    kept = take(3)
    nbmem_trace.stop()

def test_that_runs_out():
    take(20_000)

left = []

def test_that_fails_by_itself():
    left.append(take(2))
    assert left is None

@pytest.mark.nbmem_max_peak("3MiB")
def test_after_one_that_left_something():
    kept = take(2)
"""


@pytest.fixture
def installed(tmp_path):
    """Make a folder in which pytest finds the plugin as installed."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "path" / "nbmem_of_this_checkout-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nbmem-of-this-checkout\n")
    lines = [f"{name} = {place}" for name, place in points["pytest11"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    return info.parent


@pytest.fixture
def run(pytester, installed, monkeypatch):
    """Run tests in a process of their own; returns what pytest says."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), str(ROOT)]))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(source, *options):
        pytester.makepyfile(source)
        others = ("cacheprovider", "hypothesispytest", "anyio", "rerunfailures", "xdist")
        without = [word for name in others for word in ("-p", f"no:{name}")]
        return pytester.runpytest_subprocess(*without, "-W", "ignore", *options)

    return run


@pytest.mark.torch
def test_what_goes_above_its_limit_fails_with_what_held_it(run):
    result = run(TESTS, "--nbmem-max-peak=10MiB", "--nbmem-gpu=T4", "-rA")
    assert result.parseoutcomes() == {"passed": 4, "failed": 6, "xfailed": 1}
    result.stdout.fnmatch_lines(["nbmem: Running on*T4*no values are computed."])
    result.stdout.fnmatch_lines(
        [
            "test_large peaked at 14.0 MiB allocated (in load, at *.py:5 in take), 4.0 MiB above*",
            "Held at that moment: 14.0 MiB temporaries.",  # the test's locals are gone
            "Largest: 14.0 MiB temporaries born in load (*.py:5 in take).",
            "*Captured GPU memory (nbmem) call*",
            "Most allocated in load: 14.0 MiB allocated*",
            "test_of_reserved peaked at * MiB reserved *above the limit of 10.0 MiB.",
            "test_with_both peaked at 3.0 MiB allocated *, 1.0 MiB above the limit of 2.0 MiB.",
            "*Captured GPU memory (nbmem) call*",
            "Ran out of memory: * asked for, * free, at",
            "test_after_one_that_left_something peaked at 4.0 MiB allocated *",
            "Largest: 2.0 MiB temporaries born in load *; 2.0 MiB user tensors (left?...?).",
            "Before it began: 2.0 MiB allocated.",
        ]
    )
    for never in ("*nbmem/integrations*", "*INTERNALERROR*", "*%nbmem*", "*traceback entries*"):
        result.stdout.no_fnmatch_line(never)


@pytest.mark.torch
def test_one_imports_torch_and_one_has_no_card(run):
    result = run(
        """\
        import sys
        import pytest
        from nbmem import virtual
        from nbmem.api import tracing

        def test_first():
            assert "torch" not in sys.modules
            import torch
            virtual.activate("T4")
            torch.ones(1 << 20, device="cuda")

        def teardown_function():
            virtual.deactivate()

        @pytest.mark.nbmem_max_peak("1GiB")
        def test_marked():
            pass

        def test_plain():
            assert tracing.running_recorder() is not None  # torch is there now
        """,
        "--nbmem-max-peak=1MiB",
    )
    assert result.parseoutcomes() == {"failed": 2, "passed": 1}
    result.stdout.fnmatch_lines(
        [
            "test_first peaked at 4.0 MiB allocated on card 0, 3.0 MiB above the limit of*",
            "assert_peak found no card*virtual card*",
        ]
    )


def test_a_wrong_size_is_refused_before_anything_runs(run):
    result = run("def test_it(): pass", "--nbmem-max-peak=much")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*nbmem-max-peak: 'much' is not an amount of memory*"])


def test_an_installed_plugin_imports_nothing_heavy(run):
    result = run(
        "import sys\n\ndef test_it(pytestconfig):\n"
        f"    assert pytestconfig.pluginmanager.hasplugin('nbmem') and {PLUGIN!r} in sys.modules\n"
        "    heavy = {'torch', 'numpy', 'IPython', 'pynvml', 'nbmem.api.tracing'}\n"
        "    assert not heavy & set(sys.modules)\n",
        "--nbmem-max-peak=1GiB",
    )
    assert result.parseoutcomes() == {"passed": 1}


def test_an_older_pytest_is_left_alone(monkeypatch):
    file = str(ROOT / "nbmem" / "integrations" / "pytest_plugin.py")
    assert runpy.run_path(file)["pytest_plugins"] == ["nbmem.integrations.pytest_hooks"]
    monkeypatch.setattr(pytest, "version_tuple", (7, 4, 4))
    assert not [name for name in runpy.run_path(file) if name.startswith("pytest_")]
