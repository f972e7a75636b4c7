"""After meta-pytorch/torchrec#3530: the input batch of the training pipeline lives through backward."""

import torch
from torch import nn

CURED = False
DEVICE = torch.device("cuda")
FEATURES, BATCH_SIZE, POOLING, ROWS, DIM, DENSE = 32, 65536, 16, 1_000_000, 32, 512


class Batch:
    """Dense features, and the ids of every sparse feature, one feature after the other"""

    def __init__(self, dense, ids, labels):
        self.dense, self.ids, self.labels = dense, ids, labels

    def to(self, device, non_blocking=False):
        tensors = (self.dense, self.ids, self.labels)
        return Batch(*(t.to(device, non_blocking=non_blocking) for t in tensors))

    def record_stream(self, stream):
        for tensor in (self.dense, self.ids, self.labels):
            tensor.record_stream(stream)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.arange(FEATURES).flip(0))
        self.embedding_bag = nn.EmbeddingBag(ROWS, DIM, mode="sum")
        self.dense_arch = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, DIM))
        self.over_arch = nn.Sequential(
            nn.Linear((FEATURES + 1) * DIM, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.loss_fn = nn.BCEWithLogitsLoss()

    def forward(self, batch):
        # the sharded tables want the features in another order: a copy of all ids
        ids = batch.ids[self.order].flatten(0, 1)
        pooled = self.embedding_bag(ids).view(FEATURES, -1, DIM)
        embedded_dense = self.dense_arch(torch.log1p(batch.dense))
        features = torch.cat([pooled, embedded_dense.unsqueeze(0)]).transpose(0, 1).flatten(1)
        logits = self.over_arch(features).squeeze(-1)
        return self.loss_fn(logits, batch.labels), logits.detach()


class TrainPipelineBase:
    def __init__(self, model, optimizer, device):
        self._model, self._optimizer, self._device = model, optimizer, device
        self._memcpy_stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._cur_batch = None
        self._connected = False

    def _copy_batch_to_gpu(self, batch):
        if batch is None or self._memcpy_stream is None:
            return batch
        with torch.cuda.stream(self._memcpy_stream):
            return batch.to(self._device, non_blocking=True)

    def _wait_for_batch(self, batch):
        if self._memcpy_stream is not None:
            torch.cuda.current_stream().wait_stream(self._memcpy_stream)
            batch.record_stream(torch.cuda.current_stream())

    def progress(self, dataloader_iter):
        if not self._connected:
            self._cur_batch = self._copy_batch_to_gpu(next(dataloader_iter))
            self._connected = True
        next_batch = next(dataloader_iter, None)
        cur_batch = self._cur_batch
        if cur_batch is None:
            raise StopIteration

        self._optimizer.zero_grad()
        self._wait_for_batch(cur_batch)
        losses, output = self._model(cur_batch)
        if not torch.isfinite(losses).item():
            raise ValueError("the loss is not finite")
        if CURED:
            cur_batch = self._cur_batch = None
        torch.sum(losses, dim=0).backward()
        # copy the next batch
        self._cur_batch = cur_batch = self._copy_batch_to_gpu(next_batch)
        self._optimizer.step()
        return output


def dataloader(batches=3):
    for _ in range(batches):
        yield Batch(
            torch.zeros(BATCH_SIZE, DENSE),
            torch.zeros(FEATURES, BATCH_SIZE, POOLING, dtype=torch.int64),
            torch.zeros(BATCH_SIZE),
        )


model = DLRM().to(DEVICE).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pipeline = TrainPipelineBase(model, optimizer, DEVICE)
batches = dataloader()
while True:
    try:
        output = pipeline.progress(batches)
    except StopIteration:
        break
