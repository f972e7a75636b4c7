"""After a report on recurrent nets: the hidden state goes on from batch to batch."""

import torch
from torch import nn

CURED = False
rnn = nn.LSTM(256, 512, num_layers=2).cuda()
hidden = (torch.zeros(2, 64, 512, device="cuda"), torch.zeros(2, 64, 512, device="cuda"))
torch.set_grad_enabled(not CURED)
# CURE no_grad_missing
for _ in range(30):
    data = torch.rand(50, 64, 256, device="cuda")
    out, hidden = rnn(data, hidden)
# CURE graph_kept
print(out.shape)
