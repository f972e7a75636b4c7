"""Optimizers that keep more for each weight than AdamW does."""

import pytest

pytest.importorskip("torch", reason="the programs are torch programs")

import torch

from tests.tips.programs import MODEL

CLASS = """
class {kind}(torch.optim.Optimizer):
    def __init__(self, params, every=1):
        super().__init__(params, {{"lr": 0.1, "weight_decay": 0.01, "every": every}})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                for key in {keys}:
                    own = p.flatten()[:: group["every"]] if key in ("s", "p0") else p
                    state.setdefault(key, torch.zeros_like(own))
                p.sub_(state[{keys}[-1]], alpha=group["lr"])
"""
TRAINING = """
model = net(2048, 10)
optimizer = {made}
{cure}
for _ in range(3):
    model(batch(8, 2048)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PRODIGY = ("s", "p0", "exp_avg", "exp_avg_sq")
SILENT = {
    "three tensors, a small part of the peak": (
        ("exp_avg", "exp_avg_sq", "before"),
        "Own(model.parameters())",
    ),
    "two tensors": (("exp_avg", "exp_avg_sq"), "Own(model.parameters())"),
    "other names": (("momentum", "scale"), "Own(model.parameters())"),
    "amsgrad": (("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), "Own(model.parameters())"),
    "a moving average": (("exp_avg", "exp_avg_sq", "ema"), "Own(model.parameters())"),
    "float32 weights": (("exp_avg", "exp_avg_sq", "master_param"), "Own(model.parameters())"),
    "parts of the weights": (PRODIGY, "Own(model.parameters(), every=11)"),
    "torch's with amsgrad": (PRODIGY, "torch.optim.AdamW(model.parameters(), amsgrad=True)"),
    "torch's SGD": (PRODIGY, "torch.optim.SGD(model.parameters(), momentum=0.9)"),
}


def program(keys, kind="Own"):
    return MODEL + CLASS.format(kind=kind, keys=keys)


def tips(trace):
    found = trace.report().findings
    return [tip for tip in found if tip.rule == "optimizer_state" and "AdamW keeps" in tip.title]


@pytest.mark.parametrize(
    ("keys", "beside"),
    [
        (PRODIGY, "s and p0"),
        (("exp_avg", "exp_avg_diff", "exp_avg_sq", "before"), "exp_avg_diff and before"),
        (("fast", "slow", "slower", "slowest"), "slower and slowest"),
    ],
)
def test_with_adamw_as_much_less_stays_as_was_promised(run, keys, beside):
    made = "Own(model.parameters())"
    trace, names = run(TRAINING.format(made=made, cure=""), before=program(keys), card="T4")
    (tip,) = tips(trace)
    weights = sum(p.numel() * 4 for p in names["model"].parameters())
    assert tip.title.startswith(f"Own keeps {len(keys)} tensors for each weight")
    assert f"without {beside} the state" in tip.evidence
    left = torch.cuda.memory_allocated()
    mended, _ = run(TRAINING.format(made=made, cure=tip.code), before=program(keys), card="T4")
    assert tips(mended) == []
    assert tip.low == tip.high == left - torch.cuda.memory_allocated()
    assert tip.low == pytest.approx((len(keys) - 2) * weights, rel=0.001)


@pytest.mark.parametrize("what", SILENT)
def test_what_adam_keeps_or_what_has_a_purpose_is_not_told(run, what):
    keys, made = SILENT[what]
    trace, _ = run(TRAINING.format(made=made, cure=""), before=program(keys), card="T4")
    assert tips(trace) == []
