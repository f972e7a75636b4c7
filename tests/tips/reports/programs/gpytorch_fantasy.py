"""After cornellius-gp/gpytorch#2734: evaluate fantasy models of a GP in an acquisition loop."""

import functools
import weakref

import torch

CURED = False


def rbf(a, b, lengthscale):
    return torch.exp(-(torch.cdist(a / lengthscale, b / lengthscale) ** 2))


def clear_cache_hook(module, *args):
    module = module() if isinstance(module, weakref.ref) else module
    if module is not None:
        module._memoize_cache = {}


class PredictionStrategy:
    def __init__(self, train_inputs, train_targets, lengthscale):
        self.train_inputs, self.train_targets = train_inputs, train_targets
        self.lengthscale, self._memoize_cache = lengthscale, {}
        self.train_covar = rbf(train_inputs, train_inputs, lengthscale) + torch.eye(
            len(train_inputs), device="cuda"
        )

    @property
    def mean_cache(self):
        if "mean" not in self._memoize_cache:
            mean_cache = self.train_covar @ (self.train_covar @ self.train_targets)
            target = weakref.ref(self) if CURED else self
            mean_cache.grad_fn.register_hook(functools.partial(clear_cache_hook, target))
            self._memoize_cache["mean"] = mean_cache
        return self._memoize_cache["mean"]

    def exact_prediction(self, x):
        return rbf(x, self.train_inputs, self.lengthscale) @ self.mean_cache


lengthscale = torch.full((10,), 0.5, device="cuda", requires_grad=True)
mc_points = torch.rand(128, 10, device="cuda")
values = []
for i in range(20):
    X = torch.rand(2000, 10, device="cuda")
    fantasy = PredictionStrategy(X, torch.rand(2000, 1, device="cuda"), lengthscale)
    values.append(fantasy.exact_prediction(mc_points).mean().item())
    del fantasy
print(len(values))
