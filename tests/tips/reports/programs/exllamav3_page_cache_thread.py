"""After turboderp-org/exllamav3#371: with the CPU page cache on, the GPU memory is not given back when the model is unloaded."""

import gc
import heapq
import threading
import weakref
from collections import deque
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
PAGE_SIZE = 256


class CacheLayer:
    def __init__(self, num_pages, num_kv_heads, head_dim):
        shape = (num_pages, PAGE_SIZE, num_kv_heads, head_dim)
        self.k = torch.zeros(shape, dtype=torch.half, device=DEVICE)
        self.v = torch.zeros(shape, dtype=torch.half, device=DEVICE)

    def get_tensors(self):
        return [self.k, self.v]


class Cache:
    def __init__(self, config, max_num_tokens):
        self.num_pages = max_num_tokens // PAGE_SIZE
        self.layers = {
            i: CacheLayer(self.num_pages, config["kv_heads"], config["head_dim"])
            for i in range(config["layers"])
        }


class Page:
    def __init__(self, page_index, phash, prev_hash):
        self.page_index, self.phash, self.prev_hash = page_index, phash, prev_hash


class CPUPageCache:
    """Second tier in system memory for the complete pages that were evicted from the GPU page cache."""

    def __init__(self, caches, max_size):
        self.segments = []
        offset = 0
        for cache in caches:
            for layer in cache.layers.values():
                for t in layer.get_tensors():
                    page_shape = tuple(t.shape[1:])
                    self.segments.append((t, offset, page_shape, t.dtype))
                    offset += t[0].numel() * t.element_size()
        self.slot_size = offset
        self.max_slots = int(max_size) // self.slot_size
        self.entries, self.slot_views, self.free_slots = {}, [], deque()
        self.metrics = {"pushes": 0, "restores": 0, "evictions": 0}
        self.closed = False
        self._spare = deque()
        self._spare_cond = threading.Condition()
        self._alloc_thread = threading.Thread(target=self._alloc_worker, daemon=True)
        self._alloc_thread.start()

    def _make_slab(self):
        slab = torch.empty((self.slot_size,), dtype=torch.uint8)
        views = []
        for _, offset, page_shape, dtype in self.segments:
            nbytes = page_shape[0] * page_shape[1] * page_shape[2] * dtype.itemsize
            views.append(slab[offset : offset + nbytes].view(dtype).view(page_shape))
        return views

    def _alloc_worker(self):
        while True:
            with self._spare_cond:
                while not self.closed and len(self.slot_views) + len(self._spare) >= self.max_slots:
                    self._spare_cond.wait()
                if self.closed:
                    return
            sv = self._make_slab()
            with self._spare_cond:
                self._spare.append(sv)

    def close(self):
        with self._spare_cond:
            self.closed = True
            self._spare_cond.notify_all()
        self._alloc_thread.join()
        self.segments = []
        self.entries.clear()

    def _new_slot(self):
        if self.free_slots:
            return self.free_slots.popleft()
        if len(self.slot_views) < self.max_slots:
            with self._spare_cond:
                self.slot_views.append(self._spare.popleft() if self._spare else self._make_slab())
                self._spare_cond.notify()
                return len(self.slot_views) - 1
        _, phash = heapq.heappop([(e["access_serial"], h) for h, e in self.entries.items()])
        self.metrics["evictions"] += 1
        return self.entries.pop(phash)["slot"]

    def store(self, page, serial):
        slot = self._new_slot()
        for v, (t, _, _, _) in zip(self.slot_views[slot], self.segments):
            v.copy_(t[page.page_index], non_blocking=True)
        self.entries[page.phash] = {
            "slot": slot,
            "prev_hash": page.prev_hash,
            "access_serial": serial,
        }
        self.metrics["pushes"] += 1


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, hd, kv = config["dim"], config["head_dim"], config["kv_heads"]
        self.embed = nn.Embedding(config["vocab"], d)
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "q": nn.Linear(d, d),
                        "kv": nn.Linear(d, 2 * kv * hd),
                        "o": nn.Linear(d, d),
                        "mlp": nn.Linear(d, d),
                    }
                )
                for _ in range(config["layers"])
            ]
        )
        self.kv, self.hd = kv, hd

    def forward(self, ids, cache, page):
        x = self.embed(ids)
        for i, layer in enumerate(self.layers):
            T = x.shape[0]
            k, v = layer["kv"](x).view(T, 2, self.kv, self.hd).unbind(1)
            cache.layers[i].k[page.page_index, :T].copy_(k)
            cache.layers[i].v[page.page_index, :T].copy_(v)
            q = layer["q"](x).view(T, -1, self.hd).transpose(0, 1)
            a = F.scaled_dot_product_attention(
                q,
                k.transpose(0, 1).repeat_interleave(q.shape[0] // self.kv, 0),
                v.transpose(0, 1).repeat_interleave(q.shape[0] // self.kv, 0),
            )
            x = x + layer["o"](a.transpose(0, 1).reshape(T, -1))
            x = x + F.silu(layer["mlp"](x))
        return x[-1] @ self.embed.weight.T


class Generator:
    def __init__(self, model, cache, cpu_cache_size):
        self.model, self.cache = model, cache
        self.cpu_cache = CPUPageCache([cache], cpu_cache_size)
        self.serial = 0

    @torch.inference_mode()
    def generate(self, ids):
        prev = None
        for n in range(0, len(ids), PAGE_SIZE):
            page = Page(self.serial % self.cache.num_pages, f"{self.serial}".encode(), prev)
            logits = self.model(ids[n : n + PAGE_SIZE].to(DEVICE), self.cache, page)
            self.cpu_cache.store(page, self.serial)
            prev, self.serial = page.phash, self.serial + 1
        return int(logits.argmax())

    def close(self):
        if CURED:
            self.cpu_cache.close()
        self.model = self.cache = self.cpu_cache = None


class ModelContainer:
    def load(self, config):
        self.model = Model(config).half().to(DEVICE)
        self.cache = Cache(config, 8192)
        self.generator = Generator(self.model, self.cache, cpu_cache_size=24 * 2**20)

    def unload(self):
        self.generator.close()
        self.model = self.cache = self.generator = None
        gc.collect()
        torch.cuda.empty_cache()


def main():
    container = ModelContainer()
    for name, layers in (("small", 6), ("draft", 4), ("large", 8)):
        container.load({"dim": 512, "head_dim": 64, "kv_heads": 8, "layers": layers, "vocab": 8000})
        token = container.generator.generate(torch.randint(0, 8000, (900,)))
        print(f"{name}: next token {token}, pages {container.generator.cpu_cache.metrics}")
        ref = weakref.ref(container.model)
        container.unload()
        print(
            f"{name} unloaded ({ref() is None}), allocated {torch.cuda.memory_allocated() / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
