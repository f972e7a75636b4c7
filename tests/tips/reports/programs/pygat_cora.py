"""After diegoantognini/pyGAT#63: train a graph attention network on Cora (2708 papers)."""

import torch
from torch import nn
import torch.nn.functional as F

CURED = False


class GraphAttentionLayer(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.out_features = out_features
        self.W = nn.Parameter(torch.randn(in_features, out_features) * 0.1)
        self.a = nn.Parameter(torch.randn(2 * out_features, 1) * 0.1)

    def forward(self, h, adj):
        Wh = h @ self.W
        e = F.leaky_relu(self._prepare_attentional_mechanism_input(Wh), 0.2)
        attention = torch.where(adj, e, torch.full_like(e, -9e15)).softmax(dim=1)
        return F.elu(attention @ Wh)

    def _prepare_attentional_mechanism_input(self, Wh):
        if CURED:
            return Wh @ self.a[: self.out_features] + (Wh @ self.a[self.out_features :]).T
        N = Wh.size(0)
        left = Wh.repeat_interleave(N, dim=0)
        right = Wh.repeat(N, 1)
        combinations = torch.cat([left, right], dim=1).view(N, N, 2 * self.out_features)
        return (combinations @ self.a).squeeze(2)


class GAT(nn.Module):
    def __init__(self, nfeat, nhid, nclass, nheads):
        super().__init__()
        self.attentions = nn.ModuleList(GraphAttentionLayer(nfeat, nhid) for _ in range(nheads))
        self.out_att = GraphAttentionLayer(nhid * nheads, nclass)

    def forward(self, x, adj):
        x = torch.cat([att(x, adj) for att in self.attentions], dim=1)
        return F.log_softmax(self.out_att(x, adj), dim=1)


N = 2708
features, adj = torch.rand(N, 1433).cuda(), (torch.rand(N, N) < 0.01).cuda()
labels = torch.randint(0, 7, (N,)).cuda()
model = GAT(1433, 8, 7, 8).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for epoch in range(3):
    optimizer.zero_grad()
    loss = F.nll_loss(model(features, adj)[:140], labels[:140])
    loss.backward()
    optimizer.step()
