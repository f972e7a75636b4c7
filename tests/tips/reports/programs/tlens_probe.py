"""After TransformerLensOrg/TransformerLens#807: collect the residual stream of one layer for a linear probe."""

import torch
from torch import nn

CURED = False
LAYER = 6


class Block(nn.Module):
    def __init__(self, d=768, heads=12):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.hook_pattern, self.hook_post, self.hook_resid_post = (
            nn.Identity(),
            nn.Identity(),
            nn.Identity(),
        )
        self.heads = heads

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        pattern = self.hook_pattern((q @ k.transpose(-1, -2)).softmax(-1))
        x = x + self.o((pattern @ v).transpose(1, 2).reshape(b, s, d))
        x = x + self.down(self.hook_post(torch.relu(self.up(self.ln2(x)))))
        return self.hook_resid_post(x)


class HookedTransformer(nn.Module):
    def __init__(self, n_layers=12):
        super().__init__()
        self.embed = nn.Embedding(50257, 768)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layers)])

    def run_with_cache(self, tokens, names_filter=lambda name: True):
        cache, handles = {}, []
        for name, module in self.named_modules():
            if "hook_" in name and names_filter(name):
                handles.append(
                    module.register_forward_hook(
                        lambda m, i, out, name=name: cache.update({name: out.detach()})
                    )
                )
        out = self.blocks(self.embed(tokens))
        for handle in handles:
            handle.remove()
        return out, cache


model = HookedTransformer().cuda().eval()
wanted = f"blocks.{LAYER}.hook_resid_post"
acts = []
with torch.no_grad():
    for _ in range(4):
        tokens = torch.randint(0, 50257, (16, 512)).cuda()
        _, cache = model.run_with_cache(
            tokens, **({"names_filter": lambda name: name == wanted} if CURED else {})
        )
        acts.append(cache[wanted][:, -1].cpu())
        # CURE
print(torch.cat(acts).shape)
