"""After maskrcnn-benchmark #18.

Anchors against hundreds of true boxes: the overlap matrix and its parts.
"""

import torch

CURED = False


def overlap(boxes, others):
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    other_area = (others[:, 2:] - others[:, :2]).prod(1)
    corner = torch.max(boxes[:, None, :2], others[:, :2])
    far = torch.min(boxes[:, None, 2:], others[:, 2:])
    sides = (far - corner).clamp(min=0)
    inside = sides[..., 0] * sides[..., 1]
    return inside / (area[:, None] + other_area - inside)


def match(truth, anchors):
    if CURED:
        best = [overlap(part, anchors).max(0).values for part in truth.split(20)]
        return torch.stack(best).max(0).values
    return overlap(truth, anchors).max(0).values


anchors = torch.rand(242991, 4, device="cuda")
# CURE
for truths in (40, 300, 500):
    best = match(torch.rand(truths, 4, device="cuda"), anchors)
    positive = int((best > 0.7).sum())
