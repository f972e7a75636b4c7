"""After Sanster/IOPaint#165: changing the model from sd1.5 to sd2 ends in out of memory on a small card."""

import gc
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class ResBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1, self.conv2 = (
            nn.Conv2d(cin, cout, 3, padding=1),
            nn.Conv2d(cout, cout, 3, padding=1),
        )
        self.skip = nn.Conv2d(cin, cout, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, cin, widths):
        super().__init__()
        self.stem = nn.Conv2d(cin, widths[0], 3, padding=1)
        self.down = nn.ModuleList([ResBlock(a, b) for a, b in zip(widths, widths[1:])])
        self.mid = ResBlock(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            [ResBlock(2 * b, a) for a, b in reversed(list(zip(widths, widths[1:])))]
        )
        self.head = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x):
        x, skips = self.stem(x), []
        for block in self.down:
            x = F.avg_pool2d(block(x), 2)
            skips.append(x)
        x = self.mid(x)
        for block in self.up:
            x = F.interpolate(block(torch.cat([x, skips.pop()], 1)), scale_factor=2)
        return self.head(x)


class InpaintModel:
    name = "base"
    pad_mod = 8

    def __init__(self, device, **kwargs):
        self.device = device
        self.init_model(device, **kwargs)

    @torch.no_grad()
    def __call__(self, image, mask, config):
        h, w = image.shape[-2:]
        pad_h, pad_w = -h % self.pad_mod, -w % self.pad_mod
        image = F.pad(image, (0, pad_w, 0, pad_h)).to(self.device)
        mask = F.pad(mask, (0, pad_w, 0, pad_h)).to(self.device)
        result = self.forward(image, mask, config)[..., :h, :w]
        return (result * mask[..., :h, :w] + image[..., :h, :w] * (1 - mask[..., :h, :w])).cpu()


class LaMa(InpaintModel):
    name = "lama"

    def init_model(self, device, **kwargs):
        self.model = UNet(4, (32, 64, 128)).eval().to(device)

    def forward(self, image, mask, config):
        return self.model(torch.cat([image * (1 - mask), mask], 1))[:, :3]


class SD(InpaintModel):
    pad_mod = 64
    widths = ()

    def init_model(self, device, **kwargs):
        self.vae_encoder = nn.Conv2d(3, 4, 8, 8).to(device)
        self.vae_decoder = nn.ConvTranspose2d(4, 3, 8, 8).to(device)
        self.unet = UNet(9, self.widths).eval().to(device)

    def forward(self, image, mask, config):
        masked_latents = self.vae_encoder(image * (1 - mask))
        mask = F.interpolate(mask, size=masked_latents.shape[-2:])
        latents = torch.randn_like(masked_latents)
        for _ in range(config["sd_steps"]):
            latents = latents - 0.1 * self.unet(torch.cat([latents, mask, masked_latents], 1))
        return self.vae_decoder(latents).tanh()


class SD15(SD):
    name, widths = "sd1.5", (128, 320, 640, 1280)


class SD2(SD):
    name, widths = "sd2", (160, 320, 640, 1280)


models = {"lama": LaMa, "sd1.5": SD15, "sd2": SD2}


class ModelManager:
    def __init__(self, name, device, **kwargs):
        self.name, self.device, self.kwargs = name, device, kwargs
        self.model = self.init_model(name, device, **kwargs)

    def init_model(self, name, device, **kwargs):
        if name in models:
            return models[name](device, **kwargs)
        raise NotImplementedError(f"Not supported model: {name}")

    def __call__(self, image, mask, config):
        return self.model(image, mask, config)

    def switch(self, new_name):
        if new_name == self.name:
            return
        if CURED:
            torch.cuda.empty_cache()
            del self.model
            gc.collect()
        self.model = self.init_model(new_name, self.device, **self.kwargs)
        self.name = new_name


def main():
    manager = ModelManager("sd1.5", torch.device(DEVICE))
    image, mask = torch.rand(1, 3, 500, 480), torch.zeros(1, 1, 500, 480)
    mask[..., 100:300, 120:260] = 1
    for name in ("sd1.5", "sd2", "lama"):
        manager.switch(name)
        result = manager(image, mask, {"sd_steps": 4})
        print(
            f"{manager.name}: {tuple(result.shape)}, {torch.cuda.memory_allocated() / 2**20:.0f} MB"
        )


if __name__ == "__main__":
    main()
