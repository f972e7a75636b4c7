"""Part `models`: requests and peaks of training steps of many models.

Networks of convolutions come first: only a card knows the workspaces that cuDNN takes there. Then
the oracle's small models of every library that is here. Weights are left as they are found.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.card.allocator_requests import warm_up_libraries
from tests.oracle.models import answer, sort_frees

if TYPE_CHECKING:
    from tests.card.parts import Case
    from tests.oracle.zoo import Program

CLASSES = 1000


class Way(NamedTuple):
    """Training mode of a model: autocast type and memory format."""

    dtype: str
    last: bool

    def __str__(self) -> str:
        return f"{self.dtype}{', channels last' if self.last else ''}"


PLAIN = Way("float32", last=False)
WAYS = (
    PLAIN,
    Way("bfloat16", last=False),
    Way("float16", last=True),
    Way("float32", last=True),
    Way("float16", last=False),
    Way("bfloat16", last=True),
)
TORCHVISION = (
    # model, batch, height and width
    ("resnet50", 32, 224),
    ("resnet18", 64, 224),
    ("vgg16", 16, 224),
    ("densenet121", 16, 224),
    ("mobilenet_v2", 32, 224),
    ("efficientnet_b0", 32, 224),
    ("convnext_tiny", 16, 224),
    ("regnet_y_400mf", 32, 224),
    ("inception_v3", 16, 299),
    ("googlenet", 32, 224),
    ("mobilenet_v3_large", 32, 224),
    ("resnext50_32x4d", 16, 224),
    ("squeezenet1_1", 32, 224),
    ("shufflenet_v2_x1_0", 64, 224),
    ("mnasnet1_0", 32, 224),
    ("alexnet", 128, 224),
    ("wide_resnet50_2", 16, 224),
    ("efficientnet_v2_s", 16, 300),
    ("regnet_x_400mf", 32, 224),
    ("vit_b_16", 16, 224),
    ("swin_t", 16, 224),
    ("maxvit_t", 8, 224),
    ("resnet18", 8, 32),
    ("resnet34", 128, 32),
    ("resnet101", 8, 384),
    ("vgg11_bn", 64, 32),
)
SEGMENTATION = (
    ("fcn_resnet50", 4, 256),
    ("deeplabv3_resnet50", 8, 256),
    ("deeplabv3_mobilenet_v3_large", 8, 512),
    ("lraspp_mobilenet_v3_large", 8, 256),
)
VIDEO = (("r3d_18", 4, 112), ("mc3_18", 4, 112), ("r2plus1d_18", 4, 112), ("s3d", 2, 224))
FRAMES = 16
TIMM = (
    "resnet50d", "resnetv2_50", "seresnet50", "res2net50_26w_4s", "resnest14d", "skresnet18",
    "tf_efficientnet_b0", "mobilenetv3_large_100", "convnext_nano", "regnety_016",
    "hrnet_w18_small", "dla34", "repvgg_a0", "cspdarknet53", "ghostnet_100", "mixnet_s",
    "xception41", "dpn68", "nf_resnet50", "eca_nfnet_l0", "ese_vovnet19b_dw", "selecsls42b",
    "convmixer_768_32", "mobileone_s0", "fastvit_t8", "edgenext_small", "poolformer_s12",
    "mobilevit_s", "coatnet_nano_rw_224", "inception_v4", "inception_next_tiny", "levit_128",
    "vit_small_patch16_224",
)  # fmt: skip
TIMM_BATCH, TIMM_SIZE = 16, 224


def cases() -> Iterator[Case]:
    """Yield each mode of the image networks, then the oracle's models."""
    import torch

    from tests.oracle.zoo import programs

    warm_up_libraries()
    for way in WAYS:
        for name, make in images():
            yield f"{name}, {way}", partial(record_training_step, torch, make, way)
        if way is PLAIN:
            for name, make in programs():
                yield f"small {name}, {way}", partial(record_training_step, torch, make, way)
    for dtype in ("bfloat16", "float16"):
        for name, make in programs():
            yield (
                f"small {name}, {dtype}",
                partial(record_training_step, torch, make, Way(dtype, last=False)),
            )


def record_training_step(
    torch: Any, make: Callable[[], Program], way: Way
) -> dict[str, list[int]] | str:
    """Record a training step's sizes and peaks, or return its error."""
    made = partial(_channels_last, torch, make) if way.last else make
    found = answer(torch, made, getattr(torch, way.dtype), None)
    return found if isinstance(found, str) else {**found, "sizes": sort_frees(found["sizes"])}


def _channels_last(torch: Any, make: Callable[[], Program]) -> Program:
    program = make()

    def turned(leaf: Any) -> Any:
        flat = torch.is_tensor(leaf) and leaf.dim() == 4
        return leaf.contiguous(memory_format=torch.channels_last) if flat else leaf

    batch = torch.utils._pytree.tree_map(turned, program.batch)
    model = program.model.to(memory_format=torch.channels_last)
    return program._replace(model=model, batch=batch)


def images() -> Iterator[tuple[str, Callable[[], Program]]]:
    """Return the installed image networks of torchvision and timm."""
    for name, batch, size in TORCHVISION:
        shape = (batch, 3, size, size)
        yield f"{name} {_sides(shape)}", partial(_torchvision, name, shape, ())
    for name, batch, size in VIDEO:
        shape = (batch, 3, FRAMES, size, size)
        yield f"{name} {_sides(shape)}", partial(_torchvision, name, shape, ())
    for name, batch, size in SEGMENTATION:
        shape = (batch, 3, size, size)
        yield f"{name} {_sides(shape)}", partial(_torchvision, name, shape, (size, size))
    for name in TIMM:
        shape = (TIMM_BATCH, 3, TIMM_SIZE, TIMM_SIZE)
        yield f"timm {name} {_sides(shape)}", partial(_timm, name, shape)


def _sides(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _torchvision(name: str, shape: tuple[int, ...], labeled: tuple[int, ...]) -> Program:
    known = importlib.import_module("torchvision.models")
    options = {"weights_backbone": None} if labeled else {}
    model = known.get_model(
        name, weights=None, num_classes=CLASSES if not labeled else 21, **options
    )
    return _classifier(model, shape, labeled)


def _timm(name: str, shape: tuple[int, ...]) -> Program:
    model = importlib.import_module("timm").create_model(name, num_classes=CLASSES)
    return _classifier(model, shape, ())


def _classifier(model: Any, shape: tuple[int, ...], labeled: tuple[int, ...]) -> Program:
    """Make a program with a label for each image or pixel."""
    import torch

    from tests.oracle.zoo import Program

    labels = torch.zeros(shape[0], *labeled, dtype=torch.long)
    return Program(model, (torch.rand(shape), labels), loss)


def loss(model: Any, batch: Any) -> Any:
    """Return the cross entropy of the first result."""
    import torch

    found = model(batch[0])
    first = found if torch.is_tensor(found) else next(iter(_parts(found)))
    return torch.nn.functional.cross_entropy(first, batch[1])


def _parts(found: Any) -> Any:
    return found.values() if hasattr(found, "values") else found
