"""After open-edge-platform/anomalib#64: GPU memory use of the test of an anomaly detector."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False


class AnomalyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1)
        )
        self.register_buffer("mean", torch.zeros(1, 128, 1, 1))

    def forward(self, images):
        distance = (self.backbone(images) - self.mean).pow(2).sum(1, keepdim=True).sqrt()
        return F.interpolate(distance, images.shape[-2:], mode="bilinear")

    def test_step(self, batch):
        batch["anomaly_maps"] = self(batch["image"])
        batch["pred_scores"] = batch["anomaly_maps"].flatten(1).max(1).values
        return batch

    def test_step_end(self, outputs):
        if CURED:
            return {key: value.cpu() for key, value in outputs.items()}
        return outputs

    def test_epoch_end(self, outputs):
        scores = torch.cat([output["pred_scores"] for output in outputs])
        labels = torch.cat([output["label"] for output in outputs])
        return ((scores > 0.5) == labels.bool()).float().mean()


def dataloader(batches=20, batch_size=32):
    for _ in range(batches):
        images = torch.zeros(batch_size, 3, 256, 256).cuda()
        masks = torch.zeros(batch_size, 1, 256, 256).cuda()
        yield {"image": images, "mask": masks, "label": torch.zeros(batch_size).cuda()}


model = AnomalyModule().cuda().eval()
outputs = []
with torch.no_grad():
    for batch in dataloader():
        outputs.append(model.test_step_end(model.test_step(batch)))
    accuracy = model.test_epoch_end(outputs)
