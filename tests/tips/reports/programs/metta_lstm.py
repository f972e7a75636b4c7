"""After Metta-AI/metta#1139: memory rises during the rollouts of a recurrent agent."""

import torch
import torch.nn as nn

CURED = False


class MettaAgent(nn.Module):
    def __init__(self, hidden=512, actions=16):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(24, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 81, hidden), nn.ReLU()
        )
        self.lstm = nn.LSTMCell(hidden, hidden)
        self.actor = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, obs, state):
        h, c = self.lstm(self.encoder(obs), state)
        return self.actor(h), self.value(h), (h, c)


class Experience:
    def __init__(self, num_envs, horizon, hidden):
        self.values = torch.zeros(horizon, num_envs, device="cuda")
        self.lstm_h = torch.zeros(num_envs, hidden, device="cuda")
        self.lstm_c = torch.zeros(num_envs, hidden, device="cuda")

    def store(self, step, value, state):
        self.values[step] = value.detach().squeeze(-1)
        self.lstm_h, self.lstm_c = state


def rollout(agent, experience, horizon):
    for step in range(horizon):
        obs = torch.rand(1024, 24, 11, 11, device="cuda")
        logits, value, state = agent(obs, (experience.lstm_h, experience.lstm_c))
        if CURED:
            state = tuple(s.detach() for s in state)
        experience.store(step, value, state)


agent = MettaAgent().cuda()
experience = Experience(1024, 64, 512)
for epoch in range(2):
    rollout(agent, experience, 64)
print("mean value", experience.values.shape)
