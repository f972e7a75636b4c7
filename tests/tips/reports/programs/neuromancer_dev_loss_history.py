"""After pnnl/neuromancer#292: a long training run holds hundreds of megabytes of autograd graph that nobody needs."""

from copy import deepcopy
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

CURED = False
DEVICE = "cuda"


def move_batch_to_device(batch, device="cpu"):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}


class DictDataset(Dataset):
    def __init__(self, datadict, name="train"):
        self.datadict, self.name = datadict, name

    def __len__(self):
        return len(next(iter(self.datadict.values())))

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.datadict.items()}

    def collate_fn(self, batch):
        batch = torch.utils.data.default_collate(batch)
        batch["name"] = self.name
        return batch


class MLP(nn.Module):
    def __init__(self, insize, outsize, hsizes):
        super().__init__()
        sizes = [insize] + hsizes + [outsize]
        self.linear = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])])

    def forward(self, *xs):
        x = torch.cat(xs, dim=-1)
        for lin in self.linear[:-1]:
            x = torch.tanh(lin(x))
        return self.linear[-1](x)


class PINNNode(nn.Module):
    """u(x, t) with its derivatives, for Burgers' equation."""

    def __init__(self, hsizes):
        super().__init__()
        self.callable = MLP(2, 1, hsizes)

    def forward(self, data):
        x, t = data["x"].requires_grad_(), data["t"].requires_grad_()
        u = self.callable(x, t)
        u_x, u_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        u_xx = torch.autograd.grad(u_x.sum(), x, create_graph=True)[0]
        return {"u": u, "f": u_t + u * u_x - 0.01 / torch.pi * u_xx}


class Problem(nn.Module):
    def __init__(self, nodes, grad_inference=False):
        super().__init__()
        self.nodes = nn.ModuleList(nodes)
        self.grad_inference = grad_inference

    def step(self, data):
        for node in self.nodes:
            data = {**data, **node(data)}
        return data

    def forward(self, data):
        output = self.step(data)
        loss = (output["f"] ** 2).mean() + 50.0 * ((output["u"] - output["u_true"]) ** 2).mean()
        return {f"{data['name']}_loss": loss, f"{data['name']}_f": output["f"].detach().abs().max()}


class Callback:
    def begin_epoch(self, trainer, output):
        pass

    def end_epoch(self, trainer, output):
        pass


class Trainer:
    def __init__(
        self,
        problem,
        train_data,
        dev_data=None,
        optimizer=None,
        callback=None,
        epochs=8,
        epoch_verbose=2,
        patience=5,
        warmup=0,
        train_metric="train_loss",
        dev_metric="dev_loss",
        clip=100.0,
        device="cpu",
    ):
        self.model = problem
        self.optimizer = (
            optimizer
            if optimizer is not None
            else torch.optim.Adam(problem.parameters(), 0.01, betas=(0.0, 0.9))
        )
        self.train_data, self.dev_data = train_data, dev_data
        self.callback = callback or Callback()
        self.epochs, self.epoch_verbose = epochs, epoch_verbose
        self.patience, self.warmup, self.badcount = patience, warmup, 0
        self.train_metric, self.dev_metric = train_metric, dev_metric
        self.clip, self.device = clip, device
        self.best_devloss = float("inf")
        self.best_model = deepcopy(self.model.state_dict())
        self.loss_history = {"train": [], "dev": []}

    def train(self):
        for i in range(self.epochs):
            self.model.train()
            losses = []
            for t_batch in self.train_data:
                t_batch["epoch"] = i
                t_batch = move_batch_to_device(t_batch, self.device)
                output = self.model(t_batch)
                self.optimizer.zero_grad()
                output[self.train_metric].backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
                self.optimizer.step()
                if CURED:
                    losses.append(output[self.train_metric].detach())
                else:
                    losses.append(output[self.train_metric])
            output[f"mean_{self.train_metric}"] = torch.mean(torch.stack(losses))
            self.callback.begin_epoch(self, output)

            with torch.set_grad_enabled(self.model.grad_inference):
                self.model.eval()
                losses = []
                for d_batch in self.dev_data:
                    d_batch = move_batch_to_device(d_batch, self.device)
                    eval_output = self.model(d_batch)
                    if CURED:
                        eval_output[self.dev_metric] = eval_output[self.dev_metric].detach()
                    losses.append(eval_output[self.dev_metric])
                mean_dev_loss = torch.mean(torch.stack(losses))
                self.loss_history["dev"].append(mean_dev_loss)
                eval_output[f"mean_{self.dev_metric}"] = mean_dev_loss
                output = {**output, **eval_output}

                if output[self.dev_metric] < self.best_devloss:
                    self.best_model = deepcopy(self.model.state_dict())
                    self.best_devloss = output[self.dev_metric]
                    self.badcount = 0
                elif i > self.warmup:
                    self.badcount += 1
                mean_loss = output[f"mean_{self.train_metric}"]
                self.loss_history["train"].append(mean_loss)
                if i % self.epoch_verbose == 0:
                    print(
                        f"epoch: {i}  {self.train_metric}: {mean_loss:.4f}  dev {mean_dev_loss:.4f}"
                    )
                self.callback.end_epoch(self, output)
                if self.badcount > self.patience:
                    print("Early stopping!!!")
                    break
        return self.best_model


def get_dataloaders(num=4096, batch_size=2048):
    loaders = []
    for name in ("train", "dev"):
        x, t = torch.rand(num, 1) * 2 - 1, torch.rand(num, 1)
        dataset = DictDataset({"x": x, "t": t, "u_true": -torch.sin(torch.pi * x) * (1 - t)}, name)
        loaders.append(
            DataLoader(
                dataset,
                batch_size=batch_size,
                collate_fn=dataset.collate_fn,
                shuffle=name == "train",
            )
        )
    return loaders


def main():
    train_loader, dev_loader = get_dataloaders()
    problem = Problem([PINNNode([64, 64, 64])], grad_inference=True).to(DEVICE)
    trainer = Trainer(
        problem,
        train_loader,
        dev_loader,
        torch.optim.Adam(problem.parameters(), lr=3e-3),
        device=DEVICE,
    )
    problem.load_state_dict(trainer.train())
    print(f"after training: {torch.cuda.memory_allocated() / 2**20:.0f} MiB in use")


if __name__ == "__main__":
    main()
