"""After PatchCore_anomaly_detection #19.

Distances by a broadcast difference: N x M x D where N x M would do.
"""

import torch

CURED = False


def distance_matrix(x, y):
    if CURED:
        return torch.cdist(x, y)
    n, m, d = x.size(0), y.size(0), x.size(1)
    x = x.unsqueeze(1).expand(n, m, d)
    y = y.unsqueeze(0).expand(n, m, d)
    return torch.pow(x - y, 2).sum(2).sqrt()


memory_bank = torch.randn(1500, 448, device="cuda")
# CURE
for _ in range(3):
    patches = torch.randn(784, 448, device="cuda")
    distances = distance_matrix(patches, memory_bank)
    score = distances.topk(9, largest=False).values.amax().item()
