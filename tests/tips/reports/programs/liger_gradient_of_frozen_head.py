"""After linkedin/Liger-Kernel#1441: DPO of LoRA adapters keeps a gradient of the frozen lm_head."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
VOCAB, HIDDEN, LAYERS, SEQ, PAIRS, RANK = 152064, 1536, 4, 256, 4, 16
IGNORE_INDEX = -100


class FusedLinearDPOFunction(torch.autograd.Function):
    """lm_head and preference loss, chunk by chunk; the gradients are computed in forward"""

    @staticmethod
    def forward(ctx, _input, weight, target, ref_logps, beta=0.1):
        frozen = not ctx.needs_input_grad[1]
        grad_weight = None if CURED and frozen else torch.zeros_like(weight)
        grad_chosen_inputs, grad_rejected_inputs = [], []
        loss_acc = torch.zeros((), device=_input.device)
        loss_func_to_call = partial(
            FusedLinearDPOFunction.compute_loss, pairs=target.shape[0] // 2, beta=beta
        )

        def accumulate_chunk(input_chunk, target_chunk, ref_chunk):
            argnums = (0,) if grad_weight is None else (0, 1)
            grads, (chunk_loss, chunk_logps) = torch.func.grad_and_value(
                loss_func_to_call, argnums=argnums, has_aux=True
            )(input_chunk, weight, target_chunk, ref_chunk)
            if grad_weight is not None:
                grad_weight.add_(grads[1])
            loss_acc.add_(chunk_loss)
            return grads[0]

        len_chosen = target.shape[0] // 2
        for i in range(len_chosen):
            rows = [i, len_chosen + i]
            grad_input = accumulate_chunk(_input[rows], target[rows], ref_logps[rows])
            grad_chosen_inputs.append(grad_input[:1])
            grad_rejected_inputs.append(grad_input[1:])

        grad_inputs = torch.cat(grad_chosen_inputs + grad_rejected_inputs)
        ctx.save_for_backward(grad_inputs, grad_weight)
        return loss_acc

    @staticmethod
    def backward(ctx, grad_output):
        grad_input, grad_weight = ctx.saved_tensors
        if torch.ne(grad_output, torch.tensor(1.0, device=grad_output.device)):
            grad_input = grad_input * grad_output
            grad_weight = grad_weight * grad_output if grad_weight is not None else None
        return grad_input, grad_weight, None, None, None

    @staticmethod
    def compute_loss(input_chunk, weight, target_chunk, ref_chunk, pairs, beta):
        logits_chunk = input_chunk @ weight.t()
        log_probs_chunk = F.log_softmax(logits_chunk.float(), dim=-1)
        loss_mask = target_chunk != IGNORE_INDEX
        label_chunk = torch.where(loss_mask, target_chunk, 0)
        per_token_logps = log_probs_chunk.gather(-1, label_chunk.unsqueeze(-1)).squeeze(-1)
        logps = (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1)
        rewards = logps - ref_chunk
        loss = -F.logsigmoid(beta * (rewards[0] - rewards[1])) / pairs
        return loss, (loss, logps)


class LoraLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.base_layer = nn.Linear(n_in, n_out, bias=False).requires_grad_(False)
        self.lora_A = nn.Linear(n_in, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, n_out, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN).requires_grad_(False)
        self.up_proj = LoraLinear(HIDDEN, 2 * HIDDEN)
        self.down_proj = LoraLinear(2 * HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.down_proj(F.silu(self.up_proj(self.norm(x))))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.layers = nn.Sequential(*[DecoderLayer() for _ in range(LAYERS)])
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False).requires_grad_(False)

    def forward(self, input_ids):
        return self.layers(self.embed_tokens(input_ids))


model = CausalLM().to("cuda", dtype=torch.bfloat16)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(3):
    input_ids = torch.randint(0, VOCAB, (2 * PAIRS, SEQ), device="cuda")
    labels = input_ids.roll(-1, dims=1)
    labels[:, : SEQ // 4] = IGNORE_INDEX
    reference_logps = torch.full((2 * PAIRS,), -12.0, device="cuda")
    hidden_states = model(input_ids)
    loss = FusedLinearDPOFunction.apply(
        hidden_states, model.lm_head.weight, labels, reference_logps
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.detach().item())
