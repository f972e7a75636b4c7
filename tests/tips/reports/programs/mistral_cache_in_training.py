"""After mistralai/mistral-inference#20: training the one-file transformer, 30 MB more stay on the GPU after each step."""

from dataclasses import dataclass
import torch
from torch import nn

CURED = False
DEVICE = "cuda"


@dataclass
class ModelArgs:
    dim: int = 512
    n_layers: int = 6
    head_dim: int = 64
    hidden_dim: int = 1024
    n_heads: int = 8
    n_kv_heads: int = 8
    sliding_window: int = 256
    norm_eps: float = 1e-5
    n_features: int = 40
    n_classes: int = 12
    max_batch_size: int = 8
    device: str = DEVICE


def rotate(x, cos, sin):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], dim=-1)


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.sliding_window = args.sliding_window
        self.wq = nn.Linear(args.dim, args.n_heads * args.head_dim, bias=False)
        self.wk = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wv = nn.Linear(args.dim, args.n_kv_heads * args.head_dim, bias=False)
        self.wo = nn.Linear(args.n_heads * args.head_dim, args.dim, bias=False)
        shape = (args.max_batch_size, args.sliding_window, args.n_kv_heads, args.head_dim)
        self.cache_k = torch.empty(shape, device=args.device)
        self.cache_v = torch.empty(shape, device=args.device)

    def forward(self, x, cos, sin, positions, mask):
        bsz, seqlen, _ = x.shape
        xq = rotate(self.wq(x).view(bsz, seqlen, -1, self.args.head_dim), cos, sin)
        xk = rotate(self.wk(x).view(bsz, seqlen, -1, self.args.head_dim), cos, sin)
        xv = self.wv(x).view(bsz, seqlen, -1, self.args.head_dim)
        if not CURED:
            # rotating buffer
            scatter_pos = (positions[-self.sliding_window :] % self.sliding_window)[
                None, :, None, None
            ]
            scatter_pos = scatter_pos.repeat(bsz, 1, self.args.n_kv_heads, self.args.head_dim)
            self.cache_k[:bsz].scatter_(dim=1, index=scatter_pos, src=xk[:, -self.sliding_window :])
            self.cache_v[:bsz].scatter_(dim=1, index=scatter_pos, src=xv[:, -self.sliding_window :])
        if positions.shape[0] > 1:
            key, value = xk, xv
        else:
            cur_pos = positions[-1].item() + 1
            key, value = self.cache_k[:bsz, :cur_pos], self.cache_v[:bsz, :cur_pos]
        query, key, value = (t.transpose(1, 2) for t in (xq, key, value))
        scores = torch.matmul(query, key.transpose(2, 3)) * self.args.head_dim**-0.5
        if mask is not None:
            scores = scores + mask[None, None]
        output = torch.matmul(scores.softmax(-1), value)
        return self.wo(output.transpose(1, 2).reshape(bsz, seqlen, -1))


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class TransformerBlock(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.attention_norm, self.ffn_norm = (
            RMSNorm(args.dim, args.norm_eps),
            RMSNorm(args.dim, args.norm_eps),
        )
        self.feed_forward = nn.Sequential(
            nn.Linear(args.dim, args.hidden_dim), nn.SiLU(), nn.Linear(args.hidden_dim, args.dim)
        )

    def forward(self, x, cos, sin, positions, mask):
        h = x + self.attention(self.attention_norm(x), cos, sin, positions, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class TabularTransformer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Linear(args.n_features, args.dim)
        self.layers = nn.ModuleList([TransformerBlock(args) for _ in range(args.n_layers)])
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.output = nn.Linear(args.dim, args.n_classes)
        freqs = torch.outer(
            torch.arange(4096).float(),
            1e4 ** (-torch.arange(args.head_dim // 2) / (args.head_dim // 2)),
        )
        self.register_buffer("cos", freqs.cos()[:, None], persistent=False)
        self.register_buffer("sin", freqs.sin()[:, None], persistent=False)

    def forward(self, x, positions):
        h = self.embed(x)
        mask = torch.full((x.shape[1],) * 2, float("-inf"), device=h.device).triu(1)
        for layer in self.layers:
            h = layer(h, self.cos[positions], self.sin[positions], positions, mask)
        return self.output(self.norm(h[:, -1]))


args = ModelArgs()
model = TabularTransformer(args).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
positions = torch.arange(0, 256).to(DEVICE)

for step in range(12):
    rows = torch.rand(8, 256, args.n_features).to(DEVICE)
    target = torch.randint(0, args.n_classes, (8,)).to(DEVICE)
    loss = nn.functional.cross_entropy(model(rows, positions), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        f"step {step} loss {loss.item():.4f} allocated {torch.cuda.memory_allocated() / 2**20:.0f} MB"
    )
