"""After jiaweizzhao/GaLore#4 and #7: the low-rank optimizer asks for hundreds of GB in torch.linalg.svd for the layer of the vocabulary."""

import math
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
VOCAB, HIDDEN, LAYERS, SEQ = 32000, 256, 6, 128


class GaLoreProjector:
    def __init__(self, rank, update_proj_gap=200, scale=1.0, proj_type="std"):
        self.rank, self.update_proj_gap, self.scale, self.proj_type = (
            rank,
            update_proj_gap,
            scale,
            proj_type,
        )
        self.ortho_matrix = None

    def project(self, full_rank_grad, iter):
        if full_rank_grad.shape[0] >= full_rank_grad.shape[1]:
            if self.ortho_matrix is None or iter % self.update_proj_gap == 0:
                self.ortho_matrix = self.get_orthogonal_matrix(
                    full_rank_grad, self.rank, type="right"
                )
            return torch.matmul(full_rank_grad, self.ortho_matrix.t())
        if self.ortho_matrix is None or iter % self.update_proj_gap == 0:
            self.ortho_matrix = self.get_orthogonal_matrix(full_rank_grad, self.rank, type="left")
        return torch.matmul(self.ortho_matrix.t(), full_rank_grad)

    def project_back(self, low_rank_grad):
        if low_rank_grad.shape[0] >= low_rank_grad.shape[1]:
            full_rank_grad = torch.matmul(low_rank_grad, self.ortho_matrix)
        else:
            full_rank_grad = torch.matmul(self.ortho_matrix, low_rank_grad)
        return full_rank_grad * self.scale

    def get_orthogonal_matrix(self, weights, rank, type):
        matrix = weights.data if weights.data.dtype == torch.float else weights.data.float()
        if CURED:
            U, s, Vh = torch.linalg.svd(matrix, full_matrices=False)
        else:
            U, s, Vh = torch.linalg.svd(matrix)
        if type == "right":
            B = Vh[:rank, :]
            return B.to(weights.dtype).contiguous()
        A = U[:, :rank]
        return A.to(weights.dtype).contiguous()


class AdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if "step" not in state:
                    state["step"] = 0
                if "rank" in group:
                    if "projector" not in state:
                        state["projector"] = GaLoreProjector(
                            group["rank"], group["update_proj_gap"], group["scale"]
                        )
                    grad = state["projector"].project(grad, state["step"])
                if "exp_avg" not in state:
                    state["exp_avg"], state["exp_avg_sq"] = (
                        torch.zeros_like(grad),
                        torch.zeros_like(grad),
                    )
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                beta1, beta2 = group["betas"]
                state["step"] += 1
                exp_avg.mul_(beta1).add_(grad, alpha=1.0 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                step_size = (
                    group["lr"]
                    * math.sqrt(1.0 - beta2 ** state["step"])
                    / (1.0 - beta1 ** state["step"])
                )
                norm_grad = exp_avg / denom
                if "rank" in group:
                    norm_grad = state["projector"].project_back(norm_grad)
                p.add_(norm_grad, alpha=-step_size)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q_proj, self.k_proj = (
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
        )
        self.v_proj, self.o_proj = (
            nn.Linear(HIDDEN, HIDDEN, bias=False),
            nn.Linear(HIDDEN, HIDDEN, bias=False),
        )
        self.up_proj, self.down_proj = (
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=False),
            nn.Linear(4 * HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, x):
        b, t, c = x.shape
        h = self.norm1(x)
        q, k, v = (
            p(h).view(b, t, 4, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        x = x + self.o_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        )
        return x + self.down_proj(F.gelu(self.up_proj(self.norm2(x))))


class TransformerLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def main():
    model = TransformerLM().to(DEVICE)
    galore_params = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    id_galore_params = {id(p) for p in galore_params}
    regular_params = [p for p in model.parameters() if id(p) not in id_galore_params]
    optimizer = AdamW(
        [
            {"params": regular_params},
            {"params": galore_params, "rank": 64, "update_proj_gap": 2, "scale": 0.25},
        ],
        lr=1e-3,
    )
    for step in range(4):
        ids = torch.randint(0, VOCAB, (8, SEQ + 1), device=DEVICE)
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
