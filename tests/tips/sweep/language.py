"""Healthy programs for text and sequences."""

from tests.tips.sweep.program import program

GPT = """
class GPTBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n), nn.LayerNorm(n)
        self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.fc, self.out, self.n = nn.Linear(n, 4 * n), nn.Linear(4 * n, n), n

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, 8, c // 8).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(self.n, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, n=384, layers=6, vocab=8192, block=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n), nn.Embedding(block, n)
        self.h = nn.ModuleList(GPTBlock(n) for _ in range(layers))
        self.head = nn.Linear(n, vocab, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(rows=8, t=256):
    data = torch.randint(0, 8192, (rows, t + 1))
    return data[:, :-1].cuda(), data[:, 1:].cuda()

"""

LANGUAGE = (
    program(
        "a small GPT with accumulation, clipping and estimate_loss()",
        GPT
        + """
model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cuda", enabled=False)
ctx = torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16)
#: built
#: weights


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(3)
        for k in range(3):
            X, Y = get_batch()
            with ctx:
                logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch()
iter_num = 0
while iter_num < 6:
    if iter_num % 2 == 0:
        estimate_loss()
    for micro_step in range(3):
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / 3
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    lossf = loss.item() * 3
    iter_num += 1
    #: step
#: end
""",
        model="model",
        optimizer="optimizer",
        loss="loss",
        batch="X",
    ),
    program(
        "a GPT in float32, other names",
        GPT
        + """
lm = GPT(layers=8).cuda()
opt = torch.optim.AdamW(lm.parameters())
#: built
#: weights
for it in range(5):
    lm.train()
    xb, yb = get_batch()
    logits, nll = lm(xb, yb)
    #: loss
    opt.zero_grad(set_to_none=True)
    nll.backward()
    opt.step()
    #: step
lm.eval()
with torch.no_grad():  #: eval
    for _ in range(4):
        guess, _ = lm(get_batch(16)[0])
        #: out
#: end
""",
        model="lm",
        optimizer="opt",
        loss="nll",
        out="guess",
        batch="xb",
    ),
    program(
        "text that is generated token by token",
        GPT
        + """
gpt = GPT().cuda().eval()
idx = torch.zeros((4, 1), dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(24):
        logits, _ = gpt(idx)
        probs = F.softmax(logits[:, -1, :], dim=-1)
        idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
#: end
""",
    ),
    program(
        "sequences of every length, padded per batch",
        GPT
        + """
translator = GPT(256, 4).cuda()
optimizer = torch.optim.Adam(translator.parameters(), betas=(0.9, 0.98))
#: built
for length in (120, 96, 200, 64, 256, 180, 140, 230, 100, 250):
    x, y = get_batch(16, length)
    out, loss = translator(x, y)
    #: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    #: step
#: end
""",
        model="translator",
        optimizer="optimizer",
        loss="loss",
        batch="x",
    ),
    program(
        "a recurrent language model, hidden state carried on",
        """
class RNNModel(nn.Module):
    def __init__(self, ntoken=6000, ninp=400, nhid=400, nlayers=2):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(ntoken, ninp)
        self.rnn, self.decoder = nn.LSTM(ninp, nhid, nlayers, dropout=0.2), nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        return F.log_softmax(self.decoder(self.drop(output)).flatten(0, 1), dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid))


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


model = RNNModel().to("cuda")
criterion = nn.NLLLoss()
#: built
#: weights
train_data = torch.randint(0, 6000, (36 * 6, 40)).cuda()


def evaluate():
    model.eval()
    total_loss = 0.
    hidden = model.init_hidden(40)
    with torch.no_grad():  #: eval
        for i in range(0, 72, 35):
            output, hidden = model(train_data[i:i + 35], hidden)
            hidden = repackage_hidden(hidden)
            total_loss += criterion(output, train_data[i + 1:i + 36].flatten()).item()
    return total_loss


hidden = model.init_hidden(40)
model.train()
for i in range(0, 175, 35):
    data, targets = train_data[i:i + 35], train_data[i + 1:i + 36].flatten()
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-20)
    #: step
evaluate()
#: end
""",
        model="model",
        loss="loss",
        batch="data",
    ),
    program(
        "low-rank adapters beside frozen weights",
        """
class Lora(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


peft_model = nn.Sequential(*(nn.Sequential(Lora(nn.Linear(2048, 2048)), nn.GELU()) for _ in range(6))).cuda()
trainable = [p for p in peft_model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=2e-4)
#: built
#: weights
for _ in range(5):
    tokens = torch.randn(2048, 2048, device="cuda")
    loss = peft_model(tokens).square().mean()
    #: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    #: step
peft_model.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        answer = peft_model(torch.randn(2048, 2048, device="cuda"))
        #: out
#: end
""",
        model="peft_model",
        optimizer="optimizer",
        loss="loss",
        out="answer",
        batch="tokens",
    ),
    program(
        "transformers: BERT by hand, with a scheduler",
        """
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

config = BertConfig(hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
bert = BertForSequenceClassification(config).cuda()
optim = torch.optim.AdamW(bert.parameters(), lr=5e-5)
scheduler = get_linear_schedule_with_warmup(optim, 0, 6)
#: built
#: weights
for _ in range(5):
    batch = {"input_ids": torch.randint(0, 30000, (16, 128)).cuda(),
             "attention_mask": torch.ones(16, 128, dtype=torch.long).cuda(),
             "labels": torch.randint(0, 2, (16,)).cuda()}
    outputs = bert(**batch)
    loss = outputs.loss
    #: loss
    loss.backward()
    optim.step()
    scheduler.step()
    optim.zero_grad()
    #: step
bert.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        res = bert(input_ids=torch.randint(0, 30000, (32, 128)).cuda()).logits
        #: out
#: end
""",
        model="bert",
        optimizer="optim",
        loss="loss",
        out="res",
        needs=("transformers",),
    ),
    program(
        "transformers: GPT-2, one step with its Trainer's habits",
        """
from transformers import GPT2Config, GPT2LMHeadModel

gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=384, n_head=6)).cuda()
optimizer = torch.optim.AdamW(gpt2.parameters())
for _ in range(3):
    ids = torch.randint(0, 50000, (4, 128)).cuda()
    out = gpt2(input_ids=ids, labels=ids)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(gpt2.parameters(), 1.0)
    optimizer.step()
    gpt2.zero_grad()
gpt2.eval()
text = gpt2.generate(ids[:, :16], max_new_tokens=8, do_sample=False)
#: end
""",
        needs=("transformers",),
    ),
)
