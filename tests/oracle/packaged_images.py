"""Compiled programs of image, volume, diffusion and graph packages.

As in `programs.py`, a workload makes itself on the card and returns what runs one step. None of
these was looked at while the planner was made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tests.oracle.programs import classification_loss, training_step


def timm_net(name: str, shape: tuple[int, ...], **options: Any) -> Callable[[], Any]:
    import timm

    model = timm.create_model(name, num_classes=10)
    return training_step(model, classification_loss(shape), **options)


def channels_last(name: str, shape: tuple[int, ...], **options: Any) -> Callable[[], Any]:
    """As timm's own script trains with --amp --channels-last --torchcompile."""
    import timm

    model = timm.create_model(name, num_classes=10).to(memory_format=torch.channels_last)
    x = torch.randn(shape, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.zeros(shape[0], dtype=torch.long, device="cuda")
    return training_step(model, lambda m: cross_entropy(m(x), y), amp=True, **options)


def vision(name: str, shape: tuple[int, ...], **options: Any) -> Callable[[], Any]:
    import torchvision

    model = torchvision.models.get_model(name, weights=None, num_classes=10)
    return training_step(model, classification_loss(shape), **options)


def segmenting(**options: Any) -> Callable[[], Any]:
    import torchvision

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=5
    )
    x = torch.randn(8, 3, 256, 256, device="cuda")
    y = torch.zeros(8, 256, 256, dtype=torch.long, device="cuda")
    return training_step(model, lambda m: cross_entropy(m(x)["out"], y), **options)


def resized() -> Callable[[], Any]:
    """Batches whose number and size of images change, told beforehand."""
    import timm

    model = timm.create_model("resnet18", num_classes=10)
    shapes = iter([(32, 160), (24, 192), (32, 128), (16, 224), (32, 192), (8, 224)])

    def loss(m: nn.Module) -> torch.Tensor:
        rows, size = next(shapes)
        x = torch.randn(rows, 3, size, size, device="cuda")
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(x, (2, 3))
        return cross_entropy(m(x), torch.zeros(rows, dtype=torch.long, device="cuda"))

    return training_step(model, loss)


def denoising(**options: Any) -> Callable[[], Any]:
    """diffusers' UNet, as its training scripts call it."""
    import diffusers

    model = diffusers.UNet2DConditionModel(
        sample_size=32,
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=256,
        attention_head_dim=8,
        layers_per_block=1,
    )
    x = torch.randn(16, 4, 32, 32, device="cuda")
    text = torch.randn(16, 77, 256, device="cuda")
    when = torch.zeros(16, dtype=torch.long, device="cuda")
    return training_step(model, lambda m: mse_loss(m(x, when, text).sample, x), **options)


def by_block() -> Callable[[], Any]:
    """Regional compilation: `compile_repeated_blocks` of a transformer of diffusers'."""
    import diffusers

    model: Any = diffusers.FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=3,
        attention_head_dim=64,
        num_attention_heads=8,
        joint_attention_dim=256,
        pooled_projection_dim=128,
        axes_dims_rope=(16, 24, 24),
    )
    model = model.to(torch.bfloat16).cuda()
    model.compile_repeated_blocks(fullgraph=True)
    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    given = {
        "hidden_states": torch.randn(4, 1024, 16, **options),
        "encoder_hidden_states": torch.randn(4, 128, 256, **options),
        "pooled_projections": torch.randn(4, 128, **options),
        "timestep": torch.ones(4, **options),
        "img_ids": torch.zeros(1024, 3, **options),
        "txt_ids": torch.zeros(128, 3, **options),
    }

    def step() -> None:
        with torch.no_grad():
            model(**given)

    return step


def by_block_trained() -> Callable[[], Any]:
    """The same in training, block by block."""
    import timm

    model: Any = timm.create_model("vit_small_patch16_224", num_classes=10, depth=4).cuda()
    for block in model.blocks:
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    loss = classification_loss((64, 3, 224, 224))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            value = loss(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def exported() -> Callable[[], Any]:
    """torch.export, and Inductor over what it returns."""
    import timm

    model = timm.create_model("resnet18", num_classes=10).cuda().eval()
    x = torch.randn(32, 3, 160, 160, device="cuda")
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: rows},))
    compiled = torch.compile(program.module())

    def step() -> None:
        with torch.no_grad():
            compiled(x)

    return step


def graphs() -> Callable[[], Any]:
    """A GCN and a GAT of torch_geometric's."""
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (
                GCNConv(128, 256, add_self_loops=False),
                GATConv(256, 64, 4, add_self_loops=False),
            )
            self.head = nn.Linear(256, 10)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            return self.head(self.two(self.one(x, edges).relu(), edges).relu())

    x = torch.randn(4096, 128, device="cuda")
    edges = torch.randint(4096, (2, 65536)).cuda()
    y = torch.zeros(4096, dtype=torch.long, device="cuda")
    return training_step(Net(), lambda m: cross_entropy(m(x, edges), y))


def volumes() -> Callable[[], Any]:
    """Three-dimensional convolutions under AMP with a scaler, as of medical images."""

    def double(a: int, b: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv3d(a, b, 3, padding=1, bias=False),
            nn.InstanceNorm3d(b, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(b, b, 3, padding=1, bias=False),
            nn.InstanceNorm3d(b, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )

    class Volume(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.deep = double(1, 16), double(16, 32)
            self.pool, self.up = nn.MaxPool3d(2), nn.ConvTranspose3d(32, 16, 2, 2)
            self.end, self.head = double(32, 16), nn.Conv3d(16, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.down(x)
            deep = self.up(self.deep(self.pool(first)))
            return self.head(self.end(torch.cat([first, deep], 1)))

    model: Any = Volume().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.99, nesterov=True)
    scaler, compiled = torch.amp.GradScaler("cuda"), torch.compile(model)
    x = torch.randn(2, 1, 64, 64, 64, device="cuda")
    y = torch.zeros(2, 64, 64, 64, dtype=torch.long, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            value = cross_entropy(compiled(x), y)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 12)
        scaler.step(optimizer)
        scaler.update()

    return step


IMAGES: dict[str, Callable[[], Callable[[], Any]]] = {
    "timm resnet18, channels last, AMP": lambda: channels_last("resnet18", (32, 3, 160, 160)),
    "timm efficientnet_b0, channels last, AMP": lambda: channels_last(
        "efficientnet_b0", (16, 3, 160, 160)
    ),
    "timm mixer, reduce-overhead": lambda: timm_net(
        "mixer_s32_224", (64, 3, 224, 224), mode="reduce-overhead"
    ),
    "timm resnet18, sizes that change": resized,
    "timm vit, by block, AMP": by_block_trained,
    "timm resnet18, exported": exported,
    "torchvision swin_t, AMP": lambda: vision("swin_t", (8, 3, 224, 224), amp=True),
    "torchvision shufflenet": lambda: vision("shufflenet_v2_x1_0", (32, 3, 224, 224)),
    "torchvision lraspp, reduce-overhead": lambda: segmenting(mode="reduce-overhead"),
    "diffusers UNet, AMP": lambda: denoising(amp=True),
    "diffusers Flux, by block": by_block,
    "torch_geometric GCN, GAT": graphs,
    "volumes, scaler": volumes,
}
