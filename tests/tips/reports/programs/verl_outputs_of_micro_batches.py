"""After verl-project/verl#6698: the actor's update grows by hundreds of MB with each micro-batch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CURED = False
VOCAB, HIDDEN, HEADS, LAYERS, RANK = 32000, 2048, 16, 6, 32
MICRO_BATCHES, TOKENS, RESPONSE = 10, 8192, 512


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
        self.norm1 = nn.RMSNorm(HIDDEN).requires_grad_(False)
        self.norm2 = nn.RMSNorm(HIDDEN).requires_grad_(False)
        self.qkv_proj, self.o_proj = LoraLinear(HIDDEN, 3 * HIDDEN), LoraLinear(HIDDEN, HIDDEN)
        self.up_proj = LoraLinear(HIDDEN, 2 * HIDDEN)
        self.down_proj = LoraLinear(2 * HIDDEN, HIDDEN)

    def forward(self, hidden_states):
        qkv = self.qkv_proj(self.norm1(hidden_states)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden_states = hidden_states + self.o_proj(attended.transpose(1, 2).flatten(2))
        return hidden_states + self.down_proj(F.silu(self.up_proj(self.norm2(hidden_states))))


class CausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN).requires_grad_(False)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False).requires_grad_(False)

    def enable_input_require_grads(self):
        """Let the first checkpointed layer have an input with a gradient, as PEFT does"""
        self.embed_tokens.register_forward_hook(
            lambda module, args, output: output.requires_grad_(True)
        )

    def forward(self, input_ids):
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = checkpoint(layer, hidden_states, use_reentrant=False)
        return self.lm_head(hidden_states[:, -RESPONSE - 1 : -1])


def ppo_loss(log_probs, entropy, data, clip_ratio=0.2, entropy_coeff=0.001):
    ratio = torch.exp(log_probs - data["old_log_probs"])
    pg_losses = -data["advantages"] * ratio
    pg_losses2 = -data["advantages"] * ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    pg_loss = torch.maximum(pg_losses, pg_losses2).mean()
    loss = pg_loss - entropy_coeff * entropy.mean()
    return loss, {"actor/pg_loss": pg_loss.detach(), "actor/ppo_kl": log_probs.detach().mean()}


class FSDPEngineWithLMHead:
    def __init__(self):
        self.module = CausalLM().to("cuda", torch.bfloat16)
        self.module.enable_input_require_grads()
        trainable = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-5)

    def forward_step(self, micro_batch, loss_function):
        data = {key: value.cuda() for key, value in micro_batch.items()}
        logits = self.module(data["input_ids"]).float()
        responses = data["input_ids"][:, -RESPONSE:]
        logp_all = torch.log_softmax(logits, -1)
        log_probs = logp_all.gather(-1, responses.unsqueeze(-1)).squeeze(-1)
        entropy = -(logp_all.exp() * logp_all).sum(-1)
        loss, metrics = loss_function(log_probs, entropy, data)
        model_output = {"log_probs": log_probs, "entropy": entropy}
        if CURED:
            model_output = {key: value.detach() for key, value in model_output.items()}
        return loss, {"model_output": model_output, "loss": loss.detach(), "metrics": metrics}

    def forward_backward_batch(self, data, loss_function):
        output_lst = []
        for micro_batch in data:
            loss, output = self.forward_step(micro_batch, loss_function)
            (loss / len(data)).backward()
            output_lst.append(output)
        return self.postprocess_batch(output_lst)

    def postprocess_batch(self, output_lst):
        log_probs = torch.cat([output["model_output"]["log_probs"] for output in output_lst])
        losses = torch.stack([output["loss"] for output in output_lst])
        return {"log_probs": log_probs.detach().cpu(), "loss": losses.mean().item()}

    def train_batch(self, data, loss_function):
        self.optimizer.zero_grad()
        outputs = self.forward_backward_batch(data, loss_function)
        self.optimizer.step()
        return outputs


def rollouts():
    for _ in range(MICRO_BATCHES):
        yield {
            "input_ids": torch.zeros(1, TOKENS, dtype=torch.int64),
            "old_log_probs": torch.zeros(1, RESPONSE),
            "advantages": torch.ones(1, RESPONSE),
        }


engine = FSDPEngineWithLMHead()
for update in range(2):
    outputs = engine.train_batch(list(rollouts()), ppo_loss)
    print("update", update, tuple(outputs["log_probs"].shape))
