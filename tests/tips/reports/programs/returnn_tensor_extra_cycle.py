"""After rwth-i6/returnn#1826: the allocated CUDA memory of a frontend model goes up during training, flat only with gc.collect() per step."""

import weakref
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class Dim:
    def __init__(self, dimension, name):
        self.dimension, self.name = dimension, name

    def __repr__(self):
        return f"{self.name}({self.dimension})"


class _TensorExtra:
    def __init__(
        self, *, tensor, time_dim_axis=None, batch=None, beam=None, available_for_inference=True
    ):
        if CURED:
            self._tensor_ref = weakref.ref(tensor)
        else:
            self.tensor = tensor
        self.time_dim_axis, self.batch, self.beam = time_dim_axis, batch, beam
        self.available_for_inference = available_for_inference

    def get_tensor(self):
        return self._tensor_ref() if CURED else self.tensor


class Tensor:
    """A raw tensor with named dims; rare attributes live in _extra."""

    def __init__(self, name, dims, raw_tensor=None):
        self.name, self.dims, self.raw_tensor = name, tuple(dims), raw_tensor
        self._extra = None

    def _make_extra(self):
        if self._extra is None:
            self._extra = _TensorExtra(tensor=self)
        return self._extra

    @property
    def time_dim_axis(self):
        return self._extra.time_dim_axis if self._extra else None

    @time_dim_axis.setter
    def time_dim_axis(self, value):
        if value != self.time_dim_axis:
            self._make_extra().time_dim_axis = value

    @property
    def feature_dim(self):
        return self.dims[-1]

    def copy_template(self, name, raw_tensor, feature_dim=None):
        out = Tensor(name, self.dims[:-1] + ((feature_dim or self.feature_dim),), raw_tensor)
        out.time_dim_axis = self.time_dim_axis
        return out

    def __add__(self, other):
        return self.copy_template("add", self.raw_tensor + other.raw_tensor)


class RfLinear(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.in_dim, self.out_dim = in_dim, out_dim
        self.mod = nn.Linear(in_dim.dimension, out_dim.dimension)

    def forward(self, source):
        return source.copy_template("linear", self.mod(source.raw_tensor), self.out_dim)


class RfLayerNorm(nn.Module):
    def __init__(self, in_dim):
        super().__init__()
        self.mod = nn.LayerNorm(in_dim.dimension)

    def forward(self, source):
        return source.copy_template("layer_norm", self.mod(source.raw_tensor))


def rf_silu(source):
    return source.copy_template("silu", F.silu(source.raw_tensor))


def rf_dropout(source, drop_prob):
    return source.copy_template("dropout", F.dropout(source.raw_tensor, drop_prob))


class SelfAttention(nn.Module):
    def __init__(self, in_dim, num_heads, causal):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.qkv = RfLinear(in_dim, Dim(3 * in_dim.dimension, "qkv"))
        self.proj = RfLinear(in_dim, in_dim)
        self.in_dim = in_dim

    def forward(self, source):
        qkv = self.qkv(source)
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in qkv.raw_tensor.chunk(3, dim=-1)
        )
        att = (
            F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            .transpose(1, 2)
            .flatten(2)
        )
        return self.proj(source.copy_template("att", att, self.in_dim))


class Layer(nn.Module):
    def __init__(self, in_dim, ff_dim, num_heads=4, causal=False, dropout=0.1):
        super().__init__()
        self.att_norm, self.ff_norm = RfLayerNorm(in_dim), RfLayerNorm(in_dim)
        self.att = SelfAttention(in_dim, num_heads, causal)
        self.ff1, self.ff2 = RfLinear(in_dim, ff_dim), RfLinear(ff_dim, in_dim)
        self.dropout = dropout

    def forward(self, inp):
        x = inp + rf_dropout(self.att(self.att_norm(inp)), self.dropout)
        return x + rf_dropout(self.ff2(rf_silu(self.ff1(self.ff_norm(x)))), self.dropout)


class Model(nn.Module):
    def __init__(self, vocab=600, num_layers=3):
        super().__init__()
        model_dim, ff_dim = Dim(128, "model"), Dim(512, "ff")
        self.in_dim, self.target_dim = Dim(80, "logmel"), Dim(vocab, "vocab")
        self.input_proj = RfLinear(self.in_dim, model_dim)
        self.encoder = nn.ModuleList([Layer(model_dim, ff_dim) for _ in range(num_layers)])
        self.decoder = nn.ModuleList(
            [Layer(model_dim, ff_dim, causal=True) for _ in range(num_layers)]
        )
        self.target_embed = nn.Embedding(vocab, 128)
        self.out_norm, self.logits = RfLayerNorm(model_dim), RfLinear(model_dim, self.target_dim)
        self.model_dim = model_dim

    def forward(self, data, targets):
        enc = self.input_proj(data)
        for layer in self.encoder:
            enc = layer(enc)
        emb = Tensor(
            "embed", targets.dims + (self.model_dim,), self.target_embed(targets.raw_tensor)
        )
        emb.time_dim_axis = 1
        dec = emb + emb.copy_template("ctx", enc.raw_tensor.mean(dim=1, keepdim=True))
        for layer in self.decoder:
            dec = layer(dec)
        return self.logits(self.out_norm(dec))


class RunCtx:
    def __init__(self):
        self.losses = {}

    def mark_as_loss(self, loss, name):
        self.losses[name] = loss

    def total_loss(self):
        return sum(loss.raw_tensor.mean() for loss in self.losses.values())


def train_step(model, extern_data, run_ctx):
    logits = model(extern_data["data"], extern_data["classes"])
    raw = F.cross_entropy(
        logits.raw_tensor[:, :-1].flatten(0, 1),
        extern_data["classes"].raw_tensor[:, 1:].flatten(),
        reduction="none",
    )
    run_ctx.mark_as_loss(Tensor("ce", [Dim(raw.shape[0], "packed")], raw), "ce")


class Engine:
    def __init__(self, model):
        self.model = model.to(DEVICE)
        self.updater = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def extern_data_from_raw(self, raw):
        batch_dim, time_dim = Dim(raw["data"].shape[0], "batch"), Dim(raw["data"].shape[1], "time")
        out_dim = Dim(raw["classes"].shape[1], "out-spatial")
        data = Tensor("data", [batch_dim, time_dim, self.model.in_dim], raw["data"].to(DEVICE))
        data.time_dim_axis = 1
        classes = Tensor("classes", [batch_dim, out_dim], raw["classes"].to(DEVICE))
        classes.time_dim_axis = 1
        return {"data": data, "classes": classes}

    def train_epoch(self, loader):
        self.model.train()
        for step_idx, raw in enumerate(loader):
            extern_data = self.extern_data_from_raw(raw)
            run_ctx = RunCtx()
            train_step(self.model, extern_data, run_ctx)
            total_loss = run_ctx.total_loss()
            total_loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.updater.step()
            self.updater.zero_grad(set_to_none=True)
            print(
                f"step {step_idx}, loss {float(total_loss):.3f}, mem_usage {torch.cuda.memory_allocated() / 2**20:.0f} MiB"
            )
            del extern_data, run_ctx, total_loss


def main():
    torch.manual_seed(1)
    loader = (
        {"data": torch.randn(12, 160, 80), "classes": torch.randint(0, 600, (12, 96))}
        for _ in range(10)
    )
    Engine(Model()).train_epoch(loader)


if __name__ == "__main__":
    main()
