"""After vllm-project/vllm-omni#6100: a vocoder server holds gigabytes before the first request."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
N_TIMESTEPS, DEPTH, HEADS, HEAD_DIM, MAX_FRAMES, MELS, TOKENS = 10, 12, 8, 64, 1000, 80, 6561
DIM, CHUNK = HEADS * HEAD_DIM, 50


class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.to_qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.conv = nn.Conv1d(DIM, DIM, 3)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, cnn_cache, att_cache):
        """Return the output and the caches of the next chunk"""
        qkv = self.to_qkv(self.norm1(x)).unflatten(-1, (3, HEADS, HEAD_DIM))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        if att_cache is not None:
            past_k, past_v = att_cache.chunk(2, dim=-1)
            k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = self.norm2(x).transpose(1, 2)
        h = F.pad(h, (2, 0)) if cnn_cache is None else torch.cat([cnn_cache, h], 2)
        x = x + self.mlp(self.conv(h).transpose(1, 2))
        return x, h[:, :, -2:].clone(), torch.cat([k, v], -1)


class DiT(nn.Module):
    """Estimates the flow; has fixed caches to stream one sequence"""

    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(2 * MELS, DIM), nn.Linear(DIM, MELS)
        self.blocks = nn.ModuleList(DiTBlock() for _ in range(DEPTH))
        self._init_caches()

    def _init_caches(self):
        shape = (N_TIMESTEPS, DEPTH, 2, HEADS, MAX_FRAMES, 2 * HEAD_DIM)
        self.register_buffer("att_cache_buffer", torch.zeros(shape), persistent=False)
        shape = (N_TIMESTEPS, DEPTH, 2, DIM, 2)
        self.register_buffer("cnn_cache_buffer", torch.zeros(shape), persistent=False)

    def forward_chunk(self, x, mu, caches):
        h, new_caches = self.in_proj(torch.cat([x, mu], -1)), []
        for block, (cnn_cache, att_cache) in zip(self.blocks, caches):
            h, cnn_cache, att_cache = block(h, cnn_cache, att_cache)
            new_caches.append((cnn_cache, att_cache[:, :, -MAX_FRAMES:].clone()))
        return self.out_proj(h), new_caches

    def stream(self, x, mu, step, seen):
        """Compute the next chunk of the one sequence whose caches are in the buffers"""
        caches = [
            (self.cnn_cache_buffer[step, i], self.att_cache_buffer[step, i, :, :, :seen])
            for i in range(DEPTH)
        ]
        out, caches = self.forward_chunk(x, mu, caches)
        for i, (cnn_cache, att_cache) in enumerate(caches):
            self.cnn_cache_buffer[step, i] = cnn_cache
            self.att_cache_buffer[step, i, :, :, : att_cache.shape[2]] = att_cache
        return out


class CausalConditionalCFM(nn.Module):
    def __init__(self):
        super().__init__()
        self.estimator = DiT()
        shape = (N_TIMESTEPS, DEPTH, 2, HEADS, MAX_FRAMES, 2 * HEAD_DIM)
        self.register_buffer("att_cache_buffer", torch.zeros(shape), persistent=False)
        shape = (N_TIMESTEPS, DEPTH, 2, DIM, 2)
        self.register_buffer("cnn_cache_buffer", torch.zeros(shape), persistent=False)


class Token2wav(nn.Module):
    """The model as its authors published it"""

    def __init__(self):
        super().__init__()
        self.input_embedding = nn.Embedding(TOKENS, MELS)
        self.decoder = CausalConditionalCFM()
        self.hift = nn.Sequential(
            nn.ConvTranspose1d(MELS, 128, 16, 8, 4), nn.SiLU(), nn.Conv1d(128, 60, 7, padding=3)
        )


class BatchedToken2Wav:
    """Serves many requests at once, with caches of their own that grow as they need"""

    def __init__(self, token2wav):
        self.token2wav, self.states = token2wav, {}
        if CURED:
            self._release_stream_caches()

    def _release_stream_caches(self):
        for module in (self.token2wav.decoder, self.token2wav.decoder.estimator):
            module.att_cache_buffer = module.cnn_cache_buffer = None

    def _stack(self, request_ids, step):
        if any(request not in self.states for request in request_ids):
            return [(None, None)] * DEPTH
        per_request = [self.states[request][step] for request in request_ids]
        return [
            tuple(torch.cat(parts) for parts in zip(*(caches[i] for caches in per_request)))
            for i in range(DEPTH)
        ]

    @torch.inference_mode()
    def decode_batch(self, request_ids, tokens):
        mu = self.token2wav.input_embedding(tokens)
        x, new_states = torch.randn_like(mu), {request: [] for request in request_ids}
        for step in range(N_TIMESTEPS):
            caches = self._stack(request_ids, step)
            flow, caches = self.token2wav.decoder.estimator.forward_chunk(x, mu, caches)
            x = x + flow / N_TIMESTEPS
            for row, request in enumerate(request_ids):
                new_states[request].append([(c[row, None], a[row, None]) for c, a in caches])
        self.states.update(new_states)
        return self.token2wav.hift(x.transpose(1, 2)).flatten(1).float().cpu()

    def finish(self, request_id):
        self.states.pop(request_id, None)


class Code2WavStage:
    def __init__(self):
        self.backend = BatchedToken2Wav(Token2wav().to("cuda", torch.float16).eval())

    def run(self, requests, chunks=4):
        for chunk in range(chunks):
            tokens = torch.zeros(len(requests), CHUNK, dtype=torch.int64, device="cuda")
            wav = self.backend.decode_batch(requests, tokens)
            print("chunk", chunk, tuple(wav.shape))
        for request in requests:
            self.backend.finish(request)


stage = Code2WavStage()
for turn in range(2):
    stage.run([f"session-{i}-turn-{turn}" for i in range(2)])
