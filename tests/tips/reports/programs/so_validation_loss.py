"""After a question about memory that runs out in validation only: its loss is summed."""

import torch
from torch import nn

CURED = False
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
).cuda()  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def batches(count):
    for _ in range(count):
        yield torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(10, (64,), device="cuda")


for images, labels in batches(10):
    optimizer.zero_grad()
    criterion(model(images), labels).backward()
    optimizer.step()

model.eval()
val_loss = 0
torch.set_grad_enabled(not CURED)
# CURE no_grad_missing
for images, labels in batches(10):
    val_loss += criterion(model(images), labels)
# CURE graph_kept
print(float(val_loss) / 10)
