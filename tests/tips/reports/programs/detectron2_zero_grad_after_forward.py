"""After facebookresearch/detectron2#4905: setting the gradients to None does not save any memory in the trainer."""

import time
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, dim, num_heads=12):
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        x = x + self.proj(a)
        return x + self.mlp(self.norm2(x))


class ViTDet(nn.Module):
    def __init__(self, dim=768, depth=9, num_classes=80, size=320):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 16, 16)
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // 16) ** 2, dim))
        self.blocks = nn.ModuleList([Block(dim) for _ in range(depth)])
        self.fpn = nn.Conv2d(dim, 128, 1)
        self.cls_score = nn.Conv2d(128, num_classes, 3, padding=1)
        self.bbox_pred = nn.Conv2d(128, 4, 3, padding=1)

    def forward(self, batched_inputs):
        images = torch.stack([x["image"].to(DEVICE) for x in batched_inputs]) / 255
        x = self.patch_embed(images)
        B, C, H, W = x.shape
        x = x.flatten(2).transpose(1, 2) + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        feature = F.relu(self.fpn(x.transpose(1, 2).reshape(B, C, H, W)))
        gt_classes = torch.stack([x["gt_classes"] for x in batched_inputs]).to(DEVICE)
        gt_deltas = torch.stack([x["gt_deltas"] for x in batched_inputs]).to(DEVICE)
        return {
            "loss_cls": F.cross_entropy(self.cls_score(feature), gt_classes),
            "loss_box_reg": F.smooth_l1_loss(self.bbox_pred(feature), gt_deltas),
        }


def build_detection_train_loader(ims_per_batch, size=320):
    while True:
        yield [
            {
                "image": torch.randint(0, 255, (3, size, size), dtype=torch.uint8),
                "gt_classes": torch.randint(0, 80, (size // 16, size // 16)),
                "gt_deltas": torch.rand(4, size // 16, size // 16),
            }
            for _ in range(ims_per_batch)
        ]


class SimpleTrainer:
    def __init__(self, model, data_loader, optimizer):
        model.train()
        self.model, self.optimizer = model, optimizer
        self._data_loader_iter = iter(data_loader)
        self.history = []

    def run_step(self):
        start = time.perf_counter()
        data = next(self._data_loader_iter)
        data_time = time.perf_counter() - start
        if CURED:
            self.optimizer.zero_grad()
        loss_dict = self.model(data)
        losses = sum(loss_dict.values())
        if not CURED:
            self.optimizer.zero_grad()
        losses.backward()
        self._write_metrics(loss_dict, data_time)
        self.optimizer.step()

    def _write_metrics(self, loss_dict, data_time):
        metrics = {k: v.detach().cpu().item() for k, v in loss_dict.items()}
        metrics["data_time"] = data_time
        self.history.append(metrics)

    def train(self, start_iter, max_iter):
        for self.iter in range(start_iter, max_iter):
            self.run_step()
            print(
                f"iter {self.iter} " + " ".join(f"{k} {v:.3f}" for k, v in self.history[-1].items())
            )


def main():
    model = ViTDet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)
    trainer = SimpleTrainer(model, build_detection_train_loader(3), optimizer)
    trainer.train(0, 6)
    print(f"max mem: {torch.cuda.max_memory_allocated() / 2**20:.0f}M")


if __name__ == "__main__":
    main()
