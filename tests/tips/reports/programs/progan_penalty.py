"""After akanimax/pro_gan_pytorch#12: the memory used increases with each batch of WGAN-GP training."""

import torch
import torch.nn as nn

CURED = False


def conv_net(*layers):
    return nn.Sequential(*layers).cuda()


class WGAN_GP:
    def __init__(self, dis):
        self.dis = dis

    def gradient_penalty(self, real_samps, fake_samps, reg_lambda=10):
        epsilon = torch.rand(real_samps.shape[0], 1, 1, 1, device="cuda")
        merged = (epsilon * real_samps + (1 - epsilon) * fake_samps).requires_grad_()
        op = self.dis(merged)
        if CURED:
            gradient = torch.autograd.grad(
                op, merged, torch.ones_like(op), create_graph=True, retain_graph=True
            )[0]
        else:
            op.backward(torch.ones_like(op), create_graph=True)
            gradient = merged.grad
        return reg_lambda * ((gradient.flatten(1).norm(p=2, dim=1) - 1) ** 2).mean()

    def dis_loss(self, real_samps, fake_samps):
        fake_out, real_out = self.dis(fake_samps), self.dis(real_samps)
        return fake_out.mean() - real_out.mean() + self.gradient_penalty(real_samps, fake_samps)


gen = conv_net(
    nn.ConvTranspose2d(128, 256, 8),
    nn.LeakyReLU(0.2),
    nn.Upsample(scale_factor=16),
    nn.Conv2d(256, 3, 3, padding=1),
)
dis = conv_net(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 3, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(128 * 64 * 64, 1),
)
gen_optim = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
dis_optim = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.0, 0.99))
loss_fn = WGAN_GP(dis)
for i in range(24):
    real = torch.rand(32, 3, 128, 128, device="cuda")
    fake = gen(torch.randn(32, 128, 1, 1, device="cuda"))
    loss = loss_fn.dis_loss(real, fake.detach())
    dis_optim.zero_grad()
    loss.backward()
    dis_optim.step()
    gen_loss = -dis(fake).mean()
    gen_optim.zero_grad()
    gen_loss.backward()
    gen_optim.step()
