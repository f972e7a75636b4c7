"""After mlfoundations/open_clip#11: massive GPU memory usage when the validation set is evaluated."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
SAMPLES, BATCH_SIZE, EMBED_DIM, VOCAB, CONTEXT = 40000, 1000, 256, 4096, 32


class CLIP(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(3, width, 16, 16), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.visual_proj = nn.Linear(width, EMBED_DIM)
        self.token_embedding = nn.Embedding(VOCAB, width)
        self.text_projection = nn.Linear(width, EMBED_DIM)
        self.logit_scale = nn.Parameter(torch.tensor(2.659))

    def forward(self, images, texts):
        image_features = self.visual_proj(self.visual(images))
        text_features = self.text_projection(self.token_embedding(texts).mean(1))
        return (
            F.normalize(image_features, dim=-1),
            F.normalize(text_features, dim=-1),
            self.logit_scale.exp(),
        )


def recalls(ranks, name, metrics):
    metrics[f"{name}_mean_rank"] = ranks.float().mean().item() + 1
    for k in (1, 5, 10):
        metrics[f"{name}_R@{k}"] = (ranks < k).float().mean().item()


def get_metrics(image_features, text_features, logit_scale):
    metrics = {}
    if CURED:
        pairs = {
            "image_to_text": (image_features, text_features),
            "text_to_image": (text_features, image_features),
        }
        for name, (queries, candidates) in pairs.items():
            ranks = []
            for start in range(0, len(queries), BATCH_SIZE):
                chunk = queries[start : start + BATCH_SIZE]
                logit = logit_scale * chunk @ candidates.t()
                ground_truth = torch.arange(start, start + len(chunk), device="cuda").view(-1, 1)
                ranks.append((logit > logit.gather(1, ground_truth)).sum(-1).cpu())
            recalls(torch.cat(ranks), name, metrics)
        return metrics

    logits_per_image = logit_scale * image_features @ text_features.t()
    logits_per_text = logits_per_image.t()
    logits = {"image_to_text": logits_per_image, "text_to_image": logits_per_text}
    ground_truth = torch.arange(len(text_features), device="cuda").view(-1, 1)
    for name, logit in logits.items():
        ranking = torch.argsort(logit, descending=True)
        preds = torch.where(ranking == ground_truth)[1]
        recalls(preds.cpu(), name, metrics)
    return metrics


def evaluate(model, dataloader):
    model.eval()
    cumulative_loss = torch.zeros(1, device="cuda")
    num_elements = 0
    all_image_features, all_text_features = [], []
    loss_img = nn.CrossEntropyLoss()
    with torch.no_grad():
        for images, texts in dataloader:
            images, texts = images.cuda(), texts.cuda()
            image_features, text_features, logit_scale = model(images, texts)
            all_image_features.append(image_features)
            all_text_features.append(text_features)
            logits_per_image = logit_scale * image_features @ text_features.t()
            ground_truth = torch.arange(len(images), device="cuda")
            total_loss = (
                loss_img(logits_per_image, ground_truth)
                + loss_img(logits_per_image.t(), ground_truth)
            ) / 2
            cumulative_loss += total_loss * len(images)
            num_elements += len(images)
        metrics = get_metrics(
            torch.cat(all_image_features), torch.cat(all_text_features), logit_scale
        )
        metrics["val_loss"] = (cumulative_loss / num_elements).item()
    return metrics


def validation_pairs():
    for _ in range(SAMPLES // BATCH_SIZE):
        yield torch.zeros(BATCH_SIZE, 3, 64, 64), torch.randint(0, VOCAB, (BATCH_SIZE, CONTEXT))


print(evaluate(CLIP().cuda(), validation_pairs()))
