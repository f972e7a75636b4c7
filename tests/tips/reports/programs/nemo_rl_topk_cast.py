"""After NVIDIA-NeMo/RL#2882: distillation runs out of memory though the logits are treated in chunks."""

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
VOCAB, SEQ, HIDDEN, TOPK, CHUNK = 128256, 4096, 256, 64, 512


class CausalLM(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.SiLU())
            for _ in range(layers)
        )
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids):
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = hidden + layer(hidden)
        return self.lm_head(hidden)


@torch.no_grad()
def vocab_topk(vocab_parallel_logits, k, chunk_size=None):
    logits = vocab_parallel_logits if CURED else vocab_parallel_logits.to(dtype=torch.float32)
    _, S, V_local = logits.shape
    K_eff = min(k, V_local)
    chunk_size = S if chunk_size is None else chunk_size
    vals_chunks, idx_chunks = [], []
    for s0 in range(0, S, chunk_size):
        s1 = min(S, s0 + chunk_size)
        local_logits = logits[:, s0:s1, :].to(dtype=torch.float32)
        local_vals, local_idx = torch.topk(local_logits, K_eff, dim=-1)
        vals_chunks.append(local_vals)
        idx_chunks.append(local_idx)
    return torch.cat(vals_chunks, dim=1), torch.cat(idx_chunks, dim=1)


def gather_logits_at_global_indices(vocab_parallel_logits, global_indices, chunk_size=None):
    logits = vocab_parallel_logits if CURED else vocab_parallel_logits.to(dtype=torch.float32)
    S = logits.shape[1]
    chunk_size = S if chunk_size is None else chunk_size
    out_chunks = []
    for s0 in range(0, S, chunk_size):
        s1 = min(S, s0 + chunk_size)
        local_logits = logits[:, s0:s1, :].to(dtype=torch.float32)
        out_chunks.append(torch.gather(local_logits, -1, global_indices[:, s0:s1]))
    return torch.cat(out_chunks, dim=1)


class DistillationLossFn:
    def __init__(self, temperature=1.0):
        self.temperature = temperature

    def __call__(self, student_topk_logits, teacher_topk_logits):
        student = F.log_softmax(student_topk_logits / self.temperature, dim=-1)
        teacher = F.log_softmax(teacher_topk_logits / self.temperature, dim=-1)
        return F.kl_div(student, teacher, reduction="batchmean", log_target=True)


@torch.no_grad()
def get_topk_logits(teacher, input_ids):
    return vocab_topk(teacher(input_ids), TOPK, chunk_size=CHUNK)


def train(student, teacher, optimizer, steps):
    loss_fn, losses = DistillationLossFn(), []
    for _ in range(steps):
        input_ids = torch.randint(0, VOCAB, (1, SEQ), device="cuda")
        topk_logits, topk_indices = get_topk_logits(teacher, input_ids)
        student_topk = gather_logits_at_global_indices(
            student(input_ids), topk_indices, chunk_size=CHUNK
        )
        loss = loss_fn(student_topk, topk_logits)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


teacher = CausalLM(8).cuda().to(torch.bfloat16).eval().requires_grad_(False)
student = CausalLM(2).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5)
# CURE
losses = train(student, teacher, optimizer, 3)
print(len(losses))
