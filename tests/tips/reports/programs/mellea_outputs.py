"""After generative-computing/mellea#544: repeated instruct() calls make the memory grow until it is full."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
VOCAB, HIDDEN, HEADS, LAYERS, PROMPT, NEW = 49160, 1024, 16, 4, 2048, 24


@dataclass
class GenerateDecoderOnlyOutput:
    sequences: torch.Tensor
    scores: tuple | None = None
    past_key_values: list | None = None


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2048), nn.SiLU(), nn.Linear(2048, HIDDEN))

    def forward(self, x, past):
        b, n, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(b, n, 3, HEADS, HIDDEN // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.out(attended.transpose(1, 2).reshape(b, n, HIDDEN))
        return x + self.mlp(self.norm2(x)), (k, v)


class GraniteForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    @torch.no_grad()
    def generate(self, input_ids, max_new_tokens, output_scores):
        sequences, past, scores, step = input_ids, [None] * LAYERS, [], input_ids
        for _ in range(max_new_tokens):
            x = self.embed_tokens(step)
            for i, layer in enumerate(self.layers):
                x, past[i] = layer(x, past[i])
            next_scores = self.lm_head(x[:, -1]).float()
            if output_scores:
                scores.append(next_scores)
            step = next_scores.argmax(-1, keepdim=True)
            sequences = torch.cat([sequences, step], dim=1)
        return GenerateDecoderOnlyOutput(sequences, tuple(scores) or None, past)


@dataclass
class ModelOutputThunk:
    action: str
    value: str | None = None
    _meta: dict = field(default_factory=dict)


class LocalHFBackend:
    def __init__(self, use_caches=False):
        self._model = GraniteForCausalLM().cuda().half().eval()
        self._use_caches, self._return_scores = use_caches, False

    def _tokenize(self, text):
        return torch.tensor([[ord(c) for c in text.ljust(PROMPT)[:PROMPT]]], device="cuda")

    def generate_from_context(self, action, ctx):
        mot = ModelOutputThunk(action)
        text = "\n".join([*(turn.value for turn in ctx.turns), action])
        input_ids = self._tokenize(text)
        output_scores = self._return_scores if CURED else True
        chunk = self._model.generate(input_ids, NEW, output_scores)
        self.processing(mot, chunk, input_ids)
        self.post_processing(mot)
        return mot

    def processing(self, mot, chunk, input_ids):
        mot._meta["hf_output"] = chunk
        new_tokens = chunk.sequences[0, input_ids.shape[1] :].tolist()
        mot.value = "".join(chr(97 + token % 26) for token in new_tokens)

    def post_processing(self, mot):
        mot._meta["generated"] = mot._meta["hf_output"].sequences.shape[1]
        if CURED and not self._use_caches:
            del mot._meta["hf_output"]


class ChatContext:
    def __init__(self):
        self.turns = []

    def add(self, mot):
        self.turns.append(mot)


class MelleaSession:
    def __init__(self, backend):
        self.backend, self.ctx = backend, ChatContext()

    def instruct(self, description, requirements, loop_budget=2):
        result = None
        for _ in range(loop_budget):
            result = self.backend.generate_from_context(description, self.ctx)
            self.ctx.add(result)
            verdicts = [
                self.backend.generate_from_context(f"Does it hold: {req}? {result.value}", self.ctx)
                for req in requirements
            ]
            for verdict in verdicts:
                self.ctx.add(verdict)
            if all(verdict.value.startswith("yes") for verdict in verdicts):
                break
        return result.value


m = MelleaSession(LocalHFBackend())
emails = []
for name in ("Olivia", "Ben", "Chen", "Dora"):
    # CURE
    emails.append(m.instruct(f"Write an email to {name}.", ["it is short", "it is formal"]))
print(len(emails), len(m.ctx.turns))
