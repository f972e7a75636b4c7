"""After speechbrain/speechbrain#1739: Brain.fit of a speech separation network, short crops to train, whole mixtures to validate."""

import torch
from torch import nn

CURED = False


class Separator(nn.Module):
    def __init__(self, dim=1024, nlayers=24):
        super().__init__()
        self.encoder = nn.Conv1d(1, dim, 16, stride=8)
        self.masknet = nn.Sequential(
            *[
                nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
                for _ in range(nlayers)
            ]
        )
        self.decoder = nn.ConvTranspose1d(dim, 1, 16, stride=8)

    def forward(self, mix):
        feats = self.encoder(mix)
        mask = self.masknet(feats.transpose(1, 2)).transpose(1, 2)
        return self.decoder(feats * mask)


class Brain:
    def __init__(self):
        self.modules = Separator().cuda()
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=1e-4)

    def fit_batch(self, mix, target):
        loss = (self.modules(mix) - target).abs().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.modules.train()
            for _ in range(3):
                wav = torch.randn(1, 1, 8000, device="cuda")
                self.fit_batch(wav, wav)
            if CURED:
                self.optimizer.zero_grad(set_to_none=True)
            # CURE
            self.modules.eval()
            with torch.no_grad():
                wav = torch.randn(3, 1, 320000, device="cuda")
                print("valid", (self.modules(wav) - wav).abs().mean().item())


Brain().fit(2)
