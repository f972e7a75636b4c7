"""After apple-aiml-research/ml-simplefold#36: several samples of one protein run out of memory."""

import torch
from torch import nn
from torch.nn import functional as F

CURED = False
ESM_DIM, ESM_LAYERS, ESM_HEADS, RESIDUES, ATOMS = 1280, 33, 20, 1024, 8
DIM, DEPTH, HEADS, NUM_STEPS, NSAMPLE_PER_PROTEIN = 768, 8, 12, 4, 5


class TransformerBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(dim), nn.LayerNorm(dim), heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class ESM2(nn.Module):
    """The language model of proteins; gives what every layer thinks of every residue"""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(33, ESM_DIM)
        self.layers = nn.ModuleList(TransformerBlock(ESM_DIM, ESM_HEADS) for _ in range(ESM_LAYERS))

    def forward(self, aatype):
        x = self.embed_tokens(aatype)
        representations = [x]
        for layer in self.layers:
            x = layer(x)
            representations.append(x)
        return representations


class FoldingDiT(nn.Module):
    """Predicts the velocity of all atoms"""

    def __init__(self):
        super().__init__()
        self.esm_s_combine = nn.Parameter(torch.zeros(ESM_LAYERS + 1))
        self.esm_proj, self.aatype_emb = nn.Linear(ESM_DIM, DIM), nn.Embedding(33, DIM)
        self.atom_in = nn.Linear(3 * ATOMS, DIM)
        self.trunk = nn.Sequential(*(TransformerBlock(DIM, HEADS) for _ in range(DEPTH)))
        self.atom_out = nn.Linear(DIM, 3 * ATOMS)

    def forward(self, noised_pos, t, feats):
        esm_s = torch.einsum("blkd,k->bld", feats["esm_s"], self.esm_s_combine.softmax(0))
        h = self.esm_proj(esm_s) + self.aatype_emb(feats["aatype"])
        h = h + self.atom_in(noised_pos.flatten(2)) + t
        return self.atom_out(self.trunk(h)).unflatten(-1, (ATOMS, 3))


class EMSampler:
    def __init__(self, num_timesteps):
        self.steps = torch.linspace(0, 1, num_timesteps + 1).tolist()

    @torch.no_grad()
    def sample(self, model_fn, noise, batch):
        y = noise
        for t, t_next in zip(self.steps, self.steps[1:]):
            y = y + model_fn(noised_pos=y, t=t, feats=batch) * (t_next - t)
        return y


class ProteinDataProcessor:
    def __init__(self, device, esm_model, inference_multiplicity=1):
        self.device, self.esm_model = device, esm_model
        self.inference_multiplicity = inference_multiplicity

    def batch_to_device(self, batch, multiplicity=1):
        for key, value in batch.items():
            batch[key] = value.repeat_interleave(multiplicity, dim=0).to(self.device)
        return batch

    @torch.no_grad()
    def compute_esm(self, aatype):
        representations = self.esm_model(aatype.to(self.device))
        return torch.stack([r.cpu() for r in representations], dim=2).float()

    def preprocess_inference(self, batch):
        batch["esm_s"] = self.compute_esm(batch["aatype"])
        return self.batch_to_device(batch, self.inference_multiplicity)


class InferenceWrapper:
    def __init__(self, nsample_per_protein, device="cuda"):
        self.nsample_per_protein, self.device = nsample_per_protein, device
        self.model = FoldingDiT().to(device).eval()
        esm_model = ESM2().to(device, torch.float16).eval()
        self.sampler = EMSampler(NUM_STEPS)
        multiplicity = 1 if CURED else nsample_per_protein
        self.processor = ProteinDataProcessor(device, esm_model, multiplicity)

    def generate_structure(self, batch):
        shape = (len(batch["aatype"]), RESIDUES, ATOMS, 3)
        noise = torch.randn(shape, device=self.device)
        return self.sampler.sample(self.model, noise, batch).cpu()

    def run_inference(self, batch):
        batch = self.processor.preprocess_inference(batch)
        if CURED:
            samples = [self.generate_structure(batch) for _ in range(self.nsample_per_protein)]
            return torch.cat(samples)
        return self.generate_structure(batch)


def predict_structures_from_fastas(sequences):
    inference = InferenceWrapper(NSAMPLE_PER_PROTEIN)
    for sequence in sequences:
        aatype = torch.tensor([[ord(residue) - 64 for residue in sequence]])
        structures = inference.run_inference({"aatype": aatype})
        print("structures", tuple(structures.shape))


predict_structures_from_fastas(["MK" * (RESIDUES // 2), "GA" * (RESIDUES // 2)])
