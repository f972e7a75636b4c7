"""After growingnet/gromo#137: the statistics of a growing network take more memory with each batch."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

CURED = False
IMAGES, BATCH, WIDTH, IN_CHANNELS, OUT_CHANNELS, CLASSES = 1024, 64, 32, 3, 32, 10


class TensorStatistic:
    def __init__(self, shape, update_function):
        self._shape, self._update_function = shape, update_function
        self.init()

    def init(self):
        self._tensor, self.samples, self.updated = None, 0, True

    def update(self):
        if self.updated:
            return
        update, nb_sample = self._update_function()
        if self._tensor is None:
            self._tensor = torch.zeros(self._shape, device=update.device)
        self._tensor += update
        self.samples += nb_sample
        self.updated = True

    def __call__(self):
        return self._tensor / self.samples


class Conv2dMergeGrowingModule(nn.Module):
    def __init__(self, in_channels, next_kernel_size):
        super().__init__()
        self.kernel_size = next_kernel_size
        self.norm, self.activity = nn.BatchNorm2d(in_channels), None
        features = in_channels * next_kernel_size**2
        self.tensor_s = TensorStatistic((features, features), self.compute_s_update)

    def forward(self, x):
        y = F.relu(self.norm(x))
        if self.training:
            self.activity = y
            self.tensor_s.updated = False
        return y

    def compute_s_update(self):
        unfolded = F.unfold(self.activity, self.kernel_size, padding=self.kernel_size // 2)
        return torch.einsum("iam,ibm->ab", unfolded, unfolded), len(unfolded)


class FullConv2dGrowingModule(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.layer = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2)
        features = in_channels * kernel_size**2
        self.input = self.pre_activity = None
        self.tensor_m = TensorStatistic((features, out_channels), self.compute_m_update)

    def forward(self, x):
        self.input, self.pre_activity = x, self.layer(x)
        if self.training:
            self.pre_activity.retain_grad()
            self.tensor_m.updated = False
        return self.pre_activity

    def compute_m_update(self):
        unfolded = F.unfold(self.input, self.layer.kernel_size, padding=self.layer.padding)
        desired_activation = -self.pre_activity.grad.flatten(2)
        return torch.einsum("iam,icm->ac", unfolded, desired_activation), len(unfolded)


class GrowingNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = FullConv2dGrowingModule(IN_CHANNELS, OUT_CHANNELS, 3)
        self.merge = Conv2dMergeGrowingModule(OUT_CHANNELS, 3)
        self.conv_next = FullConv2dGrowingModule(OUT_CHANNELS, OUT_CHANNELS, 3)
        self.linear = nn.Linear(OUT_CHANNELS, CLASSES)

    def forward(self, x):
        x = self.conv_next(self.merge(self.conv(x)))
        return self.linear(F.relu(x).mean((2, 3)))

    def statistics(self):
        return [self.conv.tensor_m, self.merge.tensor_s, self.conv_next.tensor_m]

    def init_computation(self):
        for statistic in self.statistics():
            statistic.init()

    def update_computation(self):
        with torch.no_grad() if CURED else contextlib.nullcontext():
            for statistic in self.statistics():
                statistic.update()


device = torch.device("cuda")
X_train = torch.rand(IMAGES, IN_CHANNELS, WIDTH, WIDTH).to(device)
Y_train = torch.rand(IMAGES, CLASSES).argmax(dim=1).to(device)
train_dataset = torch.utils.data.TensorDataset(X_train, Y_train)
train_dataloader = torch.utils.data.DataLoader(train_dataset, batch_size=BATCH)
model = GrowingNetwork().to(device)
loss_function = nn.CrossEntropyLoss()
model.init_computation()
losses = []
for x, y in train_dataloader:
    model.zero_grad()
    loss = loss_function(model(x), y)
    loss.backward()
    # CURE
    model.update_computation()
    losses.append(loss.item())
tensor_s = model.merge.tensor_s().detach()
tensor_s += 1e-3 * torch.eye(len(tensor_s), device=device)
optimal_delta = torch.linalg.solve(tensor_s, model.conv_next.tensor_m().detach())
print(len(losses), optimal_delta.shape)
