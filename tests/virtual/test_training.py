"""Training code on the card, with exact large parts."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

MODES = ["plain", "bf16", "fp16", "accumulate", "keep-zeros", "clip", "offload", "channels-last"]


def rounded(tensor):
    return -(-tensor.numel() * tensor.element_size() // 512) * 512


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10),
    ), lambda: (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))  # fmt: skip


def transformer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(100, 64)
            layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
            self.t = nn.TransformerEncoder(layer, 2)
            self.o = nn.Linear(64, 100)

        def forward(self, x):
            return self.o(self.t(self.e(x))).flatten(0, 1)

    return Model(), lambda: (torch.randint(0, 100, (4, 16)), torch.randint(0, 100, (64,)))


def recurrent(kind):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(50, 32)
            self.r = getattr(nn, kind)(32, 48, 2, dropout=0.2, batch_first=True, bidirectional=True)
            self.o = nn.Linear(96, 50)

        def forward(self, x):
            return self.o(self.r(self.e(x))[0]).flatten(0, 1)

    return Model(), lambda: (torch.randint(0, 50, (4, 9)), torch.randint(0, 50, (36,)))


def bags():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = nn.EmbeddingBag(1000, 16, mode="sum")
            self.o = nn.Linear(16, 10)

        def forward(self, x):
            return self.o(self.b(x))

    return Model(), lambda: (torch.randint(0, 1000, (8, 5)), torch.randint(0, 10, (8,)))


def upsampling():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = nn.Conv2d(3, 8, 3, padding=1)
            self.t = nn.ConvTranspose2d(8, 5, 2, 2)

        def forward(self, x):
            y = self.t(F.relu(self.c(x)))
            return F.interpolate(y, scale_factor=0.5, mode="bilinear")

    return Model(), lambda: (torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2, 16, 16)))


MODELS = {
    "cnn": cnn,
    "transformer": transformer,
    "lstm": lambda: recurrent("LSTM"),
    "gru": lambda: recurrent("GRU"),
    "bags": bags,
    "upsampling": upsampling,
}


def train(model, batch, optimizer, mode="plain", steps=2):
    amp = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mode)
    scaler = torch.amp.GradScaler("cuda") if mode == "fp16" else None
    losses = []
    for _ in range(steps):
        for _ in range(2 if mode == "accumulate" else 1):
            x, y = (t.cuda(non_blocking=True) for t in batch())
            if mode == "channels-last" and x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
            with contextlib.ExitStack() as stack:
                if amp:
                    stack.enter_context(torch.autocast("cuda", amp))
                if mode == "offload":
                    stack.enter_context(torch.autograd.graph.save_on_cpu(pin_memory=True))
                loss = F.cross_entropy(model(x), y)
            (scaler.scale(loss) if scaler else loss).backward()
        if mode == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad(set_to_none=mode != "keep-zeros")
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_training_runs_and_what_it_keeps_is_exact(gpu, name, mode):
    model, batch = MODELS[name]()
    if mode == "channels-last":
        model = model.to(memory_format=torch.channels_last)
    model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, batch, optimizer, mode)
    assert all(abs(loss) < 1e6 for loss in losses)
    weights = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in model.parameters()}
    kept = sum(-(-s.nbytes() // 512) * 512 for s in weights.values())
    kept += sum(rounded(b) for b in model.buffers())
    state = [t for s in optimizer.state.values() for t in s.values() if t.is_cuda]
    assert len(state) == 2 * len(list(model.parameters()))
    kept += sum(rounded(t) for t in state)
    if mode == "keep-zeros":
        grads = {p.grad.untyped_storage().data_ptr(): p.grad for p in model.parameters()}
        kept += sum(-(-g.untyped_storage().nbytes() // 512) * 512 for g in grads.values())
    workspaces = sum(gpu.allocator.block_bytes(a) for a in gpu.workspaces._held.values())
    if gpu.dropout_state is not None:
        workspaces += gpu.dropout_state.numel()
    assert torch.cuda.memory_allocated() - workspaces - kept in range(512 * 12)
    del model, optimizer, state, batch, weights
    if mode == "keep-zeros":
        del grads


@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "more", "per_parameter"),
    [
        ("SGD", {"lr": 0.1}, 0),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, 1),
        ("Adam", {}, 2),
        ("AdamW", {"amsgrad": True}, 3),
        ("RMSprop", {}, 1),
        ("Adagrad", {}, 1),
        ("Adafactor", {}, None),
    ],
)
def test_optimizers_hold_what_their_algorithm_needs(gpu, name, more, per_parameter, options):
    if "fused" in options and name in ("RMSprop", "Adafactor"):
        pytest.skip("torch has no fused kernel for it")
    model = nn.Linear(256, 128, bias=False).cuda()
    optimizer = getattr(torch.optim, name)(model.parameters(), **more, **options)
    for _ in range(2):
        model(torch.randn(4, 256, device="cuda")).sum().backward()
        try:
            optimizer.step()
        except RuntimeError as err:
            if "fused=True" not in str(err):
                raise
            pytest.skip("this release of torch has no fused kernel for it")
        optimizer.zero_grad()
    state = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    large = sum(t.numel() * 4 for t in state if t.is_cuda and t.numel() == 256 * 128)
    if per_parameter is not None:
        assert large == per_parameter * 256 * 128 * 4


def test_foreach_is_the_default_as_on_cuda(gpu):
    model = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(8)).cuda()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    peaks = []
    for foreach in (None, False):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        optimizer.step()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())
        del optimizer
    assert peaks[0] >= 8 * 512 * 512 * 4 > peaks[1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_saves_activations(gpu, reentrant):
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6)
    )
    layers.cuda()

    def peak(recompute):
        x = torch.randn(8192, 256, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=reentrant) if recompute else layer(x)
        x.sum().backward()
        layers.zero_grad()
        return torch.cuda.max_memory_allocated()

    peak(recompute=False)
    assert peak(recompute=True) < 0.7 * peak(recompute=False)


def test_no_grad_and_inference_mode_keep_nothing(gpu):
    model, batch = transformer()
    model.cuda().eval()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = model(batch()[0].cuda())
        assert out.size() == (64, 100)
        before = torch.cuda.memory_allocated()
        del out
        assert before - torch.cuda.memory_allocated() == 64 * 100 * 4


def test_two_models_and_two_optimizers(gpu):
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16)).cuda()
    critic = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)).cuda()
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    seen = []
    for _ in range(3):
        fake = generator(torch.randn(32, 8, device="cuda"))
        real = torch.randn(32, 16, device="cuda")
        loss = critic(fake.detach()).mean() - critic(real).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
        seen.append(torch.cuda.memory_allocated())
    assert seen[1] == seen[2]


def test_data_loader_with_workers_and_pinned_memory(gpu):
    data = TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,)))
    model = nn.Linear(4, 2).cuda()
    right = 0
    for x, y in DataLoader(data, batch_size=8, num_workers=1, pin_memory=True):
        prediction = model(x.cuda(non_blocking=True)).argmax(1)
        right += (prediction == y.cuda(non_blocking=True)).sum().item()
    assert 0 <= right <= 32


def test_packed_sequences(gpu):
    model = nn.LSTM(8, 16).cuda()
    x = torch.randn(5, 3, 8, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
    out, _ = model(packed)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(out)
    assert padded.size() == (5, 3, 16)
    assert lengths.tolist() == [5, 4, 2]
    padded.sum().backward()


def test_a_program_is_steady_from_the_second_step_on(gpu):
    model, batch = cnn()
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train(model, batch, optimizer)
    after = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        train(model, batch, optimizer, steps=1)
        after.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
    assert len(set(after)) == 1


def test_bfloat16_weights_of_an_lstm_are_laid_out_anew_in_each_forward(gpu):
    # torch.backends.cudnn.is_acceptable() knows no bfloat16: flatten_parameters() does nothing.
    weights = 4 * 256 * (8 + 256 + 2)  # so wide that both have one algorithm

    def held(dtype):
        x = torch.randn(5, 3, 8, device="cuda", dtype=dtype)
        model = nn.LSTM(8, 256).to("cuda", dtype)
        before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
        with torch.no_grad():
            model(x)
        return torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before

    assert held(torch.bfloat16) - held(torch.float16) == weights * 2


def backward_peak(loss):
    """Return the most 4 MiB tensors alive during backward."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    loss.backward()
    return (torch.cuda.max_memory_allocated() - before) // (4 << 20)


def test_gradients_are_added_in_place_as_the_engine_does_on_cuda(gpu):
    y = torch.randn(1 << 20, device="cuda", requires_grad=True) * 2
    # The sum so far and the new part; a sum beside them would be a third.
    assert backward_peak((y * 3 + y * 4).sum()) == 2


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize(
    "keep",
    [lambda g: g, lambda g: g[:1], lambda g: torch.empty(0, device="cuda").set_(g.detach())],
    ids=["tensor", "view", "storage"],
)
def test_a_gradient_that_the_program_holds_is_not_added_to(gpu, keep):
    y = torch.randn(64, 64, device="cuda", requires_grad=True) * 2
    kept, total = [], []
    y.register_hook(total.append)
    parts = y * 3, y * 4
    for part in parts:
        part.grad_fn.register_hook(lambda made, _given: kept.append(keep(made[0])))
    (parts[0] + parts[1]).sum().backward()
    assert len(kept) == 2
    assert storage_of(total[0]) not in map(storage_of, kept)


def test_a_gradient_that_waits_at_two_nodes_is_not_added_to(gpu):
    y = torch.randn(64, 64, device="cuda", requires_grad=True) * 2
    w = torch.randn(64, 64, device="cuda", requires_grad=True) * 2
    seen = []
    y.register_hook(seen.append)
    w.register_hook(seen.append)
    other = y * 4  # before the sum, so that backward comes to it later
    ((y + w) * 3 + other).sum().backward()
    assert storage_of(seen[0]) != storage_of(seen[1])


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x.max(1)[0],
        lambda x: x.gather(0, torch.zeros(2, 2, dtype=torch.int64, device="cuda")),
        lambda x: x.index_select(0, torch.zeros(2, dtype=torch.int64, device="cuda")),
        lambda x: x[torch.zeros(2, dtype=torch.int64, device="cuda")],
        lambda x: x.cummax(0)[0],
    ],
    ids=["max", "gather", "index_select", "index", "cummax"],
)
def test_formulas_fill_their_zeros_in_place_as_on_cuda(gpu, pick):
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    picked = pick(x)
    ones = torch.ones_like(picked)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    picked.backward(ones)
    # The gradient and no second one. index_put sorts its two indices, besides.
    assert 4 << 20 <= torch.cuda.max_memory_allocated() - before <= (4 << 20) + 8192
