"""Training with accelerate, transformers' Trainer and Lightning."""

import importlib
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.data import DataLoader, Dataset

import nbmem
from nbmem.core.session.categories import Category

pytestmark = pytest.mark.slow
STEPS = 3


class Samples(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return {"x": torch.randn(64), "labels": torch.randint(0, 8, ())}


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))

    def forward(self, x, labels):
        logits = self.layers(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def with_accelerate(folder, *, bf16):
    accelerate = importlib.import_module("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision="bf16" if bf16 else "no")
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters())
    batches = DataLoader(Samples(), batch_size=4)
    network, optimizer, batches = accelerator.prepare(network, optimizer, batches)
    for batch in batches:
        accelerator.backward(network(**batch)["loss"])
        accelerator.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(folder)
    accelerator.load_state(folder)
    return accelerator.unwrap_model(network), {"optimizer.bin", "model.safetensors"}


def with_trainer(folder, *, bf16):
    transformers = importlib.import_module("transformers")
    network = Network()
    options = transformers.TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4, bf16=bf16,
        optim="adamw_torch_fused",  # its default from torch 2.8
        logging_steps=1, save_steps=STEPS, eval_strategy="steps", eval_steps=STEPS, report_to=[],
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        network, options, train_dataset=Samples(), eval_dataset=Samples()
    )
    trainer.train()
    assert trainer.state.log_history[-1]["step"] == STEPS
    trainer.train(resume_from_checkpoint=True)  # it has nothing to do, but loads all
    return network, {"optimizer.pt", "model.safetensors", "scheduler.pt", "trainer_state.json"}


def with_lightning(folder, *, bf16):
    lightning = importlib.import_module("pytorch_lightning")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(lightning.LightningModule, Network):
        def training_step(self, batch, _index):
            loss = self(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _index):
            self.log("validation", self(**batch)["loss"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    module = Module()
    trainer = lightning.Trainer(
        max_steps=STEPS, precision="bf16-mixed" if bf16 else "32-true", default_root_dir=folder,
        logger=False, enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip
    batches = DataLoader(Samples(), batch_size=4)
    trainer.fit(module, batches, batches)
    assert trainer.strategy.root_device == torch.device("cuda", 0)
    return module, {"epoch=0-step=3.ckpt"}


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    ("packages", "train", "more"),
    [
        (("accelerate",), with_accelerate, 0),
        # Its AdamW is fused, so each parameter's step is on the card.
        (("accelerate", "transformers"), with_trainer, 4 * 4),
        (("pytorch_lightning",), with_lightning, 0),
    ],
    ids=["accelerate", "trainer", "lightning"],
)
@pytest.mark.filterwarnings("ignore")
def test_a_loop_of_others_is_traced_like_ones_own(  # noqa: PLR0913, PLR0917
    gpu, tmp_path, packages, train, more, bf16
):
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    with nbmem.trace() as trace:
        network, saved = train(tmp_path, bf16=bf16)
    report = trace.report()
    parameters = sum(p.numel() * p.element_size() for p in network.parameters())
    assert parameters == 4 * (64 * 128 + 128 + 128 * 8 + 8)
    steps = [row for row in report.phases if row.name == "optimizer"]
    assert [row.step for row in steps] == list(range(STEPS))
    for row in steps:
        held = row.ledger_at_end
        assert held[Category.WEIGHTS] == parameters
        assert held[Category.GRADIENTS] == parameters
        assert held[Category.OPTIMIZER_STATE] == 2 * parameters + more
        assert held[Category.WORKSPACE] >= 2 * 32 << 20
    for name in ("input", "forward", "backward"):
        found = [row.step for row in report.phases if row.name == name]
        assert set(found) >= set(range(STEPS)), name
    # Where most is allocated, not yet all may be reserved.
    at_peak = report.ledger_at_peak
    assert at_peak.process == at_peak.reserved + at_peak[Category.CONTEXT] <= report.peak.process
    assert saved <= {path.name for path in tmp_path.rglob("*")}
