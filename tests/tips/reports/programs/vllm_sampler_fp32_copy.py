"""After vllm-project/vllm#48641: with speculative decoding the sampler tries to allocate gigabytes at the warm-up and runs out of memory."""

from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


@dataclass
class SamplingParams:
    temperature: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict = None


class SamplingStates:
    def __init__(self, max_num_reqs, vocab_size):
        self.temperature = torch.ones(max_num_reqs, device=DEVICE)
        self.top_k = torch.full((max_num_reqs,), vocab_size, dtype=torch.int64, device=DEVICE)
        self.min_p = torch.zeros(max_num_reqs, device=DEVICE)
        self.frequency_penalty = torch.zeros(max_num_reqs, device=DEVICE)
        self.output_tokens = torch.zeros(max_num_reqs, 64, dtype=torch.int64, device=DEVICE)
        self.logit_bias = {}

    def add_request(self, idx, params):
        self.temperature[idx] = params.temperature
        if params.top_k > 0:
            self.top_k[idx] = params.top_k
        self.min_p[idx] = params.min_p
        self.frequency_penalty[idx] = params.frequency_penalty
        if params.logit_bias:
            self.logit_bias[idx] = params.logit_bias


def apply_logit_bias(logits, states, expanded_idx_mapping):
    for row, idx in enumerate(expanded_idx_mapping.tolist()):
        for token, bias in states.logit_bias.get(idx, {}).items():
            logits[row, token] += bias


def apply_penalties(logits, states, expanded_idx_mapping):
    tokens = states.output_tokens[expanded_idx_mapping]
    penalty = -states.frequency_penalty[expanded_idx_mapping][:, None].expand_as(tokens)
    logits.scatter_add_(1, tokens, penalty.to(logits.dtype).contiguous())


def apply_min_p(logits, min_p):
    threshold = logits.amax(dim=-1, keepdim=True) + torch.log(min_p)[:, None].to(logits.dtype)
    logits.masked_fill_(logits < threshold, float("-inf"))


def apply_top_k(logits, k, max_k):
    top = logits.topk(max_k, dim=-1).values
    kth = top.gather(1, (k.clamp(max=max_k) - 1)[:, None])
    kth = torch.where((k > max_k)[:, None], torch.full_like(kth, float("-inf")), kth)
    logits.masked_fill_(logits < kth, float("-inf"))


def gumbel_sample(logits, block=16):
    """One block of rows after the other, as the kernel does."""
    sampled = []
    for rows in logits.split(block):
        probs = rows.softmax(dim=-1, dtype=torch.float32)
        q = torch.empty_like(probs).exponential_()
        sampled.append(probs.div_(q).argmax(dim=-1))
    return torch.cat(sampled)


class Sampler:
    def __init__(self, max_num_reqs, vocab_size, logprobs_mode="processed_logprobs"):
        self.sampling_states = SamplingStates(max_num_reqs, vocab_size)
        self.logprobs_mode = logprobs_mode

    def apply_sampling_params(self, logits, expanded_idx_mapping):
        if not CURED or self.logprobs_mode == "raw_logprobs":
            # Copy logits to a new FP32 tensor.
            logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
        states = self.sampling_states
        apply_logit_bias(logits, states, expanded_idx_mapping)
        apply_penalties(logits, states, expanded_idx_mapping)
        logits.div_(states.temperature[expanded_idx_mapping][:, None].to(logits.dtype))
        apply_min_p(logits, states.min_p[expanded_idx_mapping])
        apply_top_k(logits, states.top_k[expanded_idx_mapping], max_k=64)
        return logits

    def __call__(self, logits, expanded_idx_mapping):
        processed_logits = self.apply_sampling_params(logits, expanded_idx_mapping)
        return gumbel_sample(processed_logits)


class RejectionSampler:
    def __init__(self, sampler, num_speculative_steps):
        self.sampler, self.num_speculative_steps = sampler, num_speculative_steps

    def __call__(self, logits, draft_tokens, idx_mapping):
        num_logits = self.num_speculative_steps + 1
        sampled = self.sampler(logits, idx_mapping.repeat_interleave(num_logits)).view(
            -1, num_logits
        )
        accepted = (sampled[:, :-1] == draft_tokens).cumprod(dim=1).sum(dim=1)
        return sampled, accepted + 1


class Qwen3ForCausalLM(nn.Module):
    def __init__(self, vocab_size, hidden_size=192, layers=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(hidden_size, 4, 512, 0.0, batch_first=True)
                for _ in range(layers)
            ]
        )
        self.norm = nn.RMSNorm(hidden_size)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.norm(x)

    def compute_logits(self, hidden_states):
        return F.linear(hidden_states, self.embed_tokens.weight)


class GPUModelRunner:
    def __init__(self, vocab_size=32000, max_num_reqs=96, num_speculative_steps=7):
        self.model = Qwen3ForCausalLM(vocab_size).to(torch.bfloat16).to(DEVICE).eval()
        self.vocab_size, self.max_num_reqs, self.num_speculative_steps = (
            vocab_size,
            max_num_reqs,
            num_speculative_steps,
        )
        self.sampler = Sampler(max_num_reqs, vocab_size)
        self.rejection_sampler = RejectionSampler(self.sampler, num_speculative_steps)

    def profile_run(self):
        for idx in range(self.max_num_reqs):
            self.sampler.sampling_states.add_request(
                idx, SamplingParams(0.7, 20 if idx % 2 else -1, 0.02, 0.1, {5: 1.0})
            )
        self.execute_model(
            torch.randint(
                0, self.vocab_size, (self.max_num_reqs, self.num_speculative_steps + 1)
            ).to(DEVICE)
        )

    @torch.inference_mode()
    def execute_model(self, input_ids):
        hidden_states = self.model(input_ids)
        logits = self.model.compute_logits(hidden_states.flatten(0, 1))
        idx_mapping = torch.arange(input_ids.shape[0], device=DEVICE)
        sampled, num_sampled = self.rejection_sampler(logits, input_ids[:, 1:], idx_mapping)
        self.sampler.sampling_states.output_tokens[:, : sampled.shape[1]] = sampled
        return sampled, num_sampled


def main():
    runner = GPUModelRunner()
    runner.profile_run()
    print(f"warm-up done, the most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")
    tokens = torch.randint(0, runner.vocab_size, (runner.max_num_reqs, 8)).to(DEVICE)
    for step in range(2):
        tokens, num_sampled = runner.execute_model(tokens)
        print(f"step {step}: {num_sampled.sum().item()} tokens accepted")


if __name__ == "__main__":
    main()
