"""After transformers #20887: evaluation gathers the hidden states of all layers of all examples."""

import torch
from torch import nn

CURED = False


class Classifier(nn.Module):
    def __init__(self, output_hidden_states):
        super().__init__()
        self.output_hidden_states = output_hidden_states
        self.embed = nn.Embedding(16424, 768)
        self.layers = nn.ModuleList(nn.Linear(768, 768) for _ in range(12))
        self.head = nn.Linear(768, 2)

    def forward(self, ids):
        hidden = [self.embed(ids)]
        for layer in self.layers:
            hidden.append(layer(hidden[-1]).tanh())
        logits = self.head(hidden[-1][:, 0])
        return (logits, tuple(hidden)) if self.output_hidden_states else (logits,)


def nested_concat(old, new):
    if isinstance(old, (tuple, list)):
        return type(old)(nested_concat(a, b) for a, b in zip(old, new, strict=True))
    return torch.cat([old, new])


def evaluation_loop(model):
    all_outputs = None
    model.eval()
    for _ in range(80):
        with torch.no_grad():
            outputs = model(torch.randint(16424, (8, 512), device="cuda"))
        all_outputs = outputs if all_outputs is None else nested_concat(all_outputs, outputs)
    return all_outputs


model = Classifier(output_hidden_states=not CURED).cuda()
predictions = evaluation_loop(model)
