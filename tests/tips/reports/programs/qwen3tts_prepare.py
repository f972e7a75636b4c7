"""After QwenLM/Qwen3-TTS#5: turn a training list of recordings into codec tokens before fine-tuning."""

import torch
from torch import nn

CURED = False
BATCH_INFER_NUM = 16


class Tokenizer(nn.Module):
    def __init__(self, d=256, codebook=2048):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 32, 16, stride=8), nn.GELU(), nn.Conv1d(32, d, 16, stride=8), nn.GELU()
        )
        self.codebook = nn.Embedding(codebook, d)

    @torch.inference_mode()
    def encode(self, audios):
        wavs = nn.utils.rnn.pad_sequence(audios, batch_first=True).cuda()
        latent = self.encoder(wavs[:, None]).transpose(1, 2)
        return (latent @ self.codebook.weight.T).argmax(-1)


def prepare(tokenizer, lines):
    final_lines, batch_lines, batch_audios = [], [], []
    for line in lines:
        batch_lines.append(line)
        batch_audios.append(line["audio"])
        if len(batch_lines) >= BATCH_INFER_NUM:
            audio_codes = tokenizer.encode(batch_audios)
            for code, l in zip(audio_codes, batch_lines):
                l["audio_codes"] = code.cpu()
                final_lines.append(l)
            if CURED:
                batch_lines, batch_audios = [], []
            # CURE
    if batch_lines:
        audio_codes = tokenizer.encode(batch_audios)
        for code, l in zip(audio_codes, batch_lines):
            l["audio_codes"] = code.cpu()
            final_lines.append(l)
    return final_lines


tokenizer = Tokenizer().cuda()
total_lines = [{"text": str(i), "audio": torch.zeros(40000 + 500 * i)} for i in range(64)]
print(len(prepare(tokenizer, total_lines)))
