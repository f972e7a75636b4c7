"""After roboflow/rf-detr#1245: the box loss of a few thousand matches runs out of memory."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
BATCH, OBJECTS, QUERIES, GROUP_DETR, CLASSES = 4, 30, 100, 13, 80
HIDDEN, HEADS, LAYERS, STEPS = 128, 8, 3, 3


def box_cxcywh_to_xyxy(x):
    center, size = x[..., :2], x[..., 2:].clamp(min=0)
    return torch.cat([center - size / 2, center + size / 2], -1)


def box_area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(boxes1, boxes2):
    area1, area2 = box_area(boxes1), box_area(boxes2)
    lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])  # [N,M,2]
    rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])  # [N,M,2]
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]  # [N,M]
    union = area1[:, None] + area2 - inter
    return inter / union, union


def generalized_box_iou(boxes1, boxes2):
    iou, union = box_iou(boxes1, boxes2)
    lt = torch.min(boxes1[:, None, :2], boxes2[:, :2])
    rb = torch.max(boxes1[:, None, 2:], boxes2[:, 2:])
    wh = (rb - lt).clamp(min=0)  # [N,M,2]
    area = wh[:, :, 0] * wh[:, :, 1]
    return iou - (area - union) / area


def elementwise_generalized_box_iou(boxes1, boxes2):
    """The diagonal of generalized_box_iou"""
    area1, area2 = box_area(boxes1), box_area(boxes2)
    lt, rb = torch.max(boxes1[:, :2], boxes2[:, :2]), torch.min(boxes1[:, 2:], boxes2[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(1)
    union = area1 + area2 - inter
    lt, rb = torch.min(boxes1[:, :2], boxes2[:, :2]), torch.max(boxes1[:, 2:], boxes2[:, 2:])
    area = (rb - lt).clamp(min=0).prod(1)
    return inter / union - (area - union) / area


class LWDETR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Conv2d(3, HIDDEN, 16, 16)
        self.query_feat = nn.Embedding(QUERIES * GROUP_DETR, HIDDEN)
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(HIDDEN, HEADS, 4 * HIDDEN, 0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.class_embed, self.bbox_embed = nn.Linear(HIDDEN, CLASSES), nn.Linear(HIDDEN, 4)

    def forward(self, samples):
        memory = self.backbone(samples).flatten(2).transpose(1, 2)
        memory = memory.repeat_interleave(GROUP_DETR, 0)
        groups = self.query_feat.weight.view(GROUP_DETR, QUERIES, HIDDEN).repeat(BATCH, 1, 1)
        out = []
        for layer in self.decoder:
            groups = layer(groups, memory)
            hs = groups.view(BATCH, GROUP_DETR * QUERIES, HIDDEN)
            boxes = self.bbox_embed(hs).sigmoid()
            out.append({"pred_logits": self.class_embed(hs), "pred_boxes": boxes})
        return out


class SetCriterion(nn.Module):
    def match(self, outputs, targets):
        """In each group, the queries with the highest scores take the targets"""
        scores = outputs["pred_logits"].detach().amax(-1).view(BATCH, GROUP_DETR, QUERIES)
        order = scores.argsort(-1, descending=True)[..., :OBJECTS]
        offset = torch.arange(GROUP_DETR, device=DEVICE)[:, None] * QUERIES
        src = (order + offset).flatten(1)
        batch_idx = torch.arange(BATCH, device=DEVICE).repeat_interleave(src.shape[1])
        return (batch_idx, src.flatten()), targets["boxes"].repeat(1, GROUP_DETR, 1).flatten(0, 1)

    def loss_boxes(self, outputs, targets):
        idx, target_boxes = self.match(outputs, targets)
        src_boxes = outputs["pred_boxes"][idx]
        loss_bbox = F.l1_loss(src_boxes, target_boxes, reduction="sum") / len(src_boxes)
        boxes = box_cxcywh_to_xyxy(src_boxes), box_cxcywh_to_xyxy(target_boxes)
        if CURED:
            loss_giou = 1 - elementwise_generalized_box_iou(*boxes)
        else:
            loss_giou = 1 - torch.diag(generalized_box_iou(*boxes))
        return 5 * loss_bbox + 2 * loss_giou.sum() / len(src_boxes)

    def loss_labels(self, outputs):
        return outputs["pred_logits"].sigmoid().square().mean()

    def forward(self, all_outputs, targets):
        return sum(self.loss_boxes(o, targets) + self.loss_labels(o) for o in all_outputs)


model, criterion = LWDETR().to(DEVICE), SetCriterion()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(STEPS):
    samples = torch.randn(BATCH, 3, 320, 320).to(DEVICE)
    targets = {"boxes": (torch.rand(BATCH, OBJECTS, 4) * 0.5 + 0.2).to(DEVICE)}
    loss = criterion(model(samples), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
