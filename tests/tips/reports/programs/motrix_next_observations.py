"""After Motphys/MotrixLab#68: the replay buffer of FastSAC takes twice the memory its observations need."""

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
N_ENV, BUFFER_SIZE, N_OBS, N_CRITIC_OBS, N_ACT = 1024, 256, 1200, 800, 32


class SimpleReplayBuffer(nn.Module):
    def __init__(self, n_env, buffer_size, n_obs, n_act, n_critic_obs, device=None):
        super().__init__()
        self.n_env, self.buffer_size, self.device = n_env, buffer_size, device
        slots = self.slots = buffer_size + 1 if CURED else buffer_size

        def z(d):
            return torch.zeros((n_env, slots, d), device=device, dtype=torch.float)

        self.observations = z(n_obs)
        self.critic_observations = z(n_critic_obs)
        self.actions = z(n_act)
        self.rewards = torch.zeros((n_env, slots), device=device, dtype=torch.float)
        self.dones = torch.zeros((n_env, slots), device=device, dtype=torch.long)
        self.truncations = torch.zeros((n_env, slots), device=device, dtype=torch.long)
        if not CURED:
            self.next_observations = z(n_obs)
            self.next_critic_observations = z(n_critic_obs)
        self.ptr = 0

    @property
    def num_stored(self):
        return min(self.ptr, self.buffer_size)

    def extend(
        self, obs, critic_obs, actions, rewards, dones, truncations, next_obs, next_critic_obs
    ):
        ptr = self.ptr % self.slots
        self.observations[:, ptr] = obs
        self.critic_observations[:, ptr] = critic_obs
        self.actions[:, ptr] = actions
        self.rewards[:, ptr] = rewards
        self.dones[:, ptr] = dones
        self.truncations[:, ptr] = truncations
        if CURED:
            following = (ptr + 1) % self.slots
            self.observations[:, following] = next_obs
            self.critic_observations[:, following] = next_critic_obs
        else:
            self.next_observations[:, ptr] = next_obs
            self.next_critic_observations[:, ptr] = next_critic_obs
        self.ptr += 1

    def pick(self, values, idx):
        return torch.gather(values, 1, idx[..., None].expand(-1, -1, values.shape[-1])).flatten(
            0, 1
        )

    @torch.no_grad()
    def sample(self, batch_size):
        idx = torch.randint(0, self.num_stored, (self.n_env, batch_size), device=self.device)
        if CURED:
            idx = (self.ptr - self.num_stored + idx) % self.slots
            following = (idx + 1) % self.slots
            next_obs = self.pick(self.observations, following)
            next_critic_obs = self.pick(self.critic_observations, following)
        else:
            next_obs = self.pick(self.next_observations, idx)
            next_critic_obs = self.pick(self.next_critic_observations, idx)
        return {
            "obs": self.pick(self.observations, idx),
            "next_obs": next_obs,
            "critic_obs": self.pick(self.critic_observations, idx),
            "next_critic_obs": next_critic_obs,
            "actions": self.pick(self.actions, idx),
            "rewards": torch.gather(self.rewards, 1, idx).flatten(),
            "dones": torch.gather(self.dones, 1, idx).flatten(),
        }


def mlp(inputs, outputs, width=512):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


class FastSACAgent:
    def __init__(self):
        self.actor = mlp(N_OBS, N_ACT).cuda()
        self.qnet = mlp(N_CRITIC_OBS + N_ACT, 1).cuda()
        self.qnet_target = mlp(N_CRITIC_OBS + N_ACT, 1).cuda()
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), lr=3e-4)
        self.q_optimizer = torch.optim.AdamW(self.qnet.parameters(), lr=3e-4)

    def update(self, data, gamma=0.97, tau=0.01):
        with torch.no_grad():
            next_actions = torch.tanh(self.actor(data["next_obs"]))
            following = torch.cat([data["next_critic_obs"], next_actions], -1)
            target = (
                data["rewards"] + gamma * (1 - data["dones"]) * self.qnet_target(following)[:, 0]
            )
        q = self.qnet(torch.cat([data["critic_obs"], data["actions"]], -1))[:, 0]
        qf_loss = F.mse_loss(q, target)
        self.q_optimizer.zero_grad(set_to_none=True)
        qf_loss.backward()
        self.q_optimizer.step()
        actions = torch.tanh(self.actor(data["obs"]))
        actor_loss = -self.qnet(torch.cat([data["critic_obs"], actions], -1)).mean()
        self.actor_optimizer.zero_grad(set_to_none=True)
        actor_loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            for target_p, p in zip(self.qnet_target.parameters(), self.qnet.parameters()):
                target_p.lerp_(p, tau)
        return qf_loss.detach()


agent = FastSACAgent()
# CURE
rb = SimpleReplayBuffer(N_ENV, BUFFER_SIZE, N_OBS, N_ACT, N_CRITIC_OBS, device="cuda")
obs = torch.randn(N_ENV, N_OBS, device="cuda")
critic_obs = torch.randn(N_ENV, N_CRITIC_OBS, device="cuda")
for global_step in range(12):
    with torch.no_grad():
        actions = torch.tanh(agent.actor(obs) + torch.randn(N_ENV, N_ACT, device="cuda"))
    next_obs = torch.randn(N_ENV, N_OBS, device="cuda")
    next_critic_obs = torch.randn(N_ENV, N_CRITIC_OBS, device="cuda")
    dones = torch.zeros(N_ENV, dtype=torch.long, device="cuda")
    rewards = torch.rand(N_ENV, device="cuda")
    rb.extend(obs, critic_obs, actions, rewards, dones, dones, next_obs, next_critic_obs)
    obs, critic_obs = next_obs, next_critic_obs
    if global_step >= 4:
        qf_loss = agent.update(rb.sample(4))
print(rb.num_stored)
