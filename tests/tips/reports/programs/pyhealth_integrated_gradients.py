"""After sunlabuiuc/PyHealth#807: Integrated Gradients of StageNet on a batch of patients runs out of memory."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class EmbeddingModel(nn.Module):
    def __init__(self, vocabs, embedding_dim):
        super().__init__()
        self.embedding_layers = nn.ModuleDict(
            {k: nn.Embedding(n, embedding_dim, padding_idx=0) for k, n in vocabs.items()}
        )

    def forward(self, inputs):
        return {k: self.embedding_layers[k](v) for k, v in inputs.items()}


class StageNet(nn.Module):
    def __init__(self, vocabs, embedding_dim=128, hidden_dim=32, num_classes=2):
        super().__init__()
        self.feature_keys, self.label_keys = list(vocabs), ["label"]
        self.embedding_model = EmbeddingModel(vocabs, embedding_dim)
        self.stagenet = nn.ModuleDict(
            {k: nn.GRU(embedding_dim, hidden_dim, batch_first=True) for k in vocabs}
        )
        self.fc = nn.Linear(hidden_dim * len(vocabs), num_classes)

    def forward_from_embedding(self, feature_embeddings, time_info=None, label=None):
        patient_emb = []
        for key in self.feature_keys:
            x = feature_embeddings[key]
            if x.dim() == 4:  # nested sequences: pool the codes of a visit
                x = x.sum(dim=2)
            if time_info and key in time_info:
                x = x * torch.exp(-0.01 * time_info[key])[..., None]
            _, h = self.stagenet[key](x)
            patient_emb.append(h[-1])
        logits = self.fc(torch.cat(patient_emb, dim=1))
        loss = F.cross_entropy(logits, label) if label is not None else None
        return {"logit": logits, "loss": loss, "y_prob": logits.softmax(-1)}

    def forward(self, label=None, **data):
        return self.forward_from_embedding(
            self.embedding_model({k: data[k][1] for k in self.feature_keys}),
            {k: data[k][0] for k in self.feature_keys},
            label,
        )


class IntegratedGradients:
    def __init__(self, model, use_embeddings=True):
        self.model = model
        self.model.eval()
        self.use_embeddings = use_embeddings

    def attribute(self, baseline=None, steps=50, target_class_idx=None, **data):
        device = next(self.model.parameters()).device
        inputs, time_info, label_data = {}, {}, {}
        for key in self.model.feature_keys:
            x = data[key]
            if isinstance(x, tuple):
                time_info[key] = x[0].to(device)
                x = x[1]
            inputs[key] = x.to(device)
        for key in self.model.label_keys:
            if key in data:
                label_data[key] = data[key].to(device)
        return self._integrated_gradients_embedding_based(
            inputs, baseline, steps, target_class_idx, time_info, label_data
        )

    def _prepare_embeddings_and_baselines(self, inputs, baseline=None):
        input_embeddings, baseline_embeddings, input_shapes = {}, {}, {}
        for key in inputs:
            input_shapes[key] = inputs[key].shape
            x = self.model.embedding_model({key: inputs[key]})[key].detach()
            input_embeddings[key] = x
            baseline_embeddings[key] = (
                torch.randn_like(x).abs() * 0.01 if baseline is None else baseline[key]
            )
        return input_embeddings, baseline_embeddings, input_shapes

    def _compute_target_output(self, logits, target_class_idx=None):
        if target_class_idx is None:
            target_class_idx = torch.argmax(logits, dim=-1)
        else:
            target_class_idx = torch.full((len(logits),), target_class_idx, device=logits.device)
        one_hot = F.one_hot(target_class_idx, logits.size(-1)).float()
        return torch.sum(one_hot * logits)

    def _interpolate_and_compute_gradients(
        self,
        input_embeddings,
        baseline_embeddings,
        steps,
        target_class_idx=None,
        time_info=None,
        label_data=None,
    ):
        if CURED:
            avg_gradients = {
                key: torch.zeros_like(input_embeddings[key]) for key in input_embeddings
            }
        else:
            all_gradients = {key: [] for key in input_embeddings}
        for step_idx in range(steps + 1):
            alpha = step_idx / steps
            interpolated_embeddings = {}
            for key in input_embeddings:
                interp_emb = baseline_embeddings[key] + alpha * (
                    input_embeddings[key] - baseline_embeddings[key]
                )
                interp_emb = interp_emb.requires_grad_(True)
                interp_emb.retain_grad()
                interpolated_embeddings[key] = interp_emb
            output = self.model.forward_from_embedding(
                feature_embeddings=interpolated_embeddings, time_info=time_info, **label_data
            )
            target_output = self._compute_target_output(output["logit"], target_class_idx)
            self.model.zero_grad()
            target_output.backward(retain_graph=True)
            for key in input_embeddings:
                emb = interpolated_embeddings[key]
                if CURED:
                    if step_idx < steps:
                        avg_gradients[key] += emb.grad.detach() / steps
                else:
                    all_gradients[key].append(emb.grad.detach().clone())
        return avg_gradients if CURED else all_gradients

    def _compute_final_attributions(
        self, all_gradients, input_embeddings, baseline_embeddings, input_shapes
    ):
        integrated_grads = {}
        for key in input_embeddings:
            if CURED:
                avg_grad = all_gradients[key]
            else:
                # Average gradients across interpolation steps (exclude last)
                stacked_grads = torch.stack(all_gradients[key][:-1], dim=0)
                avg_grad = torch.mean(stacked_grads, dim=0)
            delta_emb = input_embeddings[key] - baseline_embeddings[key]
            token_attr = (delta_emb * avg_grad).sum(dim=-1)
            integrated_grads[key] = token_attr.view(input_shapes[key])
        return integrated_grads

    def _integrated_gradients_embedding_based(
        self, inputs, baseline, steps, target_class_idx, time_info, label_data
    ):
        input_embs, baseline_embs, shapes = self._prepare_embeddings_and_baselines(inputs, baseline)
        all_grads = self._interpolate_and_compute_gradients(
            input_embs, baseline_embs, steps, target_class_idx, time_info, label_data
        )
        return self._compute_final_attributions(all_grads, input_embs, baseline_embs, shapes)


class Trainer:
    def __init__(self, model, lr=1e-3):
        self.model = model.to(DEVICE)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def train(self, batches):
        self.model.train()
        for batch in batches:
            batch = {
                k: tuple(t.to(DEVICE) for t in v) if isinstance(v, tuple) else v.to(DEVICE)
                for k, v in batch.items()
            }
            loss = self.model(**batch)["loss"]
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        print(f"train loss {loss.item():.4f}")


def get_batch(batch_size=16, visits=12, codes=20):
    times = torch.arange(visits).float().expand(batch_size, visits)
    return {
        "icd_codes": (times, torch.randint(1, 900, (batch_size, visits, codes))),
        "labs": (times, torch.randint(1, 60, (batch_size, visits))),
        "label": torch.randint(0, 2, (batch_size,)),
    }


def main():
    model = StageNet({"icd_codes": 900, "labs": 60})
    Trainer(model).train([get_batch() for _ in range(3)])
    ig = IntegratedGradients(model)
    for i in range(2):
        attributions = ig.attribute(**get_batch(), steps=40, target_class_idx=1)
        top_k = torch.topk(attributions["icd_codes"].flatten(1).abs(), k=3)
        print(
            f"batch {i}: {tuple(attributions['icd_codes'].shape)}, most important {top_k.indices[0].tolist()}"
        )
    print(f"the most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
