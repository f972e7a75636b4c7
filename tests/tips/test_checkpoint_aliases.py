"""A checkpoint under several names is reported with all of them, to the byte."""

import pytest

from tests.tips.programs import MODEL

torch = pytest.importorskip("torch", reason="the programs are torch programs")

BEFORE = (
    MODEL
    + """
import io

def saved(model, prefix="", **more):
    file = io.BytesIO()
    weights = {prefix + key: value for key, value in model.state_dict().items()}
    torch.save({"model": weights, **more}, file)
    file.seek(0)
    return file

def train(model, optimizer=None):
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    model(batch()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer
"""
)
READ = 'checkpoint = torch.load(saved(model), map_location="cuda")\n'
NANO_GPT = """
model = net()
checkpoint = torch.load(saved(model, "_orig_mod."), map_location="cuda")
state_dict = checkpoint["model"]
unwanted_prefix = "_orig_mod."
for k, v in list(state_dict.items()):
    if k.startswith(unwanted_prefix):
        state_dict[k[len(unwanted_prefix):]] = state_dict.pop(k)
model.load_state_dict(state_dict)
train(model)
"""
RESUMED = """
class App:
    pass

first = net()
adam = train(first)
file = saved(first, optimizer=adam.state_dict())
del first, adam
app, model = App(), net()
app.state = torch.load(file, map_location="cuda")
model.load_state_dict(app.state["model"])
adam = torch.optim.Adam(model.parameters())
adam.load_state_dict(app.state["optimizer"])
for state in adam.state.values():
    state["exp_avg"], state["exp_avg_sq"] = state["exp_avg"] * 1, state["exp_avg_sq"] * 1
train(model, adam)
"""
TOLD = {
    "an attribute, with the state that an optimizer had": (RESUMED, "del app.state"),
    "an alias": (
        (
            f"model = net()\n{READ}state_dict = checkpoint['model']\n"
            "model.load_state_dict(state_dict)\ntrain(model)"
        ),
        "del checkpoint, state_dict",
    ),
    "renamed keys": (NANO_GPT, "del checkpoint, state_dict"),
    "a loop over it": (
        (
            f"model = net()\n{READ}own = model.state_dict()\n"
            "for k, v in reversed(checkpoint['model'].items()):\n    own[k].copy_(v)\ntrain(model)"
        ),
        "del checkpoint, v",
    ),
    "a copy of the dictionary": (
        (
            f"model = net()\n{READ}weights = {{**checkpoint['model']}}\n"
            "model.load_state_dict(weights)\ntrain(model)"
        ),
        "del checkpoint, weights",
    ),
    "keys of a wrapper": (
        (
            "model = net()\nfile = saved(model, 'module.')\n"
            "checkpoint = torch.load(file, map_location='cuda')\n"
            "weights = checkpoint['model'].items()\n"
            "model.load_state_dict({k[7:]: v for k, v in weights})\ndel weights\ntrain(model)"
        ),
        "del checkpoint",
    ),
    "with an optimizer that shares its part": (
        (
            "model = net()\noptimizer = train(model)\n"
            "file = saved(model, optimizer=optimizer.state_dict())\n"
            "checkpoint = torch.load(file, map_location='cuda')\nstate_dict = checkpoint['model']\n"
            "model.load_state_dict(state_dict)\n"
            "optimizer.load_state_dict(checkpoint['optimizer'])\ntrain(model, optimizer)"
        ),
        "del checkpoint, state_dict",
    ),
}
SILENT = {
    "the model's own": "model = net()\nsd = model.state_dict()\nstate = sd\ntrain(model)",
    "assigned": (
        f"model = net()\n{READ}state_dict = checkpoint['model']\n"
        "model.load_state_dict(state_dict, assign=True)\ntrain(model)"
    ),
    "on the CPU": (
        "model = net()\ncheckpoint = torch.load(saved(model), map_location='cpu')\n"
        "state_dict = checkpoint['model']\nmodel.load_state_dict(state_dict)\ntrain(model)"
    ),
    "an average under two names": (
        "model = net()\nema = {k: v.clone() for k, v in model.state_dict().items()}\nsd = ema\n"
        "train(model)\nfor k, v in model.state_dict().items():\n    sd[k].lerp_(v, 0.01)"
    ),
    "straight into an optimizer": (
        "model = net()\noptimizer = train(model)\n"
        "file = saved(model, optimizer=optimizer.state_dict())\n"
        "optimizer.load_state_dict(torch.load(file, map_location='cuda')['optimizer'])\n"
        "train(model, optimizer)"
    ),
    "deleted in time": (
        f"model = net()\n{READ}state_dict = checkpoint['model']\n"
        "model.load_state_dict(state_dict)\ndel checkpoint, state_dict\ntrain(model)"
    ),
    "of which a model is gone": "model = net()\ntrain(model)\nsd = model.state_dict()\ndel model",
    "gradients of a function": (
        "def step(model):\n    optimizer = train(model)\n    model(batch()).sum().backward()\n"
        "    grads = {k: p.grad.clone() for k, p in model.named_parameters()}\n"
        "    return grads['0.0.bias'].sum()\nmodel = net()\nstep(model)"
    ),
}


def tips(trace):
    return [f for f in trace.report().findings if f.rule.startswith("checkpoint_")]


@pytest.mark.parametrize("case", TOLD)
def test_all_names_are_reported_and_deleting_them_frees_what_was_promised(run, case):
    code, remedy = TOLD[case]
    trace, names = run(code, before=BEFORE)
    (finding,) = tips(trace)
    assert finding.title.startswith(f"`{remedy}` gives back")
    assert finding.command is None, "a script has no magics"
    before = torch.cuda.memory_allocated()
    exec(finding.code, names)
    assert before - torch.cuda.memory_allocated() == finding.low == finding.high


@pytest.mark.parametrize("case", SILENT)
def test_what_is_used_or_gone_is_left_alone(run, case):
    trace, _ = run(SILENT[case], before=BEFORE)
    assert tips(trace) == []


LOCAL = """
def main(where):
    model = net()
    checkpoint = torch.load(saved(model), map_location=where)
    state_dict = checkpoint["model"]
    model.load_state_dict(state_dict)
    train(model)
"""


def test_a_checkpoint_of_a_function_that_has_ended_is_reported_with_the_peaks_fall(run):
    before, _ = run(LOCAL + "main('cuda')", before=BEFORE)
    after, _ = run(LOCAL + "main('cpu')", before=BEFORE)
    (finding,) = tips(before)
    assert 'map_location="cpu"' in finding.title
    assert "state_dict in main()" in finding.evidence
    fall = before.report().peak.allocated - after.report().peak.allocated
    assert finding.low == finding.high == fall
    assert tips(after) == []


def test_locals_of_a_running_function_are_reported_with_its_name(run):
    _, names = run("", before=BEFORE + f"import nbmem\n{LOCAL.replace('def main', 'def one')}")
    code = LOCAL.replace("\n    ", "\n        ").replace(
        "def main(where):", "def main(where):\n    with nbmem.trace('cell') as trace:"
    )
    exec(f"{code}    return trace", names)
    (finding,) = tips(names["main"]("cuda"))
    assert finding.title.startswith("`del checkpoint, state_dict` in main() gives back")
