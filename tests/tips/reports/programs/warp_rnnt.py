"""After 1ytic/warp-rnnt#21: memory grows at each batch when training a speech transducer."""

import torch
import torch.nn as nn

CURED = False


class RNNTLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_probs, labels):
        costs = -log_probs[:, :, :, 0].logsumexp((1, 2))
        ctx.grads = torch.zeros_like(log_probs)
        return costs

    @staticmethod
    def backward(ctx, grads_output):
        return ctx.grads * grads_output.view(-1, 1, 1, 1), None


class Transducer(nn.Module):
    def __init__(self, dim=320, vocab=1024):
        super().__init__()
        self.encoder = nn.GRU(80, dim, batch_first=True)
        self.predictor = nn.Embedding(vocab, dim)
        self.joint = nn.Linear(dim, vocab)

    def training_step(self, batch):
        feats, labels = batch
        enc = torch.tanh(self.encoder(feats)[0])
        dec = self.predictor(labels)
        logits = self.joint(enc.unsqueeze(2) + dec.unsqueeze(1))
        transducer_loss = RNNTLoss.apply(logits.log_softmax(-1), labels).mean()
        ret = {"loss": transducer_loss}
        log = {"transducer_loss": transducer_loss.item() if CURED else transducer_loss}
        return ret, log


model = Transducer().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
epoch_log = []
for batch_idx in range(12):
    batch = torch.randn(8, 200, 80).cuda(), torch.randint(0, 1024, (8, 40)).cuda()
    ret, log = model.training_step(batch)
    optimizer.zero_grad()
    ret["loss"].backward()
    optimizer.step()
    epoch_log.append(log)
print("epoch done", len(epoch_log))
