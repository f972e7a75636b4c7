"""After meta-pytorch/torchtune#389: full finetuning of a 7B model peaks far above the sum of weights, gradients and states."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False


class Layer(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.sa_norm, self.mlp_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.w13, self.w2 = (
            nn.Linear(dim, 2 * hidden, bias=False),
            nn.Linear(hidden, dim, bias=False),
        )

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.sa_norm(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d)
        )
        gate, up = self.w13(self.mlp_norm(x)).chunk(2, -1)
        return x + self.w2(F.silu(gate) * up)


class TransformerDecoder(nn.Module):
    def __init__(self, vocab=32000, layers=32, dim=4096):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, 32, 11008) for _ in range(layers))
        self.output = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(h)


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = TransformerDecoder()
told = {"fused": True} if CURED == "as told" else {"foreach": False if CURED else None}
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, **told)
for step in range(2):
    tokens = torch.randint(0, 32000, (1, 512)).cuda()
    logits = model(tokens)
    loss = F.cross_entropy(logits[0, :-1].float(), tokens[0, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
