"""After nimarb/pytorch_influence_functions#15: s_test runs out of GPU memory after a few recursions, with small models too."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import grad

CURED = False
DEVICE = "cuda"


class Net(nn.Module):
    """The small CIFAR-10 network of the example."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(64 * 5 * 5, 240)
        self.fc2 = nn.Linear(240, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def calc_loss(y, t):
    y = F.log_softmax(y, dim=1)
    return F.nll_loss(y, t, weight=None, reduction="mean")


def grad_z(z, t, model, gpu=-1):
    """Gradients of the loss of one sample with respect to the parameters."""
    model.eval()
    if gpu >= 0:
        z, t = z.cuda(), t.cuda()
    y = model(z)
    loss = calc_loss(y, t)
    params = [p for p in model.parameters() if p.requires_grad]
    return list(grad(loss, params, create_graph=True))


def hvp(y, w, v):
    """The Hessian of y with respect to w, times v."""
    first_grads = grad(y, w, retain_graph=True, create_graph=True)
    elemwise_products = 0
    for grad_elem, v_elem in zip(first_grads, v):
        elemwise_products += torch.sum(grad_elem * v_elem)
    return grad(elemwise_products, w, create_graph=True)


def s_test(z_test, t_test, model, z_loader, gpu=-1, damp=0.01, scale=25.0, recursion_depth=5000):
    """The inverse Hessian vector product of a test sample, by stochastic estimation."""
    v = grad_z(z_test, t_test, model, gpu)
    h_estimate = v.copy()
    for i in range(recursion_depth):
        for x, t in z_loader:
            if gpu >= 0:
                x, t = x.cuda(), t.cuda()
            y = model(x)
            loss = calc_loss(y, t)
            params = [p for p in model.parameters() if p.requires_grad]
            hv = hvp(loss, params, h_estimate)
            # Recursively calculate h_estimate
            if CURED:
                with torch.no_grad():
                    h_estimate = [
                        _v + (1 - damp) * _h_e - _hv / scale
                        for _v, _h_e, _hv in zip(v, h_estimate, hv)
                    ]
            else:
                h_estimate = [
                    _v + (1 - damp) * _h_e - _hv / scale for _v, _h_e, _hv in zip(v, h_estimate, hv)
                ]
            break
    return h_estimate


def calc_s_test_single(
    model, z_test, t_test, train_loader, gpu=-1, damp=0.01, scale=25, recursion_depth=4, r=2
):
    s_test_vec_list = []
    for i in range(r):
        s_test_vec_list.append(
            s_test(
                z_test,
                t_test,
                model,
                train_loader,
                gpu=gpu,
                damp=damp,
                scale=scale,
                recursion_depth=recursion_depth,
            )
        )
        print(f"Calc. s_test averaging: {i + 1}/{r}")
    s_test_vec = [sum(parts) / r for parts in zip(*s_test_vec_list)]
    return s_test_vec


def calc_influence_single(model, train_loader, test_sample, gpu, recursion_depth, r):
    z_test, t_test = test_sample
    s_test_vec = calc_s_test_single(
        model, z_test, t_test, train_loader, gpu, recursion_depth=recursion_depth, r=r
    )
    influences = []
    for x, t in list(train_loader)[:2]:
        grad_z_vec = grad_z(x[:1], t[:1], model, gpu=gpu)
        tmp_influence = -sum(
            [torch.sum(k * j).data.item() for k, j in zip(grad_z_vec, s_test_vec)]
        ) / len(train_loader)
        influences.append(tmp_influence)
    return influences


def main():
    model = Net().cuda()
    train_loader = [(torch.rand(64, 3, 32, 32), torch.randint(0, 10, (64,))) for _ in range(4)]
    test_loader = [(torch.rand(1, 3, 32, 32), torch.randint(0, 10, (1,)))]
    config = {"recursion_depth": 4, "r_averaging": 1, "gpu": 0}
    for i, test_sample in enumerate(test_loader):
        influences = calc_influence_single(
            model,
            train_loader,
            test_sample,
            config["gpu"],
            config["recursion_depth"],
            config["r_averaging"],
        )
        print(f"test sample {i}: {influences[0]:.4f}")


if __name__ == "__main__":
    main()
