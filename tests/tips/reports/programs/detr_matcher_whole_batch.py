"""After facebookresearch/detr#606: with many objects a picture the matcher takes so much memory that only small batches fit."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
NUM_CLASSES = 7
NUM_QUERIES = 125


def box_cxcywh_to_xyxy(x):
    x_c, y_c, w, h = x.unbind(-1)
    return torch.stack([x_c - 0.5 * w, y_c - 0.5 * h, x_c + 0.5 * w, y_c + 0.5 * h], dim=-1)


def box_area(b):
    return (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])


def generalized_box_iou(boxes1, boxes2):
    area1, area2 = box_area(boxes1), box_area(boxes2)
    lt = torch.max(boxes1[..., :, None, :2], boxes2[..., None, :, :2])
    rb = torch.min(boxes1[..., :, None, 2:], boxes2[..., None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[..., 0] * wh[..., 1]
    union = area1[..., :, None] + area2[..., None, :] - inter
    iou = inter / union
    lt = torch.min(boxes1[..., :, None, :2], boxes2[..., None, :, :2])
    rb = torch.max(boxes1[..., :, None, 2:], boxes2[..., None, :, 2:])
    wh = (rb - lt).clamp(min=0)
    area = wh[..., 0] * wh[..., 1]
    return iou - (area - union) / area


def assign(cost):
    """A greedy stand-in for scipy's linear_sum_assignment."""
    rows = cost.argmin(dim=0)
    return rows, torch.arange(cost.shape[1])


class HungarianMatcher(nn.Module):
    def __init__(self, cost_class=1.0, cost_bbox=5.0, cost_giou=2.0):
        super().__init__()
        self.cost_class, self.cost_bbox, self.cost_giou = cost_class, cost_bbox, cost_giou

    @torch.no_grad()
    def forward(self, outputs, targets):
        bs, num_queries = outputs["pred_logits"].shape[:2]
        sizes = [len(v["boxes"]) for v in targets]
        if CURED:
            out_prob = outputs["pred_logits"].softmax(-1)
            out_bbox = outputs["pred_boxes"]
            tgt_ids = nn.utils.rnn.pad_sequence([v["labels"] for v in targets], batch_first=True)
            tgt_bbox = nn.utils.rnn.pad_sequence([v["boxes"] for v in targets], batch_first=True)
            cost_class = -out_prob.gather(2, tgt_ids[:, None, :].expand(-1, num_queries, -1))
        else:
            out_prob = outputs["pred_logits"].flatten(0, 1).softmax(-1)
            out_bbox = outputs["pred_boxes"].flatten(0, 1)
            tgt_ids = torch.cat([v["labels"] for v in targets])
            tgt_bbox = torch.cat([v["boxes"] for v in targets])
            cost_class = -out_prob[:, tgt_ids]
        cost_bbox = torch.cdist(out_bbox, tgt_bbox, p=1)
        cost_giou = -generalized_box_iou(box_cxcywh_to_xyxy(out_bbox), box_cxcywh_to_xyxy(tgt_bbox))
        C = self.cost_bbox * cost_bbox + self.cost_class * cost_class + self.cost_giou * cost_giou
        if CURED:
            C = C.cpu()
            return [assign(C[i, :, :n]) for i, n in enumerate(sizes)]
        C = C.view(bs, num_queries, -1).cpu()
        return [assign(c[i]) for i, c in enumerate(C.split(sizes, -1))]


class SetCriterion(nn.Module):
    def __init__(self, matcher):
        super().__init__()
        self.matcher = matcher

    def forward(self, outputs, targets):
        indices = self.matcher(outputs, targets)
        batch_idx = torch.cat([torch.full_like(src, i) for i, (src, _) in enumerate(indices)]).to(
            DEVICE
        )
        src_idx = torch.cat([src for src, _ in indices]).to(DEVICE)
        target_o = torch.cat([t["labels"][j.to(DEVICE)] for t, (_, j) in zip(targets, indices)])
        target_boxes = torch.cat([t["boxes"][j.to(DEVICE)] for t, (_, j) in zip(targets, indices)])
        target_classes = torch.full(outputs["pred_logits"].shape[:2], NUM_CLASSES, device=DEVICE)
        target_classes[batch_idx, src_idx] = target_o
        loss_ce = F.cross_entropy(outputs["pred_logits"].transpose(1, 2), target_classes)
        loss_bbox = F.l1_loss(outputs["pred_boxes"][batch_idx, src_idx], target_boxes)
        return loss_ce + 5 * loss_bbox


class TableTransformer(nn.Module):
    def __init__(self, hidden_dim=256):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(32, 128, 3, 4, 1),
            nn.ReLU(),
            nn.Conv2d(128, hidden_dim, 3, 2, 1),
        )
        self.query_embed = nn.Embedding(NUM_QUERIES, hidden_dim)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(hidden_dim, 8, 512, batch_first=True), 2
        )
        self.class_embed = nn.Linear(hidden_dim, NUM_CLASSES + 1)
        self.bbox_embed = nn.Linear(hidden_dim, 4)

    def forward(self, samples):
        memory = self.backbone(samples).flatten(2).transpose(1, 2)
        hs = self.decoder(self.query_embed.weight.expand(len(samples), -1, -1), memory)
        return {"pred_logits": self.class_embed(hs), "pred_boxes": self.bbox_embed(hs).sigmoid()}


def main():
    model = TableTransformer().to(DEVICE)
    criterion = SetCriterion(HungarianMatcher()).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(4):
        samples = torch.rand(48, 3, 256, 256, device=DEVICE)
        targets = [
            {
                "labels": torch.randint(0, NUM_CLASSES, (45 + i % 12,), device=DEVICE),
                "boxes": torch.rand(45 + i % 12, 4, device=DEVICE),
            }
            for i in range(48)
        ]
        loss = criterion(model(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
