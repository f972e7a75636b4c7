"""After a report on Trainer.predict: all predictions stay on the card until the end."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(nn.Embedding(1000, 256), nn.Linear(256, 2048)).cuda().eval()


def batches():
    for _ in range(300):
        yield torch.randint(1000, (64, 128), device="cuda")


def prediction_loop(model):
    preds = []
    with torch.no_grad():
        for inputs in batches():
            logits = model(inputs)
            preds.append(logits.argmax(-1).cpu() if CURED else logits)
    return preds if CURED else [pred.argmax(-1).cpu() for pred in preds]


predictions = prediction_loop(model)
