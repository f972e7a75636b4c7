"""After noahgolmant/pytorch-hessian-eigenthings#46: one Gauss-Newton product takes 78 GB."""

import torch
from torch import nn
from torch.func import functional_call, jvp, vjp
from torch.nn import functional as F

CURED = False
VOCAB, DIM, HEADS, LAYERS, BATCH_SIZE, LENGTH, EPSILON = 50304, 512, 8, 4, 2, 512, 1e-3


class GPTNeoXLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_layernorm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.query_key_value, self.dense = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.dense_h_to_4h, self.dense_4h_to_h = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, x):
        qkv = self.query_key_value(self.input_layernorm(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        scores = q @ k.transpose(-1, -2) / (DIM // HEADS) ** 0.5 + self.causal
        attended = torch.softmax(scores, -1) @ v
        x = x + self.dense(attended.transpose(1, 2).flatten(2))
        return x + self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(self.post_layernorm(x))))


class PythiaForCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_in = nn.Embedding(VOCAB, DIM)
        self.layers = nn.Sequential(*(GPTNeoXLayer() for _ in range(LAYERS)))
        self.final_layer_norm = nn.LayerNorm(DIM)
        self.embed_out = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, input_ids):
        return self.embed_out(self.final_layer_norm(self.layers(self.embed_in(input_ids))))


def lm_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class CurvatureOperator:
    """A matrix that is known by its products with vectors"""

    def __init__(self, model, dataloader):
        self.model, self.dataloader = model, dataloader
        self.params = {name: p.detach() for name, p in model.named_parameters()}

    def matvec(self, vector):
        total, batches = None, 0
        for input_ids, targets in self.dataloader():
            product = self._matvec_one_batch(vector, input_ids.cuda(), targets.cuda())
            total = (
                product
                if total is None
                else {name: total[name].add_(part) for name, part in product.items()}
            )
            batches += 1
        return {name: part.div_(batches) for name, part in total.items()}

    def _matvec_one_batch(self, vector, input_ids, targets):
        raise NotImplementedError


class GGNOperator(CurvatureOperator):
    """J^T H J, where H is the Hessian of the loss for the logits"""

    def __init__(self, model, dataloader, loss_hvp="double_backward"):
        super().__init__(model, dataloader)
        self.loss_hvp = loss_hvp

    def _matvec_one_batch(self, vector, input_ids, targets):
        def forward(params):
            return functional_call(self.model, params, (input_ids,))

        if self.loss_hvp == "analytical":
            return self._analytical(forward, vector)
        output, jv = jvp(forward, (self.params,), (vector,))
        hjv = self._hvp_of_loss(output, jv, targets)
        _, pullback = vjp(forward, self.params)
        return pullback(hjv)[0]

    def _hvp_of_loss(self, output, jv, targets):
        output_leaf = output.detach().requires_grad_()
        loss = lm_loss(output_leaf, targets)
        (grad,) = torch.autograd.grad(loss, output_leaf, create_graph=True)
        (hjv,) = torch.autograd.grad(grad, output_leaf, grad_outputs=jv)
        return hjv

    def _analytical(self, forward, vector):
        """Use the Hessian of the cross entropy, and finite differences for J v"""
        hjv = self._directional_difference(forward, vector)
        with torch.no_grad():
            probabilities = forward(self.params).softmax(-1)
            probabilities /= probabilities.shape[0] * probabilities.shape[1]
            mean = torch.einsum("btv,btv->bt", probabilities, hjv)
            mean *= probabilities.shape[0] * probabilities.shape[1]
            hjv.sub_(mean.unsqueeze(-1)).mul_(probabilities)
            del probabilities
        leaves = {name: p.requires_grad_() for name, p in self.params.items()}
        gradients = torch.autograd.grad(forward(leaves), list(leaves.values()), hjv)
        return dict(zip(leaves, gradients))

    @torch.no_grad()
    def _directional_difference(self, forward, vector):
        ahead = forward({name: p + EPSILON * vector[name] for name, p in self.params.items()})
        behind = forward({name: p - EPSILON * vector[name] for name, p in self.params.items()})
        return ahead.sub_(behind).div_(2 * EPSILON)


def power_iteration(operator, steps=2):
    vector = {name: torch.randn_like(p) for name, p in operator.params.items()}
    for step in range(steps):
        norm = torch.stack([part.norm() for part in vector.values()]).norm()
        vector = operator.matvec({name: part / norm for name, part in vector.items()})
        print("step", step, len(vector))
    return norm


def dataloader(batches=2):
    for _ in range(batches):
        tokens = torch.zeros(BATCH_SIZE, LENGTH + 1, dtype=torch.int64)
        yield tokens[:, :-1], tokens[:, 1:]


model = PythiaForCausalLM().cuda().eval()
operator = GGNOperator(model, dataloader, "analytical" if CURED else "double_backward")
print(power_iteration(operator).shape)
