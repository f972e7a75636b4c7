"""After TeaPearce/Conditional_Diffusion_MNIST#12: sampling from a trained model takes very much memory."""

import torch
import torch.nn as nn

CURED = False
DEVICE = "cuda"


class ResidualConvBlock(nn.Module):
    def __init__(self, in_channels, out_channels, is_res=False):
        super().__init__()
        self.is_res = is_res
        self.conv1 = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, 1, 1), nn.BatchNorm2d(out_channels), nn.GELU()
        )
        self.conv2 = nn.Sequential(
            nn.Conv2d(out_channels, out_channels, 3, 1, 1), nn.BatchNorm2d(out_channels), nn.GELU()
        )

    def forward(self, x):
        x1 = self.conv1(x)
        x2 = self.conv2(x1)
        return (x1 + x2) / 1.414 if self.is_res else x2


class EmbedFC(nn.Module):
    def __init__(self, input_dim, emb_dim):
        super().__init__()
        self.input_dim = input_dim
        self.model = nn.Sequential(
            nn.Linear(input_dim, emb_dim), nn.GELU(), nn.Linear(emb_dim, emb_dim)
        )

    def forward(self, x):
        return self.model(x.view(-1, self.input_dim))[:, :, None, None]


class ContextUnet(nn.Module):
    def __init__(self, in_channels, n_feat=8, n_classes=10):
        super().__init__()
        self.n_classes = n_classes
        self.init_conv = ResidualConvBlock(in_channels, n_feat, is_res=True)
        self.down1 = nn.Sequential(ResidualConvBlock(n_feat, n_feat), nn.MaxPool2d(2))
        self.down2 = nn.Sequential(ResidualConvBlock(n_feat, 2 * n_feat), nn.MaxPool2d(2))
        self.timeembed, self.contextembed = EmbedFC(1, 2 * n_feat), EmbedFC(n_classes, 2 * n_feat)
        self.up1 = nn.Sequential(
            nn.ConvTranspose2d(2 * n_feat, n_feat, 2, 2), ResidualConvBlock(n_feat, n_feat)
        )
        self.up2 = nn.Sequential(
            nn.ConvTranspose2d(2 * n_feat, n_feat, 2, 2), ResidualConvBlock(n_feat, n_feat)
        )
        self.out = nn.Sequential(
            nn.Conv2d(2 * n_feat, n_feat, 3, 1, 1),
            nn.GroupNorm(8, n_feat),
            nn.ReLU(),
            nn.Conv2d(n_feat, in_channels, 3, 1, 1),
        )

    def forward(self, x, c, t, context_mask):
        x = self.init_conv(x)
        down1 = self.down1(x)
        down2 = self.down2(down1)
        c = nn.functional.one_hot(c, num_classes=self.n_classes).float() * (
            1 - context_mask[:, None]
        )
        up1 = self.up1(self.contextembed(c) * down2 + self.timeembed(t))
        up2 = self.up2(torch.cat((up1, down1), 1))
        return self.out(torch.cat((up2, x), 1))


def ddpm_schedules(beta1, beta2, T):
    beta_t = (beta2 - beta1) * torch.arange(0, T + 1, dtype=torch.float32) / T + beta1
    alphabar_t = torch.cumsum(torch.log(1 - beta_t), dim=0).exp()
    sqrtmab = torch.sqrt(1 - alphabar_t)
    return {
        "oneover_sqrta": 1 / torch.sqrt(1 - beta_t),
        "sqrt_beta_t": torch.sqrt(beta_t),
        "sqrtab": torch.sqrt(alphabar_t),
        "sqrtmab": sqrtmab,
        "mab_over_sqrtmab": beta_t / sqrtmab,
    }


class DDPM(nn.Module):
    def __init__(self, nn_model, betas, n_T, device, drop_prob=0.1):
        super().__init__()
        self.nn_model = nn_model
        for k, v in ddpm_schedules(betas[0], betas[1], n_T).items():
            self.register_buffer(k, v)
        self.n_T, self.device, self.drop_prob = n_T, device, drop_prob
        self.loss_mse = nn.MSELoss()

    def forward(self, x, c):
        _ts = torch.randint(1, self.n_T + 1, (x.shape[0],)).to(self.device)
        noise = torch.randn_like(x)
        x_t = self.sqrtab[_ts, None, None, None] * x + self.sqrtmab[_ts, None, None, None] * noise
        context_mask = torch.bernoulli(torch.full(c.shape, self.drop_prob)).to(self.device)
        return self.loss_mse(noise, self.nn_model(x_t, c, _ts / self.n_T, context_mask))

    def sample(self, n_sample, size, device, guide_w=0.0):
        x_i = torch.randn(n_sample, *size).to(device)
        c_i = torch.arange(0, 10).to(device).repeat(n_sample // 10).repeat(2)
        context_mask = torch.zeros(2 * n_sample).to(device)
        context_mask[n_sample:] = 1.0
        x_i_store = []
        for i in range(self.n_T, 0, -1):
            t_is = torch.full((2 * n_sample, 1), i / self.n_T).to(device)
            z = torch.randn(n_sample, *size).to(device) if i > 1 else 0
            eps = self.nn_model(x_i.repeat(2, 1, 1, 1), c_i, t_is, context_mask)
            eps = (1 + guide_w) * eps[:n_sample] - guide_w * eps[n_sample:]
            x_i = (
                self.oneover_sqrta[i] * (x_i - eps * self.mab_over_sqrtmab[i])
                + self.sqrt_beta_t[i] * z
            )
            if CURED:
                x_i = x_i.detach()
            if i % 20 == 0 or i == self.n_T or i < 8:
                x_i_store.append(x_i.detach().cpu().numpy())
        return x_i, x_i_store


def main():
    ddpm = DDPM(ContextUnet(in_channels=1), betas=(1e-4, 0.02), n_T=40, device=DEVICE).to(DEVICE)
    optim = torch.optim.Adam(ddpm.parameters(), lr=1e-4)
    for step in range(5):
        optim.zero_grad()
        loss = ddpm(torch.rand(64, 1, 28, 28).to(DEVICE), torch.randint(0, 10, (64,)).to(DEVICE))
        loss.backward()
        optim.step()
        print(f"loss {loss.item():.4f}")
    ddpm.eval()
    for w in (0.0, 2.0):
        x_gen, x_gen_store = ddpm.sample(20, (1, 28, 28), DEVICE, guide_w=w)
        print(f"w {w}: {tuple(x_gen.shape)}, {len(x_gen_store)} steps kept for the animation")


if __name__ == "__main__":
    main()
