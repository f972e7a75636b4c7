"""After dmlc/dgl#852: the GGNN module takes gigabytes on any graph with more than ten thousand edges."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class Graph:
    """A directed graph with typed edges."""

    def __init__(self, num_nodes, num_edges, n_etypes):
        gen = torch.Generator().manual_seed(7)
        src = torch.randint(0, num_nodes, (num_edges,), generator=gen)
        dst = torch.randint(0, num_nodes, (num_edges,), generator=gen)
        etypes = torch.randint(0, n_etypes, (num_edges,), generator=gen)
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self.edges_of_type = [
            (etypes == i).nonzero().squeeze(1).to(DEVICE) for i in range(n_etypes)
        ]
        self.src, self.dst, self.etypes = src.to(DEVICE), dst.to(DEVICE), etypes.to(DEVICE)
        self.ndata, self.edata = {}, {}


class GatedGraphConv(nn.Module):
    def __init__(self, in_feats, out_feats, n_steps, n_etypes):
        super().__init__()
        self._in_feats, self._out_feats = in_feats, out_feats
        self._n_steps, self._n_etypes = n_steps, n_etypes
        if CURED:
            self.linears = nn.ModuleList([nn.Linear(out_feats, out_feats) for _ in range(n_etypes)])
        else:
            self.edge_embed = nn.Embedding(n_etypes, out_feats * out_feats)
            nn.init.xavier_normal_(self.edge_embed.weight)
        self.gru = nn.GRUCell(out_feats, out_feats)

    def message(self, graph, h):
        if CURED:
            m = h.new_zeros(graph.num_edges, self._out_feats)
            for eids, linear in zip(graph.edges_of_type, self.linears):
                m = m.index_copy(0, eids, linear(h[graph.src[eids]]))
            return m
        return torch.bmm(h[graph.src].unsqueeze(1), graph.edata["w"]).squeeze(1)

    def forward(self, graph, feat):
        zero_pad = feat.new_zeros(feat.shape[0], self._out_feats - feat.shape[1])
        h = torch.cat([feat, zero_pad], -1)
        if not CURED:
            w = self.edge_embed(graph.etypes)
            graph.edata["w"] = w.view(-1, self._out_feats, self._out_feats)
        for _ in range(self._n_steps):
            m = self.message(graph, h)
            a = torch.zeros_like(h).index_add(0, graph.dst, m)
            h = self.gru(a, h)
        graph.edata.clear()
        return h


class NodeClassifier(nn.Module):
    def __init__(self, annotation_size, out_feats, n_steps, n_etypes, num_cls):
        super().__init__()
        self.ggnn = GatedGraphConv(annotation_size, out_feats, n_steps, n_etypes)
        self.output_layer = nn.Linear(annotation_size + out_feats, num_cls)

    def forward(self, graph, annotation):
        h = self.ggnn(graph, annotation)
        return self.output_layer(torch.cat([h, annotation], -1))


def train(model, graph, annotation, labels, epochs=4):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        model.train()
        pred = model(graph, annotation)
        loss = F.cross_entropy(pred, labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"Epoch {epoch}, loss {loss.item():.4f}")


def main():
    graph = Graph(num_nodes=6000, num_edges=24000, n_etypes=6)
    annotation = torch.rand(graph.num_nodes, 24, device=DEVICE)
    labels = torch.randint(0, 10, (graph.num_nodes,), device=DEVICE)
    model = NodeClassifier(annotation_size=24, out_feats=64, n_steps=5, n_etypes=6, num_cls=10).to(
        DEVICE
    )
    print(
        f"{graph.num_nodes} nodes, {graph.num_edges} edges, "
        f"{sum(p.numel() for p in model.parameters())} parameters"
    )
    train(model, graph, annotation, labels)


if __name__ == "__main__":
    main()
