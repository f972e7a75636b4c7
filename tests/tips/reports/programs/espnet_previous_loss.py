"""After espnet/espnet#5921: while training ASR a quarter of the GPU memory belongs to the batch before the present one."""

import logging
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
logging.basicConfig(level=logging.INFO, format="%(message)s")


def alignment_cost(acts, labels):
    """The transducer's forward algorithm over the lattice [B, T, U + 1, V]."""
    log_probs = F.log_softmax(acts, dim=-1)
    symbols = F.pad(labels, (0, 1))
    symbols = torch.stack([torch.zeros_like(symbols), symbols], dim=-1)
    picked = log_probs.gather(3, symbols[:, None].expand(-1, acts.shape[1], -1, -1))
    blank, emit = picked[..., 0], picked[:, :, :-1, 1]
    emit_sum = F.pad(emit.cumsum(2), (1, 0))
    alpha = emit_sum[:, 0]
    for t in range(1, acts.shape[1]):
        arrived = alpha + blank[:, t - 1]
        alpha = emit_sum[:, t] + torch.logcumsumexp(arrived - emit_sum[:, t], dim=1)
    return -(alpha[:, -1] + blank[:, -1, -1])


class _RNNT(torch.autograd.Function):
    @staticmethod
    def forward(ctx, acts, labels):
        with torch.enable_grad():
            leaf = acts.detach().requires_grad_(True)
            costs = alignment_cost(leaf, labels)
            (grads,) = torch.autograd.grad(costs.sum(), leaf)
        ctx.grads = grads.div_(len(acts))
        return costs.detach().mean()

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.grads.mul_(grad_output), None


class ESPnetASRModel(nn.Module):
    def __init__(self, vocab_size=500, dim=256):
        super().__init__()
        self.frontend = nn.Conv1d(80, dim, 3, stride=2, padding=1)
        self.encoder = nn.GRU(dim, dim, 2, batch_first=True)
        self.embed = nn.Embedding(vocab_size, dim)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.lin_enc, self.lin_dec = nn.Linear(dim, 128), nn.Linear(dim, 128)
        self.lin_out = nn.Linear(128, vocab_size)

    def forward(self, speech, text, utt_id=None):
        enc, _ = self.encoder(self.frontend(speech.transpose(1, 2)).transpose(1, 2))
        dec, _ = self.decoder(self.embed(F.pad(text, (1, 0))))
        joint = torch.tanh(self.lin_enc(enc)[:, :, None] + self.lin_dec(dec)[:, None])
        loss = _RNNT.apply(self.lin_out(joint), text)
        stats = {"loss": loss.detach(), "cer": None}
        return loss, stats, torch.tensor(float(len(speech)), device=loss.device)


def to_device(batch, device):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


class Reporter:
    def __init__(self):
        self.values = []

    def register(self, stats, weight):
        self.values.append({k: v.item() for k, v in stats.items()} | {"weight": weight.item()})


def iterate(n):
    for i in range(n):
        frames, tokens = 212 - 4 * (i % 3), 32 - i % 3
        yield (
            [f"utt{i}-{j}" for j in range(12)],
            {"speech": torch.randn(12, frames, 80), "text": torch.randint(1, 500, (12, tokens))},
        )


class Trainer:
    @classmethod
    def train_one_epoch(cls, model, iterator, optimizers, reporter, accum_grad=1, grad_clip=5.0):
        model.train()
        start_time = time.perf_counter()
        for iiter, (utt_id, batch) in enumerate(iterator, 1):
            batch["utt_id"] = utt_id
            batch = to_device(batch, DEVICE)
            retval = model(**batch)
            loss, stats, weight = retval
            retval = None
            stats = {k: v for k, v in stats.items() if v is not None}
            loss /= accum_grad
            reporter.register(stats, weight)
            loss.backward()
            if CURED:
                del loss
            if iiter % accum_grad == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=grad_clip)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            logging.info(
                f"batch {iiter}: {reporter.values[-1]}, {time.perf_counter() - start_time:.1f} s"
            )


def main():
    model = ESPnetASRModel().to(DEVICE)
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3)]
    reporter = Reporter()
    Trainer.train_one_epoch(model, iterate(8), optimizers, reporter)
    print(
        f"{len(reporter.values)} batches, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MB"
    )


if __name__ == "__main__":
    main()
