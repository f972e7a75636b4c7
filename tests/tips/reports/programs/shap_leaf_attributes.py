"""After shap/shap#4839: DeepExplainer leaves activations on the modules of the model."""

import torch
from torch import nn

CURED = False
DEVICE = "cuda"
BACKGROUND, IMAGES, SIZE, WIDTH, CLASSES = 20, 2, 64, 32, 10


class BasicBlock(nn.Module):
    def __init__(self, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu2 = nn.ReLU()

    def forward(self, x):
        out = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(out)) + x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU())
        self.layer1 = BasicBlock(WIDTH)
        self.layer2 = BasicBlock(WIDTH)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.fc(self.pool(self.layer2(self.layer1(self.stem(x)))).flatten(1))


def nonlinear_1d(module, grad_input, grad_output):
    half = len(module.x) // 2
    delta_in = module.x[:half] - module.x[half:]
    delta_out = module.y[:half] - module.y[half:]
    multipliers = grad_output[0] * (delta_out / delta_in).repeat(2, 1, 1, 1)
    small = delta_in.abs().repeat(2, 1, 1, 1) < 1e-6
    return (torch.where(small, grad_input[0], multipliers),)


def add_interim_values(module, input, output):
    """The forward hook used to save interim tensors, detached from the graph"""
    if isinstance(module, nn.ReLU):
        module.x = nn.Parameter(input[0].detach())
        module.y = nn.Parameter(output.detach())


def deeplift_grad(module, grad_input, grad_output):
    if isinstance(module, nn.ReLU):
        return nonlinear_1d(module, grad_input, grad_output)


class PyTorchDeep:
    def __init__(self, model, data):
        self.model, self.data = model.eval(), data

    def add_handles(self, model, forward_handle, backward_handle):
        handles_list = []
        model_children = list(model.children())
        if model_children:
            for child in model_children:
                handles_list.extend(self.add_handles(child, forward_handle, backward_handle))
        else:  # leaves
            handles_list.append(model.register_forward_hook(forward_handle))
            handles_list.append(model.register_full_backward_hook(backward_handle))
        return handles_list

    def remove_attributes(self, model):
        """Removes the x and y attributes which were added by the forward handles"""
        for child in model.children():
            container = "nn.modules.container" in str(type(child))
            if list(child.children()) if CURED else container:
                self.remove_attributes(child)
            else:
                for name in ("x", "y"):
                    if hasattr(child, name):
                        delattr(child, name)

    def gradient(self, idx, joint_x):
        x = joint_x.requires_grad_()
        selected = self.model(x)[:, idx].sum()
        return torch.autograd.grad(selected, x)[0].cpu()

    def shap_values(self, X):
        handles = self.add_handles(self.model, add_interim_values, deeplift_grad)
        ranks = self.model(X).argmax(1).tolist()
        phis = []
        for j, label in enumerate(ranks):
            tiled_X = X[j : j + 1].repeat(len(self.data), 1, 1, 1)
            sample_phis = self.gradient(label, torch.cat([tiled_X, self.data]))
            phis.append((sample_phis[len(self.data) :] * (tiled_X - self.data).cpu()).mean(0))
        for handle in handles:
            handle.remove()
        self.remove_attributes(self.model)
        return torch.stack(phis)


model = Net().to(DEVICE)
e = PyTorchDeep(model, torch.randn(BACKGROUND, 3, SIZE, SIZE).to(DEVICE))
for batch in torch.randn(2, IMAGES, 3, SIZE, SIZE):
    shap_values = e.shap_values(batch.to(DEVICE))
    print(shap_values.abs().mean().item())
