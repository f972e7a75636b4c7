"""After dmlc/dgl#3365: message passing on a heterogeneous graph takes 1 GB more with each epoch."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
NODES, FEATURES, HIDDEN, CLASSES, EPOCHS = 100_000, 256, 128, 11, 6
RELATIONS = {"objectCategory": 300_000, "contentPersonName": 200_000, "associationSubject": 250_000}


class GraphIndex:
    """The structure: which node each edge comes from and goes to"""

    def __init__(self, edges):
        self.src = torch.randint(0, NODES, (edges,)).cuda()
        self.dst = torch.randint(0, NODES, (edges,)).cuda()


class Frame(dict):
    """The tensors of all nodes or of all edges, by name"""


class DGLHeteroGraph:
    def __init__(self, structure, node_frame=None):
        self._structure = structure
        self.ndata = Frame() if node_frame is None else node_frame
        self.edata = Frame()

    @property
    def canonical_etypes(self):
        return list(self._structure)

    @property
    def _graph(self):
        (index,) = self._structure.values()
        return index

    def __getitem__(self, etype):
        """Return the graph of one relation, with frames of its own"""
        return DGLHeteroGraph({etype: self._structure[etype]}, Frame(self.ndata))

    def update_all(self, message_func, reduce_field, etype):
        g = self[etype]
        g.ndata.update(invoke_gspmm(g, message_func, reduce_field))
        return g.ndata[reduce_field]

    def multi_update_all(self, etype_dict, reduce_field):
        """Sum what the relations bring to a node"""
        total = 0
        for etype, message_func in etype_dict.items():
            total = total + self.update_all(message_func, reduce_field, etype)
        self.ndata[reduce_field] = total


def _gspmm(gidx, X, reverse=False):
    src, dst = (gidx.dst, gidx.src) if reverse else (gidx.src, gidx.dst)
    out = torch.zeros_like(X)
    for edges in torch.arange(len(src), device=X.device).split(50_000):
        out.index_add_(0, dst[edges], X[src[edges]])
    return out


class GSpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx, g, op, X):
        ctx.backward_cache = (g._graph if CURED else g), op
        return _gspmm(g._graph, X)

    @staticmethod
    def backward(ctx, dZ):
        g, op = ctx.backward_cache
        gidx = g if CURED else g._graph
        return None, None, _gspmm(gidx, dZ, reverse=True)


def copy_u(field):
    return "copy_lhs", field


def invoke_gspmm(graph, message_func, out_field):
    op, field = message_func
    return {out_field: GSpMM.apply(graph, op, graph.ndata[field])}


class RelGraphConvHetero(nn.Module):
    def __init__(self, n_in, n_out, rel_names, activation=None):
        super().__init__()
        self.weight = nn.ModuleDict({rel: nn.Linear(n_in, n_out, bias=False) for rel in rel_names})
        self.loop_weight, self.activation = nn.Linear(n_in, n_out), activation

    def forward(self, g, x):
        etype_dict = {}
        for rel in g.canonical_etypes:
            g.ndata["h*w_" + rel] = self.weight[rel](x)
            etype_dict[rel] = copy_u("h*w_" + rel)
        g.multi_update_all(etype_dict, "h")
        h = g.ndata.pop("h") + self.loop_weight(x)
        for rel in g.canonical_etypes:
            del g.ndata["h*w_" + rel]
        return self.activation(h) if self.activation else h


class EntityClassify(nn.Module):
    def __init__(self, rel_names):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                RelGraphConvHetero(FEATURES, HIDDEN, rel_names, F.relu),
                RelGraphConvHetero(HIDDEN, CLASSES, rel_names),
            ]
        )

    def forward(self, g, h):
        for layer in self.layers:
            h = layer(g, h)
        return h


def main():
    g = DGLHeteroGraph({rel: GraphIndex(edges) for rel, edges in RELATIONS.items()})
    features = torch.rand(NODES, FEATURES).cuda()
    labels = torch.randint(0, CLASSES, (NODES,)).cuda()
    train_idx = torch.randperm(NODES)[: NODES // 5].cuda()
    model = EntityClassify(list(RELATIONS)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    for epoch in range(EPOCHS):
        optimizer.zero_grad()
        logits = model(g, features)
        loss = F.cross_entropy(logits[train_idx], labels[train_idx])
        loss.backward()
        optimizer.step()
        print(f"Epoch {epoch:05d}", tuple(logits.shape))


if __name__ == "__main__":
    main()
