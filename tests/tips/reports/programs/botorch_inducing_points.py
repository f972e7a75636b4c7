"""After meta-pytorch/botorch#1788: the memory of a variational GP stays after the model is gone."""

import math

import torch
from torch import nn

CURED = False
DEVICE = "cuda"
POINTS, DIM, INDUCING, MODELS, EPOCHS = 2600, 5, 16, 4, 3
NEG_INF = float("-inf")


class MaternKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw_lengthscale = nn.Parameter(torch.zeros(1, DIM))

    def forward(self, x1, x2):
        lengthscale = nn.functional.softplus(self.raw_lengthscale)
        distance = torch.cdist(x1 / lengthscale, x2 / lengthscale)
        exp_component = torch.exp(-math.sqrt(5) * distance)
        constant_component = 1 + math.sqrt(5) * distance + 5 / 3 * distance**2
        return constant_component * exp_component


class ScaleKernel(nn.Module):
    def __init__(self, base_kernel):
        super().__init__()
        self.base_kernel, self.raw_outputscale = base_kernel, nn.Parameter(torch.zeros(()))

    def forward(self, x1, x2):
        return self.base_kernel(x1, x2) * nn.functional.softplus(self.raw_outputscale)


def _pivoted_cholesky_init(train_inputs, kernel_matrix, max_length, quality_scores, epsilon=1e-6):
    """Greedy approximation of the most diverse set of points"""
    item_size = kernel_matrix.shape[-2]
    cis = torch.zeros(max_length, item_size, device=kernel_matrix.device)
    di2s = kernel_matrix.diagonal()
    scores = di2s * torch.square(quality_scores)
    selected_item = torch.argmax(scores)
    selected_items = [selected_item]
    while len(selected_items) < max_length:
        k = len(selected_items) - 1
        ci_optimal = cis[:k, selected_item]
        di_optimal = torch.sqrt(di2s[selected_item])
        elements = kernel_matrix[..., selected_item, :]
        eis = (elements - torch.matmul(ci_optimal, cis[:k, :])) / di_optimal
        cis[k, :] = eis
        di2s = di2s - eis.pow(2.0)
        di2s[selected_item] = NEG_INF
        scores = di2s * torch.square(quality_scores)
        selected_item = torch.argmax(scores)
        if di2s[selected_item] < epsilon:
            break
        selected_items.append(selected_item)
    return train_inputs[torch.stack(selected_items)]


class GreedyVarianceReduction:
    def allocate_inducing_points(self, inputs, covar_module, num_inducing):
        quality_scores = torch.ones(len(inputs), device=inputs.device)
        with torch.set_grad_enabled(not CURED):
            train_train_kernel = covar_module(inputs, inputs)
        return _pivoted_cholesky_init(inputs, train_train_kernel, num_inducing, quality_scores)


class SingleTaskVariationalGP(nn.Module):
    def __init__(self, train_X, inducing_points=INDUCING):
        super().__init__()
        self.covar_module = ScaleKernel(MaternKernel()).to(train_X.device)
        allocator = GreedyVarianceReduction()
        points = allocator.allocate_inducing_points(train_X, self.covar_module, inducing_points)
        self.inducing_points = nn.Parameter(points.clone())
        self.variational_mean = nn.Parameter(torch.zeros(len(points), device=train_X.device))
        self.noise = nn.Parameter(torch.zeros((), device=train_X.device))

    def forward(self, X):
        k_zz = self.covar_module(self.inducing_points, self.inducing_points)
        k_zz = k_zz + 1e-3 * torch.eye(len(k_zz), device=X.device)
        weights = torch.linalg.solve(k_zz, self.variational_mean)
        return self.covar_module(X, self.inducing_points) @ weights


def create_gp_forward():
    # the next candidates of the optimization change the data, so the model is made anew
    train_X = torch.rand(POINTS, DIM).to(DEVICE)
    train_Y = torch.sin(train_X).sum(dim=1)
    gp = SingleTaskVariationalGP(train_X)
    optimizer = torch.optim.Adam(gp.parameters(), lr=0.05)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        error = (gp(train_X) - train_Y).square().mean()
        loss = error * torch.exp(-gp.noise) + gp.noise
        loss.backward()
        optimizer.step()
    return error.item()


for model in range(MODELS):
    print(model, create_gp_forward())
