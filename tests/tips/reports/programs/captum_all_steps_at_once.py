"""After meta-pytorch/captum#245: integrated gradients of one image do not fit on a card of 11 GB."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
GROWTH_RATE, BLOCK_CONFIG, BN_SIZE, CLASSES = 32, (6, 12, 48, 32), 4, 1000


class _DenseLayer(nn.Module):
    def __init__(self, num_input_features):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_input_features)
        self.conv1 = nn.Conv2d(num_input_features, BN_SIZE * GROWTH_RATE, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(BN_SIZE * GROWTH_RATE)
        self.conv2 = nn.Conv2d(BN_SIZE * GROWTH_RATE, GROWTH_RATE, 3, padding=1, bias=False)

    def forward(self, features):
        bottleneck = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(F.relu(self.norm2(bottleneck)))


class _DenseBlock(nn.Module):
    def __init__(self, num_layers, num_input_features):
        super().__init__()
        self.layers = nn.ModuleList(
            _DenseLayer(num_input_features + i * GROWTH_RATE) for i in range(num_layers)
        )

    def forward(self, init_features):
        features = [init_features]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self, num_init_features=64):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, num_init_features, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(num_init_features),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        num_features = num_init_features
        for i, num_layers in enumerate(BLOCK_CONFIG):
            self.features.append(_DenseBlock(num_layers, num_features))
            num_features += num_layers * GROWTH_RATE
            self.features.append(nn.BatchNorm2d(num_features))
            self.features.append(nn.ReLU())
            if i != len(BLOCK_CONFIG) - 1:
                self.features.append(nn.Conv2d(num_features, num_features // 2, 1, bias=False))
                self.features.append(nn.AvgPool2d(2, 2))
                num_features //= 2
        self.classifier = nn.Linear(num_features, CLASSES)

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def compute_gradients(forward_fn, inputs, target_ind):
    with torch.autograd.set_grad_enabled(True):
        outputs = forward_fn(inputs)
        selected = outputs[torch.arange(len(outputs), device=outputs.device), target_ind]
        return torch.autograd.grad(torch.unbind(selected), inputs)[0]


class IntegratedGradients:
    def __init__(self, forward_func):
        self.forward_func = forward_func

    def attribute(self, inputs, baselines=0.0, target=0, n_steps=50, internal_batch_size=None):
        alphas = [(step + 0.5) / n_steps for step in range(n_steps)]
        if internal_batch_size is None:
            return self._attribute(inputs, baselines, target, alphas, n_steps)
        steps = max(1, internal_batch_size // len(inputs))
        return sum(
            self._attribute(inputs, baselines, target, alphas[i : i + steps], n_steps)
            for i in range(0, n_steps, steps)
        )

    def _attribute(self, inputs, baselines, target, alphas, n_steps):
        scaled_features = torch.cat(
            [baselines + alpha * (inputs - baselines) for alpha in alphas]
        ).requires_grad_()
        expanded_target = torch.full((len(scaled_features),), target, device=inputs.device)
        grads = compute_gradients(self.forward_func, scaled_features, expanded_target)
        total_grads = grads.unflatten(0, (len(alphas), -1)).sum(0) / n_steps
        return total_grads * (inputs - baselines)


class Explainer:
    """What the tool kit calls for an image that a user marked"""

    def __init__(self, model, device="cuda"):
        self.device, self.model = device, model.to(device).eval()
        self.method = IntegratedGradients(self.model)
        self.options = {"internal_batch_size": 5} if CURED else {}

    def __call__(self, image):
        x = image.unsqueeze(0).to(self.device)
        with torch.no_grad():
            prediction = self.model(x).argmax(-1)
        attributions = self.method.attribute(x, target=7, n_steps=50, **self.options)
        return prediction.cpu(), attributions.squeeze(0).sum(0).cpu()


explainer = Explainer(DenseNet())
for photo in (torch.rand(3, 256, 256), torch.rand(3, 256, 256)):
    prediction, heatmap = explainer(photo)
    print(tuple(heatmap.shape))
