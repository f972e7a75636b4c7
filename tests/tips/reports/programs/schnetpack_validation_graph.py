"""After atomistic-machine-learning/schnetpack#250: a validation batch takes more GPU memory than a training batch of the same size."""

import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import grad

CURED = False
DEVICE = "cuda"
N_ATOMS, N_NEIGHBORS = 32, 31


def shifted_softplus(x):
    return F.softplus(x) - math.log(2.0)


class Dense(nn.Linear):
    def __init__(self, n_in, n_out, bias=True, activation=None):
        super().__init__(n_in, n_out, bias)
        self.activation = activation

    def forward(self, x):
        y = super().forward(x)
        return self.activation(y) if self.activation else y


class GaussianSmearing(nn.Module):
    def __init__(self, start=0.0, stop=5.0, n_gaussians=25):
        super().__init__()
        offset = torch.linspace(start, stop, n_gaussians)
        self.register_buffer("offsets", offset)
        self.coeff = -0.5 / (offset[1] - offset[0]).item() ** 2

    def forward(self, distances):
        diff = distances[..., None] - self.offsets
        return torch.exp(self.coeff * torch.pow(diff, 2))


class CFConv(nn.Module):
    def __init__(self, n_in, n_filters, n_out, filter_network, cutoff):
        super().__init__()
        self.in2f = Dense(n_in, n_filters, bias=False)
        self.f2out = Dense(n_filters, n_out, activation=shifted_softplus)
        self.filter_network, self.cutoff = filter_network, cutoff

    def forward(self, x, r_ij, neighbors, f_ij):
        W = self.filter_network(f_ij)
        C = 0.5 * (torch.cos(r_ij * math.pi / self.cutoff) + 1.0) * (r_ij < self.cutoff).float()
        W = W * C.unsqueeze(-1)
        y = self.in2f(x)
        n_batch, n_atoms, n_nbh = neighbors.size()
        nbh = neighbors.reshape(n_batch, n_atoms * n_nbh, 1).expand(-1, -1, y.size(2))
        y = torch.gather(y, 1, nbh).view(n_batch, n_atoms, n_nbh, -1)
        y = (y * W).sum(dim=2)
        return self.f2out(y)


class SchNetInteraction(nn.Module):
    def __init__(self, n_atom_basis, n_spatial_basis, n_filters, cutoff):
        super().__init__()
        filter_network = nn.Sequential(
            Dense(n_spatial_basis, n_filters, activation=shifted_softplus),
            Dense(n_filters, n_filters),
        )
        self.cfconv = CFConv(n_atom_basis, n_filters, n_atom_basis, filter_network, cutoff)
        self.dense = Dense(n_atom_basis, n_atom_basis)

    def forward(self, x, r_ij, neighbors, f_ij):
        return self.dense(self.cfconv(x, r_ij, neighbors, f_ij))


class SchNet(nn.Module):
    def __init__(
        self,
        n_atom_basis=128,
        n_filters=128,
        n_interactions=3,
        cutoff=5.0,
        n_gaussians=25,
        max_z=100,
    ):
        super().__init__()
        self.embedding = nn.Embedding(max_z, n_atom_basis, padding_idx=0)
        self.distance_expansion = GaussianSmearing(0.0, cutoff, n_gaussians)
        self.interactions = nn.ModuleList(
            [
                SchNetInteraction(n_atom_basis, n_gaussians, n_filters, cutoff)
                for _ in range(n_interactions)
            ]
        )

    def forward(self, inputs):
        positions, neighbors = inputs["_positions"], inputs["_neighbors"]
        x = self.embedding(inputs["_atomic_numbers"])
        batch = torch.arange(len(positions), device=positions.device)[:, None, None]
        r_ij = torch.sqrt(
            (positions[batch, neighbors] - positions[:, :, None]).pow(2).sum(-1) + 1e-6
        )
        f_ij = self.distance_expansion(r_ij)
        for interaction in self.interactions:
            x = x + interaction(x, r_ij, neighbors, f_ij)
        return x


class Atomwise(nn.Module):
    def __init__(
        self, n_in, property="energy", derivative="forces", negative_dr=True, create_graph=True
    ):
        super().__init__()
        self.property, self.derivative, self.negative_dr, self.create_graph = (
            property,
            derivative,
            negative_dr,
            create_graph,
        )
        self.out_net = nn.Sequential(
            Dense(n_in, n_in // 2, activation=shifted_softplus), Dense(n_in // 2, 1)
        )

    def forward(self, inputs):
        yi = self.out_net(inputs["representation"])
        result = {self.property: yi.sum(dim=1)}
        create_graph = self.create_graph
        if CURED:
            create_graph = self.create_graph if self.training else False
        sign = -1.0 if self.negative_dr else 1.0
        dy = grad(
            result[self.property],
            inputs["_positions"],
            grad_outputs=torch.ones_like(result[self.property]),
            create_graph=create_graph,
            retain_graph=True,
        )[0]
        result[self.derivative] = sign * dy
        return result


class AtomisticModel(nn.Module):
    def __init__(self, representation, output_modules):
        super().__init__()
        self.representation, self.output_modules = representation, output_modules

    def forward(self, inputs):
        inputs["_positions"].requires_grad_()
        inputs["representation"] = self.representation(inputs)
        return self.output_modules(inputs)


def make_loader(n_batches, batch_size):
    neighbors = torch.stack(
        [torch.tensor([j for j in range(N_ATOMS) if j != i]) for i in range(N_ATOMS)]
    )
    for _ in range(n_batches):
        yield {
            "_atomic_numbers": torch.randint(1, 9, (batch_size, N_ATOMS)),
            "_positions": 3 * torch.rand(batch_size, N_ATOMS, 3),
            "_neighbors": neighbors.expand(batch_size, -1, -1).clone(),
            "energy": torch.randn(batch_size, 1),
            "forces": torch.randn(batch_size, N_ATOMS, 3),
        }


def loss_fn(batch, result, rho=0.1):
    err_energy = (batch["energy"] - result["energy"]).pow(2).mean()
    err_forces = (batch["forces"] - result["forces"]).pow(2).mean()
    return rho * err_energy + (1 - rho) * err_forces


class Trainer:
    def __init__(self, model, loss_fn, optimizer, batch_size):
        self._model, self.loss_fn, self.optimizer, self.batch_size = (
            model,
            loss_fn,
            optimizer,
            batch_size,
        )

    def train(self, device, n_epochs):
        self._model.to(device)
        for epoch in range(n_epochs):
            if CURED:
                self._model.train()
            for train_batch in make_loader(3, self.batch_size):
                self.optimizer.zero_grad()
                train_batch = {k: v.to(device) for k, v in train_batch.items()}
                result = self._model(train_batch)
                loss = self.loss_fn(train_batch, result)
                loss.backward()
                self.optimizer.step()
            if CURED:
                self._model.eval()
            val_loss, n_val = 0.0, 0
            for val_batch in make_loader(3, self.batch_size):
                vsize = list(val_batch.values())[0].size(0)
                n_val += vsize
                val_batch = {k: v.to(device) for k, v in val_batch.items()}
                val_result = self._model(val_batch)
                val_batch_loss = self.loss_fn(val_batch, val_result).data.cpu().numpy()
                val_loss += val_batch_loss * vsize
            print(f"epoch {epoch}: train {loss.item():.4f}, validation {val_loss / n_val:.4f}")


def main():
    model = AtomisticModel(SchNet(), Atomwise(128))
    trainer = Trainer(model, loss_fn, torch.optim.Adam(model.parameters(), lr=1e-4), batch_size=32)
    trainer.train(torch.device(DEVICE), n_epochs=2)


if __name__ == "__main__":
    main()
