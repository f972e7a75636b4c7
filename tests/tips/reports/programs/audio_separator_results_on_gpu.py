"""After nomadkaraoke/python-audio-separator#148: separating a long recording runs out of memory, although it is done in chunks."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
SAMPLE_RATE = 44100


class BandBlock(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.to_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.ff(self.norm2(x))


class MelBandRoformer(nn.Module):
    """Frames in, masked frames of each stem out (the spectral front end left out)."""

    def __init__(self, num_stems, dim=96, depth=3, frame=882):
        super().__init__()
        self.num_stems, self.frame = num_stems, frame
        self.encode = nn.Linear(2 * frame, dim)
        self.blocks = nn.ModuleList([BandBlock(dim) for _ in range(depth)])
        self.decode = nn.Linear(dim, num_stems * 2 * frame)

    def forward(self, raw_audio):
        b, c, n = raw_audio.shape
        frames = raw_audio.view(b, c, n // self.frame, self.frame).transpose(1, 2).flatten(2)
        x = self.encode(frames)
        for block in self.blocks:
            x = block(x)
        mask = torch.sigmoid(self.decode(x)).view(b, -1, self.num_stems, c, self.frame)
        out = mask * frames.view(b, -1, 1, c, self.frame)
        return out.permute(0, 2, 3, 1, 4).reshape(b, self.num_stems, c, n)


class CommonSeparator:
    def __init__(self, config):
        self.torch_device = torch.device(DEVICE)
        self.model_data = config["model_data"]
        self.primary_source = self.secondary_source = None

    def prepare_mix(self, seconds):
        t = torch.arange(seconds * SAMPLE_RATE) / SAMPLE_RATE
        return torch.stack([torch.sin(440 * t), torch.sin(554 * t)])

    def final_process(self, stem_name, source):
        print(f"{stem_name}: {tuple(source.shape)}, loudest {abs(source).max():.3f}")


class MDXCSeparator(CommonSeparator):
    def __init__(self, config, arch_config):
        super().__init__(config)
        self.segment_size = arch_config.get("segment_size", 256)
        self.overlap = arch_config.get("overlap", 8)
        self.load_model()

    def load_model(self):
        self.model_run = (
            MelBandRoformer(len(self.model_data["instruments"])).to(self.torch_device).eval()
        )

    def separate(self, seconds):
        mix = self.prepare_mix(seconds)
        mix = 0.9 * mix / mix.abs().max()
        source = self.demix(mix)
        for name in self.model_data["instruments"]:
            self.final_process(name, source[name].T)

    def overlap_add(self, result, x, weights, start, length):
        x = x.to(result.device)
        weights = weights.to(result.device)
        result[..., start : start + length] += x[..., :length] * weights[:length]
        return result

    def demix(self, mix):
        chunk_size = self.model_data["hop_length"] * self.segment_size
        step = int(self.overlap * SAMPLE_RATE)
        device = next(self.model_run.parameters()).device
        window = torch.hamming_window(chunk_size, dtype=torch.float32)
        if not CURED:
            window = window.to(device)
        with torch.no_grad():
            req_shape = (len(self.model_data["instruments"]),) + tuple(mix.shape)
            result = torch.zeros(req_shape, dtype=torch.float32)
            counter = torch.zeros(req_shape, dtype=torch.float32)
            if not CURED:
                result, counter = result.to(device), counter.to(device)
            for i in range(0, mix.shape[1], step):
                part = mix[:, i : i + chunk_size]
                length = part.shape[-1]
                if i + chunk_size > mix.shape[1]:
                    part = mix[:, -chunk_size:]
                    length = chunk_size
                part = part.to(device)
                x = self.model_run(part.unsqueeze(0))[0]
                if i + chunk_size > mix.shape[1]:
                    result = self.overlap_add(
                        result, x, window, result.shape[-1] - chunk_size, length
                    )
                    counter[..., result.shape[-1] - chunk_size :] += window[:length]
                else:
                    result = self.overlap_add(result, x, window, i, length)
                    counter[..., i : i + length] += window[:length]
            inferenced_outputs = result / counter.clamp(min=1e-10)
        sources = inferenced_outputs.cpu().numpy()
        return {name: sources[i] for i, name in enumerate(self.model_data["instruments"])}


def main():
    config = {
        "model_data": {"instruments": ["vocals", "drums", "bass", "other"], "hop_length": 441}
    }
    separator = MDXCSeparator(config, {"segment_size": 800, "overlap": 8})
    for seconds in (20, 60):
        torch.cuda.reset_peak_memory_stats()
        separator.separate(seconds)
        print(f"{seconds} seconds of audio: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
