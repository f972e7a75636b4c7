"""After lukemelas/EfficientNet-PyTorch#18: training EfficientNet-B0 needs more memory than elsewhere."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
# repeats, kernel, stride, expansion, channels in and out
BLOCKS_ARGS = [
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
]
BATCH, SIZE, CLASSES = 44, 256, 10


class SwishImplementation(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        ctx.save_for_backward(i)
        return i * torch.sigmoid(i)

    @staticmethod
    def backward(ctx, grad_output):
        (i,) = ctx.saved_tensors
        gate = torch.sigmoid(i)
        return grad_output * gate * (1 + i * (1 - gate))


def relu_fn(x):
    """Swish activation function"""
    if CURED:
        return SwishImplementation.apply(x)
    return x * torch.sigmoid(x)


def drop_connect(inputs, p, training):
    if not training:
        return inputs
    keep_prob = 1 - p
    random_tensor = keep_prob + torch.rand([inputs.shape[0], 1, 1, 1], device=inputs.device)
    return inputs / keep_prob * torch.floor(random_tensor)


class MBConvBlock(nn.Module):
    def __init__(self, kernel, stride, expand_ratio, input_filters, output_filters):
        super().__init__()
        self.expand_ratio, self.stride = expand_ratio, stride
        oup = input_filters * expand_ratio
        if expand_ratio != 1:
            self._expand_conv = nn.Conv2d(input_filters, oup, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(oup, momentum=0.01, eps=1e-3)
        self._depthwise_conv = nn.Conv2d(
            oup, oup, kernel, stride, kernel // 2, groups=oup, bias=False
        )
        self._bn1 = nn.BatchNorm2d(oup, momentum=0.01, eps=1e-3)
        squeezed = max(1, input_filters // 4)
        self._se_reduce = nn.Conv2d(oup, squeezed, 1)
        self._se_expand = nn.Conv2d(squeezed, oup, 1)
        self._project_conv = nn.Conv2d(oup, output_filters, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(output_filters, momentum=0.01, eps=1e-3)

    def forward(self, inputs, drop_connect_rate):
        x = inputs
        if self.expand_ratio != 1:
            x = relu_fn(self._bn0(self._expand_conv(inputs)))
        x = relu_fn(self._bn1(self._depthwise_conv(x)))
        x_squeezed = F.adaptive_avg_pool2d(x, 1)
        x_squeezed = self._se_expand(relu_fn(self._se_reduce(x_squeezed)))
        x = torch.sigmoid(x_squeezed) * x
        x = self._bn2(self._project_conv(x))
        if self.stride == 1 and x.shape == inputs.shape:
            x = drop_connect(x, drop_connect_rate, self.training) + inputs
        return x


class EfficientNet(nn.Module):
    def __init__(self):
        super().__init__()
        self._conv_stem = nn.Conv2d(1, 32, 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(32, momentum=0.01, eps=1e-3)
        self._blocks = nn.ModuleList()
        for num_repeat, kernel, stride, expand, inp, oup in BLOCKS_ARGS:
            self._blocks.append(MBConvBlock(kernel, stride, expand, inp, oup))
            for _ in range(num_repeat - 1):
                self._blocks.append(MBConvBlock(kernel, 1, expand, oup, oup))
        self._conv_head = nn.Conv2d(320, 1280, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(1280, momentum=0.01, eps=1e-3)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(1280, CLASSES)

    def extract_features(self, inputs):
        x = relu_fn(self._bn0(self._conv_stem(inputs)))
        for idx, block in enumerate(self._blocks):
            x = block(x, drop_connect_rate=0.2 * idx / len(self._blocks))
        return relu_fn(self._bn1(self._conv_head(x)))

    def forward(self, inputs):
        x = self.extract_features(inputs)
        x = F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1)
        return self._fc(self._dropout(x))


model = EfficientNet().cuda().train()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(2):
    images = torch.randn(BATCH, 1, SIZE, SIZE, device="cuda")
    target = torch.randint(0, CLASSES, (BATCH,), device="cuda")
    loss = criterion(model(images), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
