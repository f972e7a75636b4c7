"""After OpenRLHF/OpenRLHF#718: experience making, log-probabilities of the actor and of the initial model."""

import torch
from torch import nn

CURED = False
VOCAB, SEQ, BATCH = 32768, 1024, 16


class Actor(nn.Module):
    def __init__(self, d=512):
        super().__init__()
        self.embed, self.mlp = nn.Embedding(VOCAB, d), nn.Linear(d, d)
        self.lm_head = nn.Linear(d, VOCAB, bias=False)

    def forward(self, sequences):
        output = self.lm_head(torch.tanh(self.mlp(self.embed(sequences))))
        return log_probs_from_logits(output[:, :-1], sequences[:, 1:])


def log_probs_from_logits(logits, labels):
    if CURED:
        chosen = torch.gather(logits, -1, labels.unsqueeze(-1)).squeeze(-1)
        return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    log_probs = torch.log_softmax(logits, dim=-1)
    return torch.gather(log_probs, -1, labels.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def make_experience(actor, initial_model, sequences):
    action_log_probs = actor(sequences)
    base_action_log_probs = initial_model(sequences)
    kl = action_log_probs - base_action_log_probs
    return action_log_probs.cpu(), kl.sum(-1).cpu()


actor, initial_model = Actor().cuda(), Actor().cuda()
experiences = []
for step in range(3):
    prompts = torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda")
    experiences.append(make_experience(actor, initial_model, prompts))
