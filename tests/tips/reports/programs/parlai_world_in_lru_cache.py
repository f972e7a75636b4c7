"""After facebookresearch/ParlAI#2487: training fits, and the final validation runs out of memory."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
OPT = {"embedding_size": 1600, "n_layers": 24, "n_heads": 25, "vocab": 50304}
OPT |= {"batchsize": 2, "text_truncate": 128, "learningrate": 1e-5, "num_train_batches": 3}


class TransformerLayer(nn.Module):
    def __init__(self, opt):
        super().__init__()
        dim, self.n_heads = opt["embedding_size"], opt["n_heads"]
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.ffn(self.norm2(x))


class TransformerGeneratorModel(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.embeddings = nn.Embedding(opt["vocab"], opt["embedding_size"])
        self.layers = nn.Sequential(*(TransformerLayer(opt) for _ in range(opt["n_layers"])))
        self.norm = nn.LayerNorm(opt["embedding_size"])

    def forward(self, xs):
        return F.linear(self.norm(self.layers(self.embeddings(xs))), self.embeddings.weight)


class TransformerGeneratorAgent:
    """A model, and while it learns also an optimizer"""

    def __init__(self, opt, init_model=None):
        self.opt, self.optimizer = opt, None
        with torch.device("meta"):
            model = TransformerGeneratorModel(opt)
        self.model = model.to_empty(device="cuda")
        if init_model is not None:
            self.model.load_state_dict(init_model)

    def compute_loss(self, text_vec):
        text_vec = text_vec.cuda()
        scores = self.model(text_vec[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), text_vec[:, 1:].flatten())

    def train_step(self, batch):
        if self.optimizer is None:
            self.optimizer = torch.optim.Adam(
                self.model.parameters(), lr=self.opt["learningrate"], foreach=False
            )
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.compute_loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def eval_step(self, batch):
        self.model.eval()
        return self.compute_loss(batch).item()

    def save(self):
        return {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}


class DialogTeacher:
    def __init__(self, opt, batches):
        self.opt, self.batches = opt, batches

    def num_examples(self):
        return self.batches * self.opt["batchsize"]

    def act(self):
        return torch.zeros(self.opt["batchsize"], self.opt["text_truncate"], dtype=torch.int64)


class BatchWorld:
    def __init__(self, opt, teacher, agent):
        self.opt, self.teacher, self.agent = opt, teacher, agent

    def parley(self, training):
        batch = self.teacher.act()
        return self.agent.train_step(batch) if training else self.agent.eval_step(batch)

    def num_examples(self):
        return self.teacher.num_examples()


class HogwildWorld:
    """Wraps the world that the workers run"""

    def __init__(self, opt, world):
        self.opt, self.inner_world, self.parleys = opt, world, 0

    def parley(self, training=True):
        self.parleys += 1
        return self.inner_world.parley(training)

    if CURED:

        def num_examples(self):
            if not hasattr(self, "_num_examples"):
                self._num_examples = self.inner_world.num_examples()
            return self._num_examples

    else:

        @lru_cache(maxsize=1)
        def num_examples(self):
            return self.inner_world.num_examples()

    def epoch_done(self):
        return self.parleys * self.opt["batchsize"] >= self.num_examples()


def create_task(opt, agent, batches):
    return HogwildWorld(opt, BatchWorld(opt, DialogTeacher(opt, batches), agent))


class TrainLoop:
    def __init__(self, opt):
        self.opt = opt
        self.agent = TransformerGeneratorAgent(opt)
        self.world = create_task(opt, self.agent, opt["num_train_batches"])

    def train(self):
        while not self.world.epoch_done():
            self.world.parley()
        best_valid_model = self.agent.save()
        # free the memory of the training, and measure the best model
        del self.world, self.agent
        self.agent = TransformerGeneratorAgent(self.opt, best_valid_model)
        return self.run_eval("valid"), self.run_eval("test")

    def run_eval(self, datatype):
        valid_world = create_task(self.opt, self.agent, 2)
        losses = []
        while not valid_world.epoch_done():
            losses.append(valid_world.parley(training=False))
        print(datatype, "batches:", len(losses))
        return losses


TrainLoop(OPT).train()
