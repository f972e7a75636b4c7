"""After NVIDIA-Merlin/Transformers4Rec#721: evaluate a session based recommender, 300 000 items."""

import torch
from torch import nn

CURED = False
ITEMS = 300_000


class NextItemModel(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.item_embedding = nn.Embedding(ITEMS, d)
        self.rnn = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, sessions):
        hidden = self.rnn(self.item_embedding(sessions)).mean(1)
        return hidden @ self.item_embedding.weight.T


class Trainer:
    def __init__(self, model, predict_top_k=None):
        self.model, self.predict_top_k = model, predict_top_k

    def evaluation_loop(self, dataloader):
        preds_host, labels_host = None, None
        self.model.eval()
        for sessions, labels in dataloader:
            with torch.no_grad():
                preds = self.model(sessions.cuda())
            labels = labels.cuda()
            if self.predict_top_k:
                preds = torch.topk(preds, self.predict_top_k).indices
            # CURE
            preds_host = preds if preds_host is None else torch.cat((preds_host, preds), dim=0)
            labels_host = labels if labels_host is None else torch.cat((labels_host, labels), dim=0)
        return preds_host.cpu(), labels_host.cpu()


def eval_loader(batches=16, batch_size=1024):
    for _ in range(batches):
        yield torch.randint(0, ITEMS, (batch_size, 20)), torch.randint(0, ITEMS, (batch_size,))


trainer = Trainer(NextItemModel().cuda(), predict_top_k=100 if CURED else None)
predictions, targets = trainer.evaluation_loop(eval_loader())
print(predictions.shape)
