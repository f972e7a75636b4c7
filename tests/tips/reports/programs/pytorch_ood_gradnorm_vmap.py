"""After kkirchheim/pytorch-ood#163: GradNormKL needs tens of GB for a batch of pictures, although only the gradients of the last layer are scored."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

CURED = False
DEVICE = "cuda"


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + identity)


class ResNet(nn.Module):
    def __init__(self, num_classes=200, widths=(32, 64, 128, 256)):
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(3, widths[0], 3, 2, 1, bias=False),
            nn.BatchNorm2d(widths[0]),
        )
        layers, cin = [], widths[0]
        for i, cout in enumerate(widths):
            layers += [BasicBlock(cin, cout, 1 if i == 0 else 2), BasicBlock(cout, cout)]
            cin = cout
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(cin, num_classes)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean(dim=(2, 3)))


class MaxSoftmax:
    """The usual baseline, for comparison."""

    def __init__(self, model):
        self.model = model

    @torch.no_grad()
    def predict(self, x):
        return -self.model(x.to(DEVICE)).softmax(dim=1).max(dim=1).values


class GradNormKL:
    def __init__(self, model, param_filter=None, micro_batch_size=16):
        self.model = model
        self.param_filter = param_filter or (lambda name: True)
        self.micro_batch_size = micro_batch_size

    def predict(self, x):
        device = next(self.model.parameters()).device
        x = x.to(device)
        if CURED:
            return torch.cat(
                [self._predict_batched(part).detach() for part in x.split(self.micro_batch_size)]
            )
        return self._predict_batched(x)

    def _predict_batched(self, x):
        """Vectorized per-sample gradients via torch.func."""
        params = dict(self.model.named_parameters())
        buffers = dict(self.model.named_buffers())
        model, param_filter = self.model, self.param_filter

        def loss_for_single(params, x_single):
            logits = functional_call(model, (params, buffers), (x_single.unsqueeze(0),))
            y_uniform = torch.ones_like(logits) / logits.shape[1]
            return F.binary_cross_entropy(logits.softmax(dim=1), y_uniform, reduction="sum")

        with torch.enable_grad():
            per_sample_grads = vmap(grad(loss_for_single), in_dims=(None, 0))(params, x)
        total_norms = x.new_zeros(x.shape[0])
        for name, g in per_sample_grads.items():
            if param_filter(name):
                total_norms = total_norms + g.abs().sum(dim=tuple(range(1, g.ndim)))
        return -total_norms


class OODMetrics:
    def __init__(self):
        self.scores, self.labels = [], []

    def update(self, scores, y):
        self.scores.append(scores.detach().cpu())
        self.labels.append(y)

    def compute(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        order = scores.argsort(descending=True)
        hits = labels[order].lt(0).float().cumsum(0)
        return (hits[labels[order] >= 0].mean() / labels.lt(0).sum()).item()


def main():
    model = ResNet().to(DEVICE).eval()
    detectors = {
        "MSP": MaxSoftmax(model),
        "GradNormKL": GradNormKL(model, param_filter=lambda name: name.startswith("fc.")),
    }
    metrics = {name: OODMetrics() for name in detectors}
    for batch in range(2):
        x, y = (
            torch.rand(96, 3, 160, 160),
            torch.cat([torch.randint(0, 200, (48,)), torch.full((48,), -1)]),
        )
        for name, detector in detectors.items():
            metrics[name].update(detector.predict(x), y)
    for name, metric in metrics.items():
        print(f"{name}: AUROC {metric.compute():.4f}")


if __name__ == "__main__":
    main()
