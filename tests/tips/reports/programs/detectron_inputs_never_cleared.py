"""After detectron2 #3245.

The list of a batch's frames is made once, outside the loop over batches.
"""

import torch
from torch import nn

CURED = False

detector = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 17, 3, stride=2, padding=1)
)
detector = detector.cuda().eval()


def read_frame(number):
    return torch.randn(3, 480, 640)


poses = []
input_images = []
for batch in range(8):
    if CURED:
        input_images = []
    for frame in range(batch * 16, batch * 16 + 16):
        input_images.append(read_frame(frame).cuda())
    with torch.no_grad():
        heat = detector(torch.stack(input_images))
    poses.extend(heat[-16:].flatten(2).argmax(-1).cpu())
# CURE
