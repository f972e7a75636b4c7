"""After dmlc/dgl#1060: message passing on the PyTorch backend leaks memory."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
NODES, EDGES, FEATURES, HIDDEN, CLASSES, EPOCHS = 40_000, 160_000, 128, 128, 40, 6


class DGLGraph:
    def __init__(self, src, dst):
        self.src, self.dst, self.ndata = src, dst, {}

    def number_of_nodes(self):
        return NODES

    def update_all(self, message, reducer):
        """Send the source's feature along each edge and reduce the messages of a node"""
        in_data = self.ndata[message]
        self.ndata[reducer] = copy_reduce("mean", self, in_data, self.number_of_nodes())


class CopyReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, reducer, graph, in_data, out_data):
        out_data.index_add_(0, graph.dst, in_data.index_select(0, graph.src))
        degs = None
        if reducer == "mean":
            degs = torch.bincount(graph.dst, minlength=len(out_data)).clamp(min=1)
            degs = degs.to(in_data.dtype)[:, None]
            out_data = out_data / degs
        if CURED:
            ctx.backward_cache = reducer, graph, degs
            ctx.save_for_backward(in_data, out_data)
        else:
            ctx.backward_cache = reducer, graph, degs, in_data, out_data
        return out_data

    @staticmethod
    def backward(ctx, grad_out):
        if CURED:
            reducer, graph, degs = ctx.backward_cache
            in_data, out_data = ctx.saved_tensors
        else:
            reducer, graph, degs, in_data, out_data = ctx.backward_cache
        grad_in = None
        if reducer == "mean":
            grad_out = grad_out / degs
        if ctx.needs_input_grad[2]:
            grad_in = torch.zeros_like(in_data)
            grad_in.index_add_(0, graph.src, grad_out.index_select(0, graph.dst))
        return None, None, grad_in, None


def copy_reduce(reducer, graph, in_data, out_size):
    out_data = in_data.new_zeros((out_size, *in_data.shape[1:]))
    return CopyReduce.apply(reducer, graph, in_data, out_data)


class SAGEConv(nn.Module):
    def __init__(self, in_feats, out_feats):
        super().__init__()
        self.fc_self = nn.Linear(in_feats, out_feats)
        self.fc_neigh = nn.Linear(in_feats, out_feats, bias=False)

    def forward(self, graph, feat):
        graph.ndata["h"] = feat
        graph.update_all("h", "neigh")
        return self.fc_self(feat) + self.fc_neigh(graph.ndata.pop("neigh"))


class GraphSAGE(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [FEATURES, HIDDEN, HIDDEN, CLASSES]
        self.layers = nn.ModuleList(SAGEConv(*pair) for pair in zip(sizes, sizes[1:]))

    def forward(self, graph, features):
        h = features
        for i, layer in enumerate(self.layers):
            h = layer(graph, h)
            if i < len(self.layers) - 1:
                h = F.relu(h)
        return h


src, dst = torch.randint(0, NODES, (2, EDGES)).to(DEVICE)
g = DGLGraph(src, dst)
features = torch.randn(NODES, FEATURES).to(DEVICE)
labels = torch.randint(0, CLASSES, (NODES,)).to(DEVICE)
model = GraphSAGE().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
for epoch in range(EPOCHS):
    model.train()
    logits = model(g, features)
    loss = F.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"Epoch {epoch:05d} | Loss {loss.item():.4f}")
