"""After schwartzlab-methods/CellNEST#34: out of memory on a graph with sparse node features."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
CELLS, NEIGHBORS, HIDDEN, EPOCHS, SUBGRAPHS = 6000, 4, 64, 3, 2


class Data:
    def __init__(self, x, edge_index, edge_attr):
        self.x, self.edge_index, self.edge_attr = x, edge_index, edge_attr

    def to(self, device):
        return Data(*(value.to(device) for value in (self.x, self.edge_index, self.edge_attr)))


def get_split_graph():
    """Subgraphs whose node features are one-hot vectors of all cells, as sparse tensors"""
    graph_bag, cells = [], CELLS // SUBGRAPHS * 2
    for _ in range(SUBGRAPHS):
        indices = torch.stack([torch.arange(cells), torch.randperm(CELLS)[:cells]])
        x = torch.sparse_coo_tensor(indices, torch.ones(cells), (cells, CELLS)).coalesce()
        edge_index = torch.randint(0, cells, (2, cells * NEIGHBORS))
        edge_attr = torch.rand(cells * NEIGHBORS, 3)
        graph_bag.append([Data(x, edge_index, edge_attr)])
    return graph_bag, CELLS


class GATv2Conv(nn.Module):
    def __init__(self, in_channels, out_channels, edge_dim):
        super().__init__()
        self.lin_l = nn.Parameter(torch.empty(in_channels, out_channels).normal_(0, 0.05))
        self.lin_r = nn.Parameter(torch.empty(in_channels, out_channels).normal_(0, 0.05))
        self.lin_edge = nn.Linear(edge_dim, out_channels, bias=False)
        self.att = nn.Parameter(torch.randn(out_channels) * 0.1)

    def forward(self, x, edge_index, edge_attr):
        mm = torch.sparse.mm if x.is_sparse else torch.mm
        x_l, x_r = mm(x, self.lin_l), mm(x, self.lin_r)
        src, dst = edge_index
        message = F.leaky_relu(x_l[src] + x_r[dst] + self.lin_edge(edge_attr), 0.2)
        alpha = torch.exp((message * self.att).sum(-1, keepdim=True).clamp(max=10))
        total = torch.zeros(len(x_l), 1, device=alpha.device).index_add(0, dst, alpha)
        return torch.zeros_like(x_l).index_add(0, dst, alpha / total[dst] * x_l[src])


class Encoder(nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.conv = GATv2Conv(in_channels, hidden_channels, edge_dim=3)
        self.conv_2 = GATv2Conv(hidden_channels, hidden_channels, edge_dim=3)
        self.prelu = nn.PReLU(hidden_channels)

    def forward(self, data):
        x = self.conv(data.x, data.edge_index, data.edge_attr)
        return self.prelu(self.conv_2(x, data.edge_index, data.edge_attr))


def corruption(data):
    if CURED:
        order = torch.randperm(data.x.size(0), device=data.x.device)
        indices = data.x.indices().clone()
        indices[0] = torch.argsort(order)[indices[0]]
        x = torch.sparse_coo_tensor(indices, data.x.values(), data.x.size()).coalesce()
        return Data(x, data.edge_index, data.edge_attr)
    data.x = data.x.to_dense()
    x = data.x[torch.randperm(data.x.size(0), device=data.x.device)]
    x = x.to_sparse()
    return Data(x, data.edge_index, data.edge_attr)


class DeepGraphInfomax(nn.Module):
    def __init__(self, hidden_channels, encoder, corruption):
        super().__init__()
        self.encoder, self.corruption = encoder, corruption
        self.weight = nn.Parameter(torch.randn(hidden_channels, hidden_channels) * 0.05)

    def forward(self, data):
        pos_z = self.encoder(data=data)
        neg_z = self.encoder(data=self.corruption(data))
        return pos_z, neg_z, torch.sigmoid(pos_z.mean(dim=0))

    def loss(self, pos_z, neg_z, summary):
        pos, neg = (z @ (self.weight @ summary) for z in (pos_z, neg_z))
        return -(F.logsigmoid(pos).mean() + F.logsigmoid(-neg).mean())


graph_bag, in_channels = get_split_graph()
DGI_model = DeepGraphInfomax(HIDDEN, Encoder(in_channels, HIDDEN), corruption).to(DEVICE)
DGI_optimizer = torch.optim.Adam(DGI_model.parameters(), lr=1e-4)
for epoch in range(EPOCHS):
    DGI_optimizer.zero_grad()
    DGI_all_loss = []
    for subgraph in graph_bag:
        for data in subgraph:
            data = data.to(DEVICE)
            pos_z, neg_z, summary = DGI_model(data=data)
            DGI_loss = DGI_model.loss(pos_z, neg_z, summary)
            DGI_loss.backward()
            DGI_all_loss.append(DGI_loss.item())
    DGI_optimizer.step()
    print(f"Epoch: {epoch + 1:03d}, Loss: {sum(DGI_all_loss) / len(DGI_all_loss):.4f}")
