"""After lyuwenyu/RT-DETR#678: the attention of RT-DETR never takes the fused kernel."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
DEVICE = "cuda"
BATCH, SIZE, HIDDEN, NHEAD, QUERIES, CLASSES, LAYERS, STEPS = 8, 640, 128, 8, 300, 80, 4, 3
NEED = {"need_weights": False} if CURED else {}


class TransformerEncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, 0.0, batch_first=True)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, src, src_mask=None, pos_embed=None):
        q = k = src + pos_embed
        src2, _ = self.self_attn(q, k, value=src, attn_mask=src_mask, **NEED)
        src = self.norm1(src + src2)
        return self.norm2(src + self.linear2(F.gelu(self.linear1(src))))


class MSDeformableAttention(nn.Module):
    """Each query samples the feature map at a few points"""

    def __init__(self, d_model, points=4):
        super().__init__()
        self.sampling_offsets = nn.Linear(d_model, 2 * points)
        self.attention_weights = nn.Linear(d_model, points)
        self.output_proj = nn.Linear(d_model, d_model)

    def forward(self, query, reference_points, value):
        offsets = self.sampling_offsets(query).unflatten(-1, (-1, 2)).tanh() * 0.1
        grid = 2 * (reference_points[:, :, None, :2] + offsets) - 1
        sampled = F.grid_sample(value, grid, align_corners=False)
        weights = self.attention_weights(query).softmax(-1)
        return self.output_proj(torch.einsum("bcqp,bqp->bqc", sampled, weights))


class TransformerDecoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, 0.0, batch_first=True)
        self.cross_attn = MSDeformableAttention(d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))

    def forward(self, target, reference_points, memory, attn_mask=None, query_pos_embed=None):
        q = k = target + query_pos_embed
        target2, _ = self.self_attn(q, k, value=target, attn_mask=attn_mask, **NEED)
        target = self.norm1(target + target2)
        target = self.norm2(target + self.cross_attn(target, reference_points, memory))
        return self.norm3(target + self.linear2(F.relu(self.linear1(target))))


class RTDETR(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 8, 8), nn.ReLU(), nn.Conv2d(32, HIDDEN, 4, 4), nn.BatchNorm2d(HIDDEN)
        )
        self.encoder = TransformerEncoderLayer(HIDDEN, NHEAD, 4 * HIDDEN)
        self.pos_embed = nn.Parameter(torch.randn(1, (SIZE // 32) ** 2, HIDDEN) * 0.02)
        self.tgt_embed = nn.Embedding(QUERIES, HIDDEN)
        self.ref_points = nn.Embedding(QUERIES, 4)
        self.query_pos_head = nn.Linear(4, HIDDEN)
        self.decoder = nn.ModuleList(
            TransformerDecoderLayer(HIDDEN, NHEAD, 4 * HIDDEN) for _ in range(LAYERS)
        )
        self.dec_score_head, self.dec_bbox_head = nn.Linear(HIDDEN, CLASSES), nn.Linear(HIDDEN, 4)

    def forward(self, images):
        memory = self.backbone(images)
        src = self.encoder(memory.flatten(2).transpose(1, 2), pos_embed=self.pos_embed)
        memory = src.transpose(1, 2).unflatten(2, memory.shape[2:])
        output = self.tgt_embed.weight.expand(len(images), -1, -1)
        ref = self.ref_points.weight.sigmoid().expand(len(images), -1, -1)
        logits, boxes = [], []
        for layer in self.decoder:
            output = layer(output, ref, memory, query_pos_embed=self.query_pos_head(ref))
            ref = (torch.logit(ref.detach(), 1e-5) + self.dec_bbox_head(output)).sigmoid()
            logits.append(self.dec_score_head(output))
            boxes.append(ref)
        return torch.stack(logits), torch.stack(boxes)


model = RTDETR().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(STEPS):
    images = torch.rand(BATCH, 3, SIZE, SIZE).to(DEVICE)
    target_boxes = torch.rand(BATCH, QUERIES, 4).to(DEVICE)
    pred_logits, pred_boxes = model(images)
    loss_vfl = F.binary_cross_entropy_with_logits(pred_logits, torch.zeros_like(pred_logits))
    loss = loss_vfl + 5 * F.l1_loss(pred_boxes, target_boxes.expand_as(pred_boxes))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
