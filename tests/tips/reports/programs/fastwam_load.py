"""After yuantianyuan01/FastWAM#20: the GPU memory is unexpectedly high right after the model is loaded."""

import os
import tempfile

import torch
import torch.nn as nn

CURED = False


class Block(nn.Module):
    def __init__(self, dim=1536, ffn=6144):
        super().__init__()
        self.attn = nn.Linear(dim, 4 * dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn), nn.GELU(), nn.Linear(ffn, dim))

    def forward(self, x):
        return x + self.ffn(x + self.attn(x).chunk(4, -1)[0])


class FastWAM(nn.Module):
    def __init__(self, layers=4, device="cpu"):
        super().__init__()
        self.device = torch.device(device)
        self.blocks = nn.ModuleList(Block() for _ in range(layers)).to(self.device)

    def load_checkpoint(self, path):
        payload = torch.load(path, map_location="cpu" if CURED else self.device)
        self.blocks.load_state_dict(payload["blocks"])
        return payload["step"]

    @torch.no_grad()
    def infer_action(self, latents):
        for block in self.blocks:
            latents = block(latents)
        return latents


def pretrained_file(root):
    path = os.path.join(root, "fastwam.pt")
    with torch.device("meta"):
        shapes = FastWAM(device="meta").blocks.state_dict()
    torch.save({"blocks": {k: torch.zeros(v.shape) for k, v in shapes.items()}, "step": 1000}, path)
    return path


with tempfile.TemporaryDirectory() as root:
    model = FastWAM(device="cuda").eval()
    model.load_checkpoint(pretrained_file(root))
print("reserved after load", torch.cuda.memory_reserved() >> 20, "MiB")
action = model.infer_action(torch.randn(1, 256, 1536, device="cuda"))
