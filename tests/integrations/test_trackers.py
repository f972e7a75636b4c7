"""Figures of a trace in the readers of experiment trackers."""

import subprocess
import sys

import pytest

pytest.importorskip("numpy", reason="a report needs numpy")

from nbmem.core.errors import UsageError
from nbmem.core.session.categories import Category
from nbmem.integrations.scalars import scalars

MIB = 1 << 20


def test_the_figures_are_flat_and_add_up(trace):
    found = scalars(trace)
    assert found["nbmem/peak/allocated"] == 3 * MIB
    assert found["nbmem/at_end/allocated"] == MIB
    held = {c: found.pop(f"nbmem/at_peak/{c.key}") for c in Category}
    assert held[Category.TEMPORARIES] == 2 * MIB
    assert sum(held.values()) == trace.report().ledger_at_peak.total_bytes
    assert found == {
        "nbmem/peak/allocated": 3 * MIB,
        "nbmem/peak/reserved": trace.report().peak.reserved,
        "nbmem/peak/active": 3 * MIB,
        "nbmem/peak/requested": 3 * MIB,
        "nbmem/peak/process": trace.report().peak.process,
        "nbmem/at_end/allocated": MIB,
    }
    assert {type(size) for size in found.values()} == {int}
    assert set(scalars(trace.report(), "gpu")) == {
        name.replace("nbmem/", "gpu/") for name in scalars(trace)
    }


def test_a_trace_without_a_card_says_so():
    import nbmem

    with nbmem.trace() as trace:
        pass
    with pytest.raises(UsageError):
        scalars(trace)


def test_the_writers_import_their_programs_only_when_they_are_used():
    code = (
        "import sys, nbmem.integrations.tensorboard, nbmem.integrations.wandb\n"
        "import nbmem.integrations.mlflow, nbmem.integrations.first_steps\n"
        "print({'torch', 'numpy', 'tensorboard', 'wandb', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_tensorboard_has_them_to_the_byte(trace, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray
    from torch.utils.tensorboard import SummaryWriter

    from nbmem.integrations import tensorboard

    with SummaryWriter(tmp_path) as writer:
        tensorboard.log(trace, writer, step=7)
    events = EventAccumulator(str(tmp_path)).Reload()
    found = {}
    for tag in events.Tags()["tensors"]:
        (event,) = events.Tensors(tag)
        assert event.step == 7
        found[tag] = int(make_ndarray(event.tensor_proto))
    assert found == scalars(trace)


def test_wandb_has_them_in_one_row(trace, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from nbmem.integrations import wandb as ours

    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path, project="nbmem") as run:
        ours.log(trace, step=3)
        ours.log(trace, run, step=4, prefix="again")
        run.log({"loss": 1.0}, step=5)  # the rows before are complete
        found = {name: run.summary[name] for name in [*scalars(trace), *scalars(trace, "again")]}
    assert found == scalars(trace) | scalars(trace, "again")


def test_mlflow_has_them_as_metrics(trace, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    from nbmem.integrations import mlflow as ours

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        ours.log(trace, step=3)
    ours.log(trace, step=4, run_id=run.info.run_id, prefix="again")
    metrics = mlflow.get_run(run.info.run_id).data.metrics
    assert metrics == scalars(trace) | scalars(trace, "again")
    (point,) = mlflow.MlflowClient().get_metric_history(run.info.run_id, "nbmem/peak/allocated")
    assert point.step == 3
