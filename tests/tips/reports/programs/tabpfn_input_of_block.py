"""After PriorLabs/TabPFN#1066: a prediction holds one activation of the whole table too many."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
ROWS, TRAIN_ROWS, COLUMNS, EMBED, HEADS, LAYERS, CHUNK = 6144, 5120, 96, 192, 6, 4, 12


def chunked_evaluate_maybe_inplace(f, x, save_peak_memory_factor, *, residual):
    """Apply f to parts of x along its first dimension, and put the result into x"""
    if save_peak_memory_factor is None:
        return x + f(x) if residual else f(x)
    for part in x.split(max(1, len(x) // save_peak_memory_factor)):
        part.copy_(part + f(part) if residual else f(part))
    return x


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_projection = nn.Linear(EMBED, EMBED, bias=False)
        self.kv_projection = nn.Linear(EMBED, 2 * EMBED, bias=False)
        self.out_projection = nn.Linear(EMBED, EMBED, bias=False)

    def forward(self, x_BSE, context=None):
        context = x_BSE if context is None else context
        q = self.q_projection(x_BSE).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        kv = self.kv_projection(context).unflatten(-1, (2, HEADS, -1))
        k, v = (t.transpose(1, 2) for t in kv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v)
        return self.out_projection(attended.transpose(1, 2).flatten(2))


class TabPFNBlock(nn.Module):
    """Attention between the features of a row, between the rows of a feature, and an MLP"""

    def __init__(self):
        super().__init__()
        self.per_sample_attention_between_features = Attention()
        self.per_column_attention_between_cells = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(EMBED, 2 * EMBED), nn.GELU(), nn.Linear(2 * EMBED, EMBED)
        )
        self.layernorm_mha1 = nn.LayerNorm(EMBED)
        self.layernorm_mha2 = nn.LayerNorm(EMBED)
        self.layernorm_mlp = nn.LayerNorm(EMBED)

    def forward(self, x_BRCE, num_train_rows, save_peak_memory_factor=None):
        if isinstance(x_BRCE, list):
            x_BRCE = x_BRCE.pop(0)
        shape = x_BRCE.shape
        self._evaluate(
            lambda x: self.layernorm_mha1(self.per_sample_attention_between_features(x) + x),
            x_BRCE.flatten(0, 1),
            save_peak_memory_factor,
        )
        # contiguous, so that the columns can be computed in place
        x_BCRE = x_BRCE.transpose(1, 2).contiguous()
        del x_BRCE
        self._evaluate(
            lambda x: self.layernorm_mha2(
                self.per_column_attention_between_cells(x, x[:, :num_train_rows]) + x
            ),
            x_BCRE.flatten(0, 1),
            save_peak_memory_factor,
        )
        x_BRCE = x_BCRE.transpose(1, 2).contiguous()
        del x_BCRE
        self._evaluate(
            lambda x: self.layernorm_mlp(self.mlp(x) + x),
            x_BRCE.flatten(0, 2),
            save_peak_memory_factor,
        )
        return x_BRCE.view(shape)

    def _evaluate(self, f, x, save_peak_memory_factor):
        return chunked_evaluate_maybe_inplace(f, x, save_peak_memory_factor, residual=False)


class TabPFNV2p5(nn.Module):
    def __init__(self, n_out=10):
        super().__init__()
        self.feature_group_embedder = nn.Linear(3, EMBED)
        self.target_embedder = nn.Linear(1, EMBED)
        self.blocks = nn.ModuleList(TabPFNBlock() for _ in range(LAYERS))
        self.output_projection = nn.Linear(EMBED, n_out)

    def embed(self, x_RCG, y_train):
        y = torch.zeros(len(x_RCG), 1, 1, device=x_RCG.device, dtype=x_RCG.dtype)
        y[: len(y_train), 0, 0] = y_train
        return torch.cat([self.feature_group_embedder(x_RCG), self.target_embedder(y)], 1)[None]

    def forward(self, x_RCG, y_train, save_peak_memory_factor):
        x_BRCE = self.embed(x_RCG, y_train)
        for block in self.blocks:
            if CURED:
                container = [x_BRCE]
                del x_BRCE
                x_BRCE = block(container, len(y_train), save_peak_memory_factor)
            else:
                x_BRCE = block(x_BRCE, len(y_train), save_peak_memory_factor)
        return self.output_projection(x_BRCE[0, len(y_train) :, -1])


class TabPFNClassifier:
    def __init__(self, memory_saving_factor=CHUNK):
        self.model_ = TabPFNV2p5().to("cuda", torch.float16).eval()
        self.memory_saving_factor = memory_saving_factor

    def fit(self, X, y):
        self.X_, self.y_ = X.half(), y.half()
        return self

    @torch.no_grad()
    def predict_proba(self, X):
        table = torch.cat([self.X_, X.half()]).unflatten(1, (-1, 3)).cuda()
        logits = self.model_(table, self.y_.cuda(), self.memory_saving_factor)
        return logits.float().softmax(-1).cpu()


X, y = torch.rand(ROWS, 3 * (COLUMNS - 1)), torch.zeros(TRAIN_ROWS)
classifier = TabPFNClassifier().fit(X[:TRAIN_ROWS], y)
print(classifier.predict_proba(X[TRAIN_ROWS:]).shape)
