"""After sgl-project/SpecForge#337: training the draft model online runs out of memory with a larger batch, although the target only runs forward."""

from dataclasses import dataclass
from typing import Optional
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

CURED = False
DEVICE = "cuda"


@dataclass
class Eagle3TargetOutput:
    hidden_states: torch.Tensor
    target: torch.Tensor
    loss_mask: torch.Tensor
    input_ids: torch.Tensor
    attention_mask: torch.Tensor


def padding(tensor, left=True):
    zeropadding = torch.zeros_like(tensor[:, -1:])
    return (
        torch.cat((zeropadding, tensor[:, :-1]), dim=1)
        if left
        else torch.cat((tensor[:, 1:], zeropadding), dim=1)
    )


class Eagle3TargetModel:
    def __init__(self, model):
        self.model = model
        self.aux_hidden_states_layers: Optional[list] = None

    def set_aux_hidden_states_layers(self, aux_hidden_states_layers=None):
        if aux_hidden_states_layers is None:
            num_layers = self.model.config.num_hidden_layers
            aux_hidden_states_layers = [1, num_layers // 2 - 1, num_layers - 4]
        self.aux_hidden_states_layers = aux_hidden_states_layers

    def run_model(self, input_ids, attention_mask):
        if not CURED:
            outputs = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                output_hidden_states=True,
                use_cache=False,
            )
            # output_hidden_states = True will return the embedding output as well, so we have an offset of 1
            offset = 1
            low_aux_layer, mid_aux_layer, last_aux_layer = (
                i + offset for i in self.aux_hidden_states_layers
            )
            hidden_states0 = outputs.hidden_states[low_aux_layer]
            hidden_states1 = outputs.hidden_states[mid_aux_layer]
            hidden_states2 = outputs.hidden_states[last_aux_layer]
            return outputs.logits, (hidden_states0, hidden_states1, hidden_states2)
        captured, handles = {}, []
        for idx in self.aux_hidden_states_layers:

            def hook(module, args, output, idx=idx):
                captured[idx] = output[0] if isinstance(output, tuple) else output

            handles.append(self.model.model.layers[idx].register_forward_hook(hook))
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        for handle in handles:
            handle.remove()
        return outputs.logits, tuple(captured[idx] for idx in self.aux_hidden_states_layers)

    @torch.no_grad()
    def generate_eagle3_data(self, input_ids, attention_mask, loss_mask):
        target, aux_hidden_states = self.run_model(input_ids, attention_mask)
        hidden_states = torch.cat(aux_hidden_states, dim=-1)
        # apply padding
        target = padding(target, left=False)
        input_ids = padding(input_ids, left=False)
        loss_mask = loss_mask[..., None].to(target.device)
        return Eagle3TargetOutput(hidden_states, target, loss_mask, input_ids, attention_mask)


class LlamaForCausalLMEagle3(nn.Module):
    """The draft model: one decoder layer over the joined hidden states, with a smaller vocabulary."""

    def __init__(self, config, draft_vocab_size):
        super().__init__()
        h = config.hidden_size
        self.num_heads, self.draft_vocab_size = config.num_attention_heads, draft_vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, h)
        self.fc = nn.Linear(3 * h, h, bias=False)
        self.input_layernorm, self.hidden_norm, self.norm = (
            nn.RMSNorm(h),
            nn.RMSNorm(h),
            nn.RMSNorm(h),
        )
        self.qkv_proj, self.o_proj = (
            nn.Linear(2 * h, 3 * h, bias=False),
            nn.Linear(h, h, bias=False),
        )
        self.up_proj, self.down_proj = (
            nn.Linear(h, 2 * h, bias=False),
            nn.Linear(2 * h, h, bias=False),
        )
        self.lm_head = nn.Linear(h, draft_vocab_size, bias=False)

    def backbone(self, input_embeds, hidden_states):
        b, t, h = hidden_states.shape
        x = torch.cat((self.input_layernorm(input_embeds), self.hidden_norm(hidden_states)), dim=-1)
        q, k, v = self.qkv_proj(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attn = (
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, h)
        )
        hidden_states = hidden_states + self.o_proj(attn)
        return hidden_states + self.down_proj(F.silu(self.up_proj(self.norm(hidden_states))))


class OnlineEagle3Model(nn.Module):
    def __init__(self, draft_model, length=2):
        super().__init__()
        self.draft_model, self.length = draft_model, length

    def forward(self, input_ids, loss_mask, target, hidden_states):
        hidden_states = self.draft_model.fc(hidden_states)
        losses = []
        for idx in range(self.length):
            with torch.no_grad():
                target_p = target[..., : self.draft_model.draft_vocab_size].float().softmax(dim=-1)
            inputs_embeds = self.draft_model.embed_tokens(input_ids)
            hidden_states = self.draft_model.backbone(inputs_embeds, hidden_states)
            logits = self.draft_model.lm_head(hidden_states)
            out_logp = logits.float().log_softmax(dim=-1)
            losses.append(-(loss_mask * target_p * out_logp).sum(-1).mean())
            if idx + 1 < self.length:
                input_ids, target, loss_mask = (
                    padding(input_ids, False),
                    padding(target, False),
                    padding(loss_mask, False),
                )
        return losses


def main():
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    target = LlamaForCausalLM(config).to(torch.float16).to(DEVICE).eval().requires_grad_(False)
    target_model = Eagle3TargetModel(target)
    target_model.set_aux_hidden_states_layers()
    eagle3_model = (
        OnlineEagle3Model(LlamaForCausalLMEagle3(config, draft_vocab_size=512))
        .to(torch.float16)
        .to(DEVICE)
    )
    optimizer = torch.optim.AdamW(eagle3_model.parameters(), lr=1e-4)
    for global_step in range(3):
        input_ids = torch.randint(0, config.vocab_size, (8, 1024), device=DEVICE)
        eagle3_data = target_model.generate_eagle3_data(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            loss_mask=torch.ones(8, 1024, device=DEVICE),
        )
        plosses = eagle3_model(
            input_ids=eagle3_data.input_ids,
            loss_mask=eagle3_data.loss_mask,
            target=eagle3_data.target,
            hidden_states=eagle3_data.hidden_states,
        )
        ploss = sum(0.8**i * loss for i, loss in enumerate(plosses))
        ploss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {global_step}: loss {ploss.item():.4f}")


if __name__ == "__main__":
    main()
