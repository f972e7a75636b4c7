"""Callbacks of Lightning and transformers: what they log and survive."""

import csv
import gc
import importlib
import logging
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.data import DataLoader, Dataset

from nbmem.api.tracing import running_recorder
from nbmem.core.runtime.entry_points import entry
from nbmem.core.session.categories import Category
from nbmem.integrations import first_steps
from nbmem.integrations.scalars import PEAKS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS, MORE = 2, 4
GUARDED = entry("nothing")(print).__code__
PARAMETERS = 4 * (64 * 128 + 128 + 128 * 8 + 8)
NAMES = {
    *(f"nbmem/peak/{name}" for name in PEAKS),
    *(f"nbmem/at_peak/{category.key}" for category in Category),
    "nbmem/at_end/allocated",
}


class Samples(Dataset):
    def __len__(self):
        return 4 * (STEPS + MORE)

    def __getitem__(self, index):
        return {"x": torch.randn(64), "labels": torch.randint(0, 8, ())}


class Network(nn.Module):
    fails_at, calls = None, 0

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))

    def forward(self, x, labels):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the user's own")
        logits = self.layers(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def lightning_fit(folder, callback, *, fails_at=None, loggers=True):
    lightning = importlib.import_module(callback.package)
    logging.getLogger(callback.package).setLevel(logging.ERROR)
    loggers_of = importlib.import_module(f"{callback.package}.loggers")

    class Module(lightning.LightningModule, Network):
        def training_step(self, batch, _index):
            recording.append(running_recorder() is not None)
            return self(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    recording = []
    trainer = lightning.Trainer(
        max_steps=STEPS + MORE, default_root_dir=folder, callbacks=[callback],
        logger=loggers_of.CSVLogger(folder, name="log", version=0) if loggers else False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    module = Module()
    module.fails_at = fails_at
    error = None
    try:
        trainer.fit(module, DataLoader(Samples(), batch_size=4))
    except RuntimeError as err:
        error = str(err)
    logged = folder / "log" / "version_0" / "metrics.csv"
    rows = list(csv.DictReader(logged.open())) if logged.exists() else []
    return recording, rows, error


@pytest.fixture(params=["pytorch_lightning", "lightning.pytorch"])
def lightning_callback(request, monkeypatch):
    """The callback as it is imported after one Lightning or the other."""
    package = request.param.partition(".")[0]
    pytest.importorskip(package, reason=f"{package} is not installed")
    importlib.import_module(request.param)
    monkeypatch.delitem(sys.modules, "nbmem.integrations.lightning", raising=False)
    made = importlib.import_module("nbmem.integrations.lightning").MemoryCallback
    made.package = request.param
    return made


def check(figures, trace):
    """Compare the logged figures with the report's."""
    report = trace.report()
    held = {c: int(float(figures[f"nbmem/at_peak/{c.key}"])) for c in Category}
    assert figures.keys() >= NAMES
    assert int(float(figures["nbmem/peak/allocated"])) == report.peak.allocated
    assert held[Category.WEIGHTS] == PARAMETERS
    assert sum(held.values()) == report.ledger_at_peak.total_bytes
    assert max(row.step for row in report.phases if row.name == "optimizer") == STEPS - 1
    assert report.holdings[0].name is None or "nbmem" not in report.holdings[0].name


def test_lightning_logs_the_first_steps_once(gpu, tmp_path, lightning_callback):
    callback = lightning_callback(steps=STEPS)
    recording, rows, _ = lightning_fit(tmp_path, callback)
    assert recording == [True] * STEPS + [False] * MORE
    (row,) = [row for row in rows if row.get("nbmem/peak/allocated")]
    assert int(row["step"]) == STEPS
    check(row, callback.trace)
    names = {holding.name for holding in callback.trace.report().holdings}
    assert any(name and name.startswith("model.layers.0.weight") for name in names)


def test_lightning_without_a_logger_keeps_the_trace(gpu, tmp_path, lightning_callback):
    callback = lightning_callback(steps=STEPS)
    lightning_fit(tmp_path, callback, loggers=False)
    assert callback.trace.report().peak.allocated > PARAMETERS


def test_lightning_ends_the_trace_of_a_training_that_raises(gpu, tmp_path, lightning_callback):
    callback = lightning_callback(steps=STEPS)
    _, rows, error = lightning_fit(tmp_path, callback, fails_at=2)
    assert error == "the user's own"
    assert running_recorder() is None
    assert callback.trace.report().error == "RuntimeError: the user's own"
    assert any(row.get("nbmem/peak/allocated") for row in rows)


def test_a_fault_of_ours_is_a_warning(gpu, tmp_path, lightning_callback, monkeypatch, caplog):
    monkeypatch.setattr(first_steps, "scalars", lambda *_: 1 / 0)
    recording, rows, error = lightning_fit(tmp_path, lightning_callback(steps=STEPS))
    assert (len(recording), rows, error) == (STEPS + MORE, [], None)
    assert "nbmem lost the trace of the first steps: ZeroDivisionError" in caplog.text
    assert "The training itself is not affected." in caplog.text


def test_what_a_framework_calls_is_guarded(lightning_callback):
    hooks = {name: hook for name, hook in vars(lightning_callback).items() if name[:3] == "on_"}
    assert len(hooks) == 4
    assert {hook.__code__ for hook in hooks.values()} == {GUARDED}
    pytest.importorskip("transformers", reason="transformers is not installed")
    ours = importlib.import_module("nbmem.integrations.transformers").MemoryCallback
    hooks = {name: hook for name, hook in vars(ours).items() if name[:3] == "on_"}
    assert len(hooks) == 3
    assert {hook.__code__ for hook in hooks.values()} == {GUARDED}


@pytest.fixture
def trainer(gpu, tmp_path):
    """Makes a Trainer of the small network."""
    for package in ("accelerate", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    transformers = importlib.import_module("transformers")

    def make(*, fails_at=None, report_to=(), callbacks=()):
        network = Network()
        network.fails_at = fails_at
        options = transformers.TrainingArguments(
            output_dir=tmp_path, max_steps=STEPS + MORE, per_device_train_batch_size=4,
            logging_steps=1, save_strategy="no", report_to=list(report_to), disable_tqdm=True,
        )  # fmt: skip
        return transformers.Trainer(
            network, options, train_dataset=Samples(), callbacks=list(callbacks)
        )

    return make


def logged_by(trainer):
    return [row for row in trainer.state.log_history if "nbmem/peak/allocated" in row]


def test_transformers_logs_the_first_steps_once(trainer):
    from nbmem.integrations.transformers import MemoryCallback

    one = trainer()
    callback = MemoryCallback(one, steps=STEPS)
    one.add_callback(callback)
    one.train()
    (row,) = logged_by(one)
    assert row["step"] == STEPS
    check(row, callback.trace)
    gone = weakref.ref(one.model)
    del one
    gc.collect()
    assert callback.trace.report().peak.allocated  # kept, and with it nothing of the model
    assert gone() is None


def test_transformers_takes_it_among_the_callbacks_too(trainer):
    from nbmem.integrations.transformers import MemoryCallback

    one = trainer(callbacks=[MemoryCallback(steps=STEPS)])
    one.train()
    assert [row["step"] for row in logged_by(one)] == [STEPS]
    one.train()
    assert [row["step"] for row in logged_by(one)] == [STEPS]  # the state is new


def test_transformers_hands_them_to_what_report_to_names(trainer, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from nbmem.integrations.transformers import MemoryCallback

    one = trainer(report_to=["tensorboard"])
    one.add_callback(MemoryCallback(one, steps=STEPS))
    one.train()
    (written,) = tmp_path.rglob("events.out.tfevents.*")
    (peak,) = EventAccumulator(str(written)).Reload().Scalars("train/nbmem/peak/allocated")
    (row,) = logged_by(one)
    assert peak.step == STEPS
    assert peak.value == pytest.approx(row["nbmem/peak/allocated"], rel=1e-6)  # 32 bits


def test_a_cell_whose_training_raised_leaves_no_trace_running(trainer, monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    from nbmem.integrations.transformers import MemoryCallback

    shell = InteractiveShell.instance()
    try:
        callback = MemoryCallback(steps=STEPS)
        one = trainer(fails_at=2, callbacks=[callback])
        shell.user_ns["train"] = one.train
        shell.showtraceback = lambda *_args, **_more: None
        assert not shell.run_cell("train()").success
        assert running_recorder() is None
        assert callback.trace.report().peak.allocated > PARAMETERS
    finally:
        InteractiveShell.clear_instance()
