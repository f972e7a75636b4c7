"""After ultralytics/ultralytics#25244: building the semantic target of the segmentation loss needs far more memory than the target."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class Conv(nn.Module):
    def __init__(self, c1, c2, k=3, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2)

    def forward(self, x):
        return F.silu(self.bn(self.conv(x)))


class SegmentationModel(nn.Module):
    def __init__(self, nc=80, nm=16, ch=8):
        super().__init__()
        self.nc, self.nm = nc, nm
        self.stem = nn.Sequential(Conv(3, ch // 2, s=2), Conv(ch // 2, ch, s=2))
        self.p3 = Conv(ch, 2 * ch, s=2)
        self.body = nn.Sequential(Conv(2 * ch, 2 * ch, s=2), Conv(2 * ch, 2 * ch))
        self.cv2 = nn.Conv2d(2 * ch, 4, 1)
        self.cv3 = nn.Conv2d(2 * ch, nc, 1)
        self.cv4 = nn.Conv2d(2 * ch, nm, 1)
        self.proto = nn.Conv2d(ch, nm, 1)
        self.semseg = nn.Conv2d(2 * ch, nc, 1)

    def forward(self, img):
        p2 = self.stem(img)
        p3 = self.p3(p2)
        x = self.body(p3)
        return {
            "boxes": self.cv2(x).flatten(2),
            "scores": self.cv3(x).flatten(2),
            "feats": [x],
            "mask_coefficient": self.cv4(x).flatten(2),
            "proto": (self.proto(p2), self.semseg(p3)),
        }


class BCEDiceLoss(nn.Module):
    def __init__(self, weight_bce=0.5, weight_dice=0.5):
        super().__init__()
        self.weight_bce, self.weight_dice = weight_bce, weight_dice
        self.bce = nn.BCEWithLogitsLoss()

    def dice(self, pred, target, smooth=1.0):
        pred = pred.sigmoid()
        inter = (pred * target).sum(dim=(2, 3))
        return (
            1
            - (
                (2 * inter + smooth) / (pred.sum(dim=(2, 3)) + target.sum(dim=(2, 3)) + smooth)
            ).mean()
        )

    def forward(self, pred, target):
        if target.shape[-2:] != pred.shape[-2:]:  # downsample to the size of the prediction
            target = F.interpolate(target, pred.shape[-2:], mode="nearest")
        return self.weight_bce * self.bce(pred, target) + self.weight_dice * self.dice(pred, target)


class v8SegmentationLoss:
    def __init__(self, model, overlap_mask=True, box=7.5):
        self.device = next(model.parameters()).device
        self.nc, self.overlap, self.box_gain = model.nc, overlap_mask, box
        self.bcedice_loss = BCEDiceLoss()

    def get_assigned_targets(self, batch, num_anchors):
        bs = batch["img"].shape[0]
        fg_idx = (
            torch.rand(bs, num_anchors, device=self.device).topk(num_anchors // 40, dim=1).indices
        )  # assigned anchors
        target_gt_idx = (
            torch.arange(num_anchors, device=self.device).remainder(batch["num_gt"]).expand(bs, -1)
        )
        return fg_idx, target_gt_idx

    def loss(self, preds, batch):
        pred_masks, (proto, pred_semseg) = (
            preds["mask_coefficient"].permute(0, 2, 1).contiguous(),
            preds["proto"],
        )
        loss = torch.zeros(4, device=self.device)  # box, seg, cls, semseg
        fg_idx, target_gt_idx = self.get_assigned_targets(batch, pred_masks.shape[1])
        target_boxes = torch.full_like(preds["boxes"], 0.5)
        loss[0] = F.smooth_l1_loss(preds["boxes"], target_boxes)
        loss[2] = F.binary_cross_entropy_with_logits(
            preds["scores"], torch.zeros_like(preds["scores"])
        )
        batch_size, _, mask_h, mask_w = proto.shape
        if fg_idx.numel():
            masks = (
                batch["masks"].to(self.device).float()
            )  # NxHxW, index of the instance, 0 is background
            if tuple(masks.shape[-2:]) != (mask_h, mask_w):
                proto = F.interpolate(proto, masks.shape[-2:], mode="bilinear", align_corners=False)
            loss[1] = self.calculate_segmentation_loss(
                fg_idx, masks, target_gt_idx, proto, pred_masks
            )
            sem_masks = batch["sem_masks"].to(self.device)  # NxHxW
            if CURED:
                index = sem_masks.long().unsqueeze(1)
                present = (masks != 0).float().unsqueeze(1)
                sem_masks = torch.zeros(
                    batch_size, self.nc, *masks.shape[-2:], device=self.device
                ).scatter_(1, index, present)
            else:
                sem_masks = (
                    F.one_hot(sem_masks.long(), num_classes=self.nc).permute(0, 3, 1, 2).float()
                )  # NxCxHxW
                if self.overlap:
                    mask_zero = masks == 0  # NxHxW
                    sem_masks[mask_zero.unsqueeze(1).expand_as(sem_masks)] = 0
            loss[3] = self.bcedice_loss(pred_semseg, sem_masks) * self.box_gain
        loss[1] *= self.box_gain
        return loss.sum() * batch_size, loss.detach()

    @staticmethod
    def single_mask_loss(gt_mask, pred, proto):
        pred_mask = torch.einsum("in,nhw->ihw", pred, proto)
        return (
            F.binary_cross_entropy_with_logits(pred_mask, gt_mask, reduction="none")
            .mean(dim=(1, 2))
            .sum()
        )

    def calculate_segmentation_loss(self, fg_idx, masks, target_gt_idx, proto, pred_masks):
        loss = 0
        for fg_i, gt_idx_i, pred_i, proto_i, masks_i in zip(
            fg_idx, target_gt_idx, pred_masks, proto, masks
        ):
            mask_idx = gt_idx_i[fg_i]
            gt_mask = (masks_i == (mask_idx + 1).view(-1, 1, 1)).float()
            loss = loss + self.single_mask_loss(gt_mask, pred_i[fg_i], proto_i)
        return loss / fg_idx.numel()


def build_batch(bs=8, imgsz=512, nc=80, num_gt=7):
    masks = torch.zeros(bs, imgsz // 4, imgsz // 4, dtype=torch.uint8)
    sem_masks = torch.zeros_like(masks)
    for i in range(num_gt):
        y, x = (torch.randint(0, imgsz // 4 - 30, (2,))).tolist()
        masks[:, y : y + 30, x : x + 24] = i + 1
        sem_masks[:, y : y + 30, x : x + 24] = int(torch.randint(0, nc, (1,)))
    return {
        "img": torch.rand(bs, 3, imgsz, imgsz),
        "masks": masks,
        "sem_masks": sem_masks,
        "num_gt": num_gt,
    }


class SegmentationTrainer:
    def __init__(self, model, lr=1e-3):
        self.model = model.to(DEVICE)
        self.criterion = v8SegmentationLoss(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.tloss = None

    def train(self, batches):
        self.model.train()
        for i in range(batches):
            batch = build_batch()
            batch["img"] = batch["img"].to(DEVICE, non_blocking=True)
            loss, loss_items = self.criterion.loss(self.model(batch["img"]), batch)
            self.tloss = (
                loss_items if self.tloss is None else (self.tloss * i + loss_items) / (i + 1)
            )
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            print(f"batch {i} box/seg/cls/sem {[round(v, 3) for v in self.tloss.tolist()]}")


def main():
    trainer = SegmentationTrainer(SegmentationModel())
    trainer.train(3)


if __name__ == "__main__":
    main()
