"""After deepmodeling/deepmd-kit#4006: molecular dynamics needs as much memory as training."""

import torch
from torch import nn

CURED = False
DEVICE = "cuda"
NLOC, NSEL, NEURON, AXIS, FITTING, STEPS = 1500, 64, (16, 32, 64), 8, (120, 120, 120), 4
RCUT, BOX, DT = 6.0, 24.0, 1e-3


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (1, *NEURON)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))

    def forward(self, ss):
        xx = torch.tanh(self.layers[0](ss))
        for layer in self.layers[1:]:
            xx = torch.cat([xx, xx], -1) + torch.tanh(layer(xx))
        return xx


class DescrptSeA(nn.Module):
    """Smooth descriptor of the neighbors of an atom, from their distances and directions"""

    def __init__(self):
        super().__init__()
        self.embedding = EmbeddingNet()

    def prod_env_mat(self, extended_coord, nlist):
        diff = extended_coord[nlist] - extended_coord[:NLOC, None]
        length = diff.square().sum(-1, keepdim=True).clamp(min=0.25).sqrt()
        uu = (length / RCUT).clamp(max=1)
        weight = (1 - uu).square() * (1 + 2 * uu) / length
        return torch.cat([weight, weight * diff / length], -1)

    def forward(self, extended_coord, nlist):
        env_mat = self.prod_env_mat(extended_coord, nlist)
        gg = self.embedding(env_mat[..., :1])
        gr = gg.transpose(1, 2) @ env_mat / NSEL
        return (gr @ gr[:, :AXIS].transpose(1, 2)).flatten(1)


class EnergyFittingNet(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (NEURON[-1] * AXIS, *FITTING)
        layers = [m for pair in zip(sizes, sizes[1:]) for m in (nn.Linear(*pair), nn.Tanh())]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, descriptor):
        return self.layers(descriptor)


def atomic_virial_corr(extended_coord, atom_energy, create_graph):
    sumce = (extended_coord.detach() * atom_energy).sum(0)
    columns = [
        torch.autograd.grad([ce], [extended_coord], create_graph=create_graph, retain_graph=True)[0]
        for ce in sumce
    ]
    return torch.stack(columns, -1)


def task_deriv_one(atom_energy, energy, extended_coord, create_graph=True):
    extended_force = torch.autograd.grad(
        [energy], [extended_coord], create_graph=create_graph, retain_graph=True
    )[0]
    extended_force = -extended_force
    extended_virial = torch.einsum("ik,ij->ikj", extended_force, extended_coord)
    correction = atomic_virial_corr(extended_coord, atom_energy, create_graph)
    return extended_force, extended_virial + correction


class EnergyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.descriptor, self.fitting_net = DescrptSeA(), EnergyFittingNet()

    def forward(self, extended_coord, nlist):
        extended_coord = extended_coord.detach().requires_grad_()
        atom_energy = self.fitting_net(self.descriptor(extended_coord, nlist))
        energy = atom_energy.sum()
        create_graph = self.training if CURED else True
        force, virial = task_deriv_one(atom_energy, energy, extended_coord, create_graph)
        return {"energy": energy, "force": force, "virial": virial}


class DeepPot:
    """Inference with a trained model"""

    def __init__(self, model):
        self.model = model.eval()

    def build_neighbor_list(self, coord):
        distance = torch.cdist(coord, coord)
        distance.fill_diagonal_(2 * BOX)
        return distance.topk(NSEL, largest=False).indices

    def eval(self, coord):
        result = self.model(coord, self.build_neighbor_list(coord))
        return result["energy"].item(), result["force"].detach(), result["virial"].detach()


dp = DeepPot(EnergyModel().to(DEVICE))
coord = torch.rand(NLOC, 3).to(DEVICE) * BOX
velocity = torch.zeros_like(coord)
for step in range(STEPS):
    energy, force, virial = dp.eval(coord)
    velocity += DT * force
    coord = (coord + DT * velocity) % BOX
    print(step, energy, virial.diagonal().mean().item())
