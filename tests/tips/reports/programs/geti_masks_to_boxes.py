"""After open-edge-platform/geti-instant-learn#921: segmenting a large picture with many foreground points goes out of memory."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


def masks_to_boxes_traceable(masks):
    """Boxes (x1, y1, x2, y2) around each of the masks [N, H, W]."""
    n, h, w = masks.shape
    if CURED:
        cols, rows = masks.any(dim=1), masks.any(dim=2)
        xs = torch.arange(w, device=masks.device, dtype=torch.float32)
        ys = torch.arange(h, device=masks.device, dtype=torch.float32)
        x_min = torch.where(cols, xs, float(w)).amin(1)
        x_max = torch.where(cols, xs, -1.0).amax(1)
        y_min = torch.where(rows, ys, float(h)).amin(1)
        y_max = torch.where(rows, ys, -1.0).amax(1)
        return torch.stack([x_min, y_min, x_max, y_max], dim=1)
    inside = masks > 0
    ys = torch.arange(h, device=masks.device, dtype=torch.float32).view(1, h, 1)
    xs = torch.arange(w, device=masks.device, dtype=torch.float32).view(1, 1, w)
    x_low = torch.where(inside, xs, float(w))
    x_high = torch.where(inside, xs, -1.0)
    y_low = torch.where(inside, ys, float(h))
    y_high = torch.where(inside, ys, -1.0)
    return torch.stack(
        [x_low.amin((1, 2)), y_low.amin((1, 2)), x_high.amax((1, 2)), y_high.amax((1, 2))], dim=1
    )


class SAMPredictor(nn.Module):
    """Image encoder and mask decoder with the shapes of SAM: 64 x 64 embedding, 256 x 256 low resolution masks."""

    def __init__(self, dim=256, depth=6):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 16, 16)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True) for _ in range(depth)]
        )
        self.point_embed = nn.Linear(2, dim)
        self.upscale = nn.Sequential(
            nn.ConvTranspose2d(dim, 64, 2, 2), nn.GELU(), nn.ConvTranspose2d(64, 32, 2, 2)
        )
        self.hyper = nn.Linear(dim, 32)
        self.iou_head = nn.Linear(dim, 1)

    def set_image(self, image):
        x = F.interpolate(image, size=(1024, 1024), mode="bilinear", align_corners=False)
        x = self.patch_embed(x)
        b, c, h, w = x.shape
        x = x.flatten(2).transpose(1, 2)
        for blk in self.blocks:
            x = blk(x)
        self.features = self.upscale(x.transpose(1, 2).reshape(b, c, h, w))

    def predict(self, points):
        tokens = self.point_embed(points)
        low_res = torch.einsum("nc,bchw->nhw", self.hyper(tokens), self.features)
        return low_res[:, None], self.iou_head(tokens).squeeze(-1)


class SamDecoder(nn.Module):
    def __init__(self, predictor, mask_threshold=0.0, batch_size=16):
        super().__init__()
        self.predictor, self.mask_threshold, self.batch_size = predictor, mask_threshold, batch_size

    def _process_single_image(self, image, points):
        size = tuple(image.shape[-2:])
        self.predictor.set_image(image)
        dtype = torch.bool if CURED else torch.float32
        all_masks = torch.zeros(len(points), *size, dtype=dtype, device=image.device)
        all_scores = torch.zeros(len(points), device=image.device)
        for start in range(0, len(points), self.batch_size):
            chunk = points[start : start + self.batch_size]
            low_res, scores = self.predictor.predict(chunk)
            masks = F.interpolate(low_res, size=size, mode="bilinear", align_corners=False)[:, 0]
            all_masks[start : start + len(chunk)] = masks > self.mask_threshold
            all_scores[start : start + len(chunk)] = scores
        boxes = masks_to_boxes_traceable(all_masks)
        return all_masks, torch.cat([boxes, all_scores[:, None]], dim=1)

    @torch.no_grad()
    def forward(self, images, point_prompts):
        results = []
        for image, points in zip(images, point_prompts):
            masks, boxes = self._process_single_image(image.to(DEVICE), points.to(DEVICE))
            union = masks.any(dim=0)
            results.append({"union": union.cpu(), "boxes": boxes.cpu()})
        return results


def main():
    decoder = SamDecoder(SAMPredictor()).to(DEVICE).eval()
    images = [torch.rand(1, 3, 1040, 1380) for _ in range(2)]
    prompts = [torch.rand(70, 2), torch.rand(64, 2)]
    for i, result in enumerate(decoder(images, prompts)):
        print(f"picture {i}: {len(result['boxes'])} boxes, union {tuple(result['union'].shape)}")


if __name__ == "__main__":
    main()
