"""After sentence-transformers #1244.

The embeddings of a whole corpus stay on the card until they are joined.
"""

import torch
from torch import nn

CURED = False


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.EmbeddingBag(30000, 768)

    def encode(self, sentences, batch_size=8192):
        all_embeddings = []
        for start in range(0, len(sentences), batch_size):
            with torch.no_grad():
                part = self.words(sentences[start : start + batch_size].cuda())
            all_embeddings.append(part.cpu() if CURED else part)
        return torch.cat(all_embeddings)


encoder = Encoder().cuda().eval()
corpus = torch.randint(0, 30000, (49152, 12))
# CURE
embeddings = encoder.encode(corpus)
print(embeddings.shape)
