"""After Comfy-Org/ComfyUI#13617: the tiny video decoder's peak grows with the length of the video."""

from collections import deque, namedtuple

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
LATENT_CHANNELS, T_IN, HEIGHT, WIDTH, PATCH_SIZE, WIDTHS = 16, 16, 32, 32, 4, (128, 64, 32)
TWorkItem = namedtuple("TWorkItem", ("input_tensor", "block_index"))


class MemBlock(nn.Module):
    """Residual block that also sees its input of the frame before"""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(n_in * 2, n_out, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_out, n_out, 3, padding=1),
        )
        self.skip = nn.Conv2d(n_in, n_out, 1, bias=False) if n_in != n_out else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x, past):
        return self.act(self.conv(torch.cat([x, past], 1)) + self.skip(x))


class TGrow(nn.Module):
    """One frame becomes `stride` frames"""

    def __init__(self, n_f, stride):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(n_f, n_f * stride, 1, bias=False)

    def forward(self, x):
        return self.conv(x)


def apply_model_with_memblocks(model, x, post_process, output_device=None):
    B, T, C, H, W = x.shape
    out = []
    work_queue = deque(TWorkItem(xt, 0) for xt in x.reshape(B, T * C, H, W).chunk(T, dim=1))
    mem = [None] * len(model)
    while work_queue:
        xt, i = work_queue.popleft()
        if i == len(model):
            if output_device is not None:
                out.append(post_process(xt).to(output_device))
            else:
                out.append(xt)
            del xt
            continue
        block = model[i]
        if isinstance(block, MemBlock):
            past = torch.zeros_like(xt) if mem[i] is None else mem[i]
            xt_new = block(xt, past)
            mem[i] = xt
            work_queue.appendleft(TWorkItem(xt_new, i + 1))
            del xt_new, past
        elif isinstance(block, TGrow):
            xt = block(xt)
            for frame in reversed(xt.chunk(block.stride, 1)):
                work_queue.appendleft(TWorkItem(frame.contiguous(), i + 1))
            del frame
        else:
            work_queue.appendleft(TWorkItem(block(xt), i + 1))
        del xt
    return torch.stack(out, 1)


class TAEHV(nn.Module):
    def __init__(self):
        super().__init__()
        first, second, third = WIDTHS
        self.decoder = nn.Sequential(
            nn.Conv2d(LATENT_CHANNELS, first, 3, padding=1),
            nn.ReLU(inplace=True),
            MemBlock(first, first),
            nn.Upsample(scale_factor=2),
            TGrow(first, 2),
            MemBlock(first, second),
            nn.Upsample(scale_factor=2),
            TGrow(second, 2),
            MemBlock(second, third),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(third, 3 * PATCH_SIZE**2, 3, padding=1),
        )
        self.frames_to_trim = 3

    def decode(self, x):
        x = x.movedim(2, 1)
        if CURED:
            x = apply_model_with_memblocks(
                self.decoder, x, lambda xt: F.pixel_shuffle(xt, PATCH_SIZE), torch.device("cpu")
            )
        else:
            x = apply_model_with_memblocks(self.decoder, x, None)
            x = F.pixel_shuffle(x, PATCH_SIZE)
        return x[:, self.frames_to_trim :].movedim(2, 1)


vae = TAEHV().half().cuda().eval()
with torch.inference_mode():
    samples = torch.randn(
        1, LATENT_CHANNELS, T_IN, HEIGHT, WIDTH, device="cuda", dtype=torch.float16
    )
    for prompt in range(2):
        frames = vae.decode(samples).cpu()
        print("prompt", prompt, "video", tuple(frames.shape))
