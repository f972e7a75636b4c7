"""After axolotl-ai-cloud/axolotl#498: fine-tuning reserves more and more, and fails after hours."""

import random

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
VOCAB, HIDDEN, HEADS, LAYERS, MICRO_BATCH_SIZE, STEPS = 32000, 1024, 16, 8, 2, 14
CONFIG = {
    "sequence_len": 2048,
    "pad_to_sequence_len": CURED,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-4,
}


class DataCollatorForSeq2Seq:
    """Pads the samples of a batch to the longest of them, in steps of 64"""

    def __init__(self, padding, max_length=None, pad_to_multiple_of=64):
        self.padding, self.max_length = padding, max_length
        self.pad_to_multiple_of = pad_to_multiple_of

    def __call__(self, features):
        length = max(len(feature) for feature in features)
        if self.padding == "max_length":
            length = self.max_length
        length = -(-length // self.pad_to_multiple_of) * self.pad_to_multiple_of
        input_ids = torch.zeros(len(features), length, dtype=torch.int64)
        labels = torch.full((len(features), length), -100)
        for row, feature in enumerate(features):
            input_ids[row, : len(feature)] = feature
            labels[row, : len(feature)] = feature
        return {"input_ids": input_ids, "labels": labels}


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_layernorm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv_proj = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up_proj = nn.Linear(HIDDEN, 6 * HIDDEN, bias=False)
        self.down_proj = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        qkv = self.qkv_proj(self.input_layernorm(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up_proj(self.post_layernorm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


class LlamaForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, input_ids, labels):
        hidden_states = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        logits = self.lm_head(self.norm(hidden_states))
        shift_logits = logits[:, :-1].reshape(-1, VOCAB)
        return F.cross_entropy(shift_logits, labels[:, 1:].reshape(-1), ignore_index=-100)


class AxolotlTrainer:
    def __init__(self, cfg, model, train_dataset, data_collator):
        self.cfg, self.model = cfg, model
        self.train_dataset, self.data_collator = train_dataset, data_collator
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["learning_rate"], fused=True)

    def get_train_dataloader(self):
        for start in range(0, len(self.train_dataset), MICRO_BATCH_SIZE):
            yield self.data_collator(self.train_dataset[start : start + MICRO_BATCH_SIZE])

    def training_step(self, inputs):
        inputs = {name: tensor.cuda() for name, tensor in inputs.items()}
        loss = self.model(**inputs) / self.cfg["gradient_accumulation_steps"]
        loss.backward()
        return loss.detach()

    def train(self):
        for step, inputs in enumerate(self.get_train_dataloader()):
            loss = self.training_step(inputs)
            if (step + 1) % self.cfg["gradient_accumulation_steps"] == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return loss


def load_tokenized_dataset(cfg, samples):
    """Make conversations of all lengths; long ones are rare"""
    generator = random.Random(7)
    lengths = [int(cfg["sequence_len"] * generator.betavariate(1.2, 1.8)) for _ in range(samples)]
    lengths[-3] = cfg["sequence_len"]
    return [torch.zeros(max(16, length), dtype=torch.int64) for length in lengths]


def setup_trainer(cfg, train_dataset, model):
    data_collator_kwargs = {"padding": "longest"}
    if cfg["pad_to_sequence_len"]:
        data_collator_kwargs = {"padding": "max_length", "max_length": cfg["sequence_len"]}
    collator = DataCollatorForSeq2Seq(**data_collator_kwargs)
    return AxolotlTrainer(cfg, model, train_dataset, collator)


dataset = load_tokenized_dataset(CONFIG, STEPS * MICRO_BATCH_SIZE)
trainer = setup_trainer(CONFIG, dataset, LlamaForCausalLM().to("cuda", torch.bfloat16))
print(trainer.train().shape)
