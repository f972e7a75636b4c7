"""After TRAIS-Lab/dattri#154: the last line of TRAK's attribute takes a lot of memory when there are many training samples."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
NUM_TRAIN, NUM_TEST = 20000, 200


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 64), nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Loader:
    def __init__(self, n, batch_size):
        self.x, self.y, self.batch_size = torch.rand(n, 784), torch.randint(0, 10, (n,)), batch_size

    def __iter__(self):
        for start in range(0, len(self.x), self.batch_size):
            yield self.x[start : start + self.batch_size], self.y[start : start + self.batch_size]


class AttributionTask:
    def __init__(self, model, checkpoints):
        self.model, self.checkpoints = model, checkpoints
        self.names = [name for name, _ in model.named_parameters()]

    def get_param(self, ckpt_seed):
        return {name: self.checkpoints[ckpt_seed][name] for name in self.names}

    def target(self, params, x, y):
        loss = F.cross_entropy(torch.func.functional_call(self.model, params, (x[None],)), y[None])
        logp = -loss
        return logp - torch.log(1 - torch.exp(logp))

    def probability(self, params, x, y):
        return torch.exp(
            -F.cross_entropy(torch.func.functional_call(self.model, params, (x[None],)), y[None])
        )

    def get_grad_target_func(self):
        per_sample = torch.func.vmap(torch.func.grad(self.target), in_dims=(None, 0, 0))

        def grad_target(params, x, y):
            grads = per_sample(params, x, y)
            return torch.cat([grads[name].flatten(1) for name in self.names], dim=1)

        return grad_target


class TRAKAttributor:
    def __init__(self, task, projector_kwargs, device="cpu", regularization=1e-3):
        self.task, self.device, self.regularization = task, device, regularization
        self.projector_kwargs = projector_kwargs
        self.norm_scaler = sum(p.numel() for p in task.model.parameters()) ** 0.5
        self.grad_target_func = task.get_grad_target_func()
        self.correct_probability_func = torch.func.vmap(task.probability, in_dims=(None, 0, 0))
        self.full_train_dataloader = None
        self.projectors = {}

    def random_project(self, grad_t, ensemble_id):
        if ensemble_id not in self.projectors:
            self.projectors[ensemble_id] = torch.randn(
                grad_t.shape[1], self.projector_kwargs["proj_dim"], device=self.device
            )
        return grad_t @ self.projectors[ensemble_id]

    def projected_grads(self, dataloader, ckpt_seed, with_Q):
        parameters, grads, Q = self.task.get_param(ckpt_seed), [], []
        for batch in dataloader:
            x, y = (data.to(self.device) for data in batch)
            grad_t = torch.nan_to_num(self.grad_target_func(parameters, x, y))
            grad_t /= self.norm_scaler
            grads.append(self.random_project(grad_t, ckpt_seed).clone().detach())
            if with_Q:
                Q.append(
                    (
                        torch.ones(len(x)).to(self.device)
                        - self.correct_probability_func(parameters, x, y).flatten()
                    )
                    .clone()
                    .detach()
                )
        return torch.cat(grads, dim=0), (torch.cat(Q, dim=0) if with_Q else None)

    def cache(self, full_train_dataloader):
        self.full_train_dataloader = full_train_dataloader
        inv_XTX_XT_list, running_Q, running_count = [], 0, 0
        for ckpt_seed in range(len(self.task.checkpoints)):
            full_train_projected_grad, Q = self.projected_grads(
                full_train_dataloader, ckpt_seed, True
            )
            kernel_matrix = full_train_projected_grad.T @ full_train_projected_grad
            kernel_matrix.diagonal().add_(self.regularization)
            inv_XTX_XT_list.append(torch.linalg.solve(kernel_matrix, full_train_projected_grad.T))
            running_Q = running_Q * running_count + Q
            running_count += 1
            running_Q /= running_count
        self.inv_XTX_XT_list = inv_XTX_XT_list
        self.Q = running_Q

    def attribute(self, test_dataloader):
        running_xinv_XTX_XT, running_count = 0, 0
        for ckpt_seed in range(len(self.task.checkpoints)):
            test_projected_grad, _ = self.projected_grads(test_dataloader, ckpt_seed, False)
            running_xinv_XTX_XT = (
                running_xinv_XTX_XT * running_count
                + test_projected_grad @ self.inv_XTX_XT_list[ckpt_seed]
            )
            running_count += 1
            running_xinv_XTX_XT /= running_count
        if CURED:
            return (running_xinv_XTX_XT * self.Q.to(self.device).unsqueeze(0)).T
        return (running_xinv_XTX_XT @ self.Q.diag().to(self.device)).T


def main():
    checkpoints = [{k: v.to(DEVICE) for k, v in MLP().state_dict().items()} for _ in range(2)]
    task = AttributionTask(MLP().to(DEVICE), checkpoints)
    train_loader, test_loader = Loader(NUM_TRAIN, 500), Loader(NUM_TEST, 100)
    attributor = TRAKAttributor(task, {"proj_dim": 512}, device=DEVICE)
    with torch.no_grad():
        attributor.cache(train_loader)
        score = attributor.attribute(test_loader)
    best = score.topk(3, dim=0).indices[:, 0].cpu()
    print(
        f"scores {tuple(score.shape)}, best training samples of the first test sample {best.tolist()}"
    )


if __name__ == "__main__":
    main()
