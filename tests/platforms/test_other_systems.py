"""A notebook's session as on Windows or macOS.

What is simulated stands in other_system/sitecustomize.py: names that such a Python lacks, spawn as
the only start method, pipes that select cannot watch, files that stay while they are open.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a network is trained")
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", pytest.param("darwin", marks=pytest.mark.long)])
def test_load_trace_report_fit_plan_and_save(system, tmp_path):
    places = (str(HERE / "other_system"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "NBMEM_TEST_PLATFORM": system,
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "cp1252",
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
    }
    done = subprocess.run(
        [sys.executable, HERE / "session.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("done\n")
