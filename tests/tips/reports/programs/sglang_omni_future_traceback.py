"""After sgl-project/sglang-omni#1290: after some failed audio requests the encoder stage has less and less free GPU memory."""

import concurrent.futures
import logging
import logging.handlers
import traceback
from collections import OrderedDict
from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
logger = logging.getLogger("moss_td.encoder")


class AudioEncoder(nn.Module):
    def __init__(self, n_mels=80, hidden_size=192, layers=2):
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, hidden_size, 3, padding=1)
        self.conv2 = nn.Conv1d(hidden_size, hidden_size, 3, 2, 1)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(hidden_size, 4, 4 * hidden_size, 0.0, batch_first=True)
                for _ in range(layers)
            ]
        )

    def forward(self, feature):
        x = F.gelu(self.conv2(F.gelu(self.conv1(feature)))).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x


class MossTDModel(nn.Module):
    def __init__(self, hidden_size=192, lm_hidden_size=256, time_merge=4):
        super().__init__()
        self.audio_tower = AudioEncoder(hidden_size=hidden_size)
        self.adaptor = nn.Sequential(
            nn.Linear(time_merge * hidden_size, lm_hidden_size),
            nn.SiLU(),
            nn.LayerNorm(lm_hidden_size),
        )
        self.time_merge = time_merge

    def get_audio_feature(self, items):
        device = next(self.audio_tower.parameters()).device
        lengths = [item.feature.shape[-1] for item in items]
        feature = torch.stack(
            [F.pad(item.feature, (0, max(lengths) - n)) for item, n in zip(items, lengths)]
        ).to(device)
        encoded = self.audio_tower(feature)
        b, t, h = encoded.shape
        merged = encoded[:, : t // self.time_merge * self.time_merge].reshape(
            b, -1, self.time_merge * h
        )
        embedding = self.adaptor(merged)
        rows = [e[: n // (2 * self.time_merge)] for e, n in zip(embedding, lengths)]
        for item, row in zip(items, rows):
            if row.shape[0] != item.num_audio_tokens:
                raise RuntimeError(
                    f"encoder output {tuple(row.shape)} != {item.num_audio_tokens} audio tokens of {item.rid}"
                )
        return torch.cat(rows)


@dataclass
class AudioItem:
    rid: str
    feature: torch.Tensor
    num_audio_tokens: int
    precomputed_embeddings: torch.Tensor = None


@dataclass
class QueueEntry:
    item: AudioItem
    future: concurrent.futures.Future


class EncoderCache:
    def __init__(self, max_entries=64):
        self.max_entries, self.entries = max_entries, OrderedDict()

    def put(self, key, embedding):
        self.entries[key] = embedding.cpu()
        while len(self.entries) > self.max_entries:
            self.entries.popitem(last=False)


class PreLMEncoderService:
    def __init__(self, model, max_batch_size=4):
        self.model, self.max_batch_size = model, max_batch_size
        self.cache = EncoderCache()
        self.queue = []
        self.failed = 0

    def submit(self, item):
        future = concurrent.futures.Future()
        self.queue.append(QueueEntry(item, future))
        return future

    def run_once(self):
        batch, self.queue = self.queue[: self.max_batch_size], self.queue[self.max_batch_size :]
        try:
            self._encode_batch(batch)
        except Exception as exc:
            if len(batch) == 1:
                self._fail(batch[0], exc)
            else:
                self._log_failure("batched audio encode failed; retrying per item", exc)
                self._retry_batch(batch)

    def _encode_batch(self, batch):
        items = [entry.item for entry in batch]
        with torch.inference_mode():
            embedding = self.model.get_audio_feature(items)
            parts = torch.split(embedding, [item.num_audio_tokens for item in items])
        for entry, part in zip(batch, parts):
            self._attach(entry.item, part.clone())
            entry.future.set_result(entry.item.rid)

    def _attach(self, item, embedding):
        self.cache.put(item.rid, embedding)
        item.precomputed_embeddings = embedding
        item.feature = None

    def _retry_batch(self, batch):
        for entry in batch:
            try:
                self._encode_batch([entry])
            except Exception as exc:
                self._fail(entry, exc)

    def _log_failure(self, message, exc):
        if CURED:
            logger.error("%s:\n%s", message, "".join(traceback.format_exception(exc)))
        else:
            logger.exception(message)

    def _fail(self, entry, exc):
        self.failed += 1
        self._log_failure(f"audio encode of {entry.item.rid} failed", exc)
        if CURED:
            entry.future.set_exception(RuntimeError(f"{type(exc).__name__}: {exc}"))
            exc.__traceback__ = exc.__context__ = None
        else:
            entry.future.set_exception(exc)


class ASRStage:
    def __init__(self):
        self.model = MossTDModel().to(DEVICE).eval()
        self.service = PreLMEncoderService(self.model)
        self.requests = OrderedDict()

    def add_request(self, rid, seconds, broken=False):
        feature = torch.randn(80, 100 * seconds)
        tokens = 100 * seconds // 8 + (3 if broken else 0)
        item = AudioItem(rid, feature, tokens)
        self.requests[rid] = self.service.submit(item)
        return item

    def step(self, items):
        while self.service.queue:
            self.service.run_once()
        for item in items:
            item.precomputed_embeddings = None  # goes into the KV cache of the language model

    def status(self, rid):
        exc = self.requests[rid].exception()
        return "ok" if exc is None else str(exc)[:40]


def main():
    logger.propagate = False
    logger.addHandler(logging.handlers.MemoryHandler(1000, flushLevel=logging.CRITICAL))
    stage = ASRStage()
    for n in range(6):
        items = [
            stage.add_request(f"r{n}-{i}", 8 + 2 * i, broken=n > 1 and i == 1) for i in range(4)
        ]
        stage.step(items)
        del items
        print(
            f"round {n}: {[stage.status(f'r{n}-{i}') for i in range(4)]}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB in use"
        )


if __name__ == "__main__":
    main()
