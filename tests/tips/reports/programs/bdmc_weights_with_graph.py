"""After lxuechen/BDMC#3: annealed importance sampling of a VAE runs out of memory on newer torch."""

import math

import torch
from torch import nn
from torch.autograd import grad as torchgrad

CURED = False
LATENT_DIM, HIDDEN, PIXELS = 50, 800, 784
BATCH_SIZE, N_SAMPLE, N_SCHEDULE, LEAPFROG = 50, 100, 13, 5


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.Sequential(
            nn.Linear(LATENT_DIM, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, PIXELS),
        )

    def decode(self, z):
        return self.decoder(z)


def log_normal(x, mean, logvar):
    return -0.5 * (math.log(2 * math.pi) + logvar + (x - mean).pow(2) / logvar.exp()).sum(1)


def log_bernoulli(logit, target):
    return -nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="none").sum(1)


def log_mean_exp(x):
    max_ = x.max(1, keepdim=True).values
    return (x - max_).exp().mean(1).log() + max_.squeeze(1)


def hmc_trajectory(current_z, current_v, grad_U, epsilon, L=LEAPFROG):
    eps = epsilon.view(-1, 1)
    z = current_z
    v = current_v - grad_U(z) * eps * 0.5
    for i in range(1, L + 1):
        z = z + v * eps
        if i < L:
            v = v - grad_U(z) * eps
    v = v - grad_U(z) * eps * 0.5
    return z.detach(), -v.detach()


def accept_reject(current_z, current_v, z, v, epsilon, accept_hist, hist_len, U, K):
    current_Hamil = K(current_v) + U(current_z)
    propose_Hamil = K(v) + U(z)
    prob = torch.exp(current_Hamil - propose_Hamil)
    accept = (prob > torch.rand_like(prob)).type(prob.dtype)
    z = z * accept.view(-1, 1) + current_z * (1.0 - accept.view(-1, 1))
    accept_hist = accept_hist + accept
    criteria = (accept_hist / hist_len > 0.65).type(prob.dtype)
    epsilon = (epsilon * (1.02 * criteria + 0.98 * (1.0 - criteria))).clamp(1e-4, 0.5)
    return z.detach().requires_grad_(), epsilon.detach(), accept_hist.detach()


def ais_trajectory(model, loader, schedule, n_sample=N_SAMPLE):
    def log_f_i(z, data, t):
        """Unnormalized density for intermediate distribution `f_i`"""
        zeros = torch.zeros_like(z)
        log_prior = log_normal(z, zeros, zeros)
        log_likelihood = log_bernoulli(model.decode(z), data)
        return log_prior + log_likelihood.mul_(t)

    logws = []
    for batch in loader:
        B = batch.size(0) * n_sample
        batch = batch.cuda().repeat(n_sample, 1)
        epsilon = torch.full((B,), 0.01, device="cuda")
        accept_hist = torch.zeros(B, device="cuda")
        logw = torch.zeros(B, device="cuda")
        current_z = torch.randn(B, LATENT_DIM, device="cuda", requires_grad=True)

        for j, (t0, t1) in enumerate(zip(schedule[:-1], schedule[1:]), 1):
            # update log importance weight
            log_int_1 = log_f_i(current_z, batch, t0)
            log_int_2 = log_f_i(current_z, batch, t1)
            if CURED:
                log_int_1, log_int_2 = log_int_1.detach(), log_int_2.detach()
            logw.add_(log_int_2 - log_int_1)

            # resample speed
            current_v = torch.randn_like(current_z)

            def U(z):
                return -log_f_i(z, batch, t1)

            def grad_U(z):
                z = z.detach().requires_grad_()
                grad = torchgrad(U(z), z, grad_outputs=torch.ones(B, device="cuda"))[0]
                return torch.clamp(grad, -100 * LATENT_DIM, 100 * LATENT_DIM)

            def normalized_kinetic(v):
                zeros = torch.zeros_like(v)
                return -log_normal(v, zeros, zeros)

            z, v = hmc_trajectory(current_z, current_v, grad_U, epsilon)
            current_z, epsilon, accept_hist = accept_reject(
                current_z, current_v, z, v, epsilon, accept_hist, j, U, K=normalized_kinetic
            )

        logw = log_mean_exp(logw.view(n_sample, -1).transpose(0, 1))
        logws.append(logw.data)
        print("last batch stats", logw.mean().item())
    return logws


model = VAE().cuda().eval()
loader = [torch.rand(BATCH_SIZE, PIXELS).round() for _ in range(2)]
schedule = torch.linspace(0, 1, N_SCHEDULE).tolist()
forward_logws = ais_trajectory(model, loader, schedule)
