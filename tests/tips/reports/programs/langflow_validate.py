"""After langflow-ai/langflow#338: a flow server with a custom chat model node."""

import torch
from torch import nn

CURED = False


class ChatModel(nn.Module):
    def __init__(self, layers=34, dim=4096):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, 4 * dim, bias=False) for _ in range(layers))
        self.back = nn.ModuleList(nn.Linear(4 * dim, dim, bias=False) for _ in range(layers))

    @torch.inference_mode()
    def generate(self, x):
        for up, down in zip(self.layers, self.back):
            x = x + down(torch.relu(up(x)))
        return x


class ChatNode:
    def __init__(self):
        self.values = {"client": None}

    def validate_environment(self):
        if CURED and self.values["client"] is not None:
            return self.values
        with torch.device("meta"):
            model = ChatModel().half()
        self.values["client"] = model.to_empty(device="cuda")
        return self.values


class Server:
    def __init__(self):
        self.nodes = {}

    def post_validate(self, node_id):
        node = self.nodes.setdefault(node_id, ChatNode())
        client = node.validate_environment()["client"]
        return client.generate(torch.randn(1, 16, 4096, device="cuda", dtype=torch.half)).shape


server = Server()
for request in range(5):
    print(server.post_validate("dndnode_42"))
