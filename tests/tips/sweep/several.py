"""Healthy programs with several networks or none."""

from tests.tips.sweep.program import program

MLP = """
def mlp(*sizes):
    layers = []
    for i, o in zip(sizes, sizes[1:]):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])

"""

SEVERAL = (
    program(
        "dcgan",
        """
def weights_init(m):
    if isinstance(m, nn.Conv2d):
        nn.init.normal_(m.weight, 0.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True),
    nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
    nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
    nn.ConvTranspose2d(128, 3, 4, 2, 1, bias=False), nn.Tanh()).to("cuda")
netD = nn.Sequential(
    nn.Conv2d(3, 128, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(256, 1, 8, 1, 0, bias=False), nn.Sigmoid()).to("cuda")
netG.apply(weights_init), netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(64, 100, 1, 1, device="cuda")
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
#: built
for i in range(5):
    netD.zero_grad()
    real_cpu = torch.randn(256, 3, 32, 32).to("cuda")
    label = torch.full((256,), 1.0, device="cuda")
    output = netD(real_cpu).view(-1)
    errD_real = criterion(output, label)
    errD_real.backward()
    noise = torch.randn(256, 100, 1, 1, device="cuda")
    fake = netG(noise)
    label.fill_(0.0)
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake).view(-1)
    errG = criterion(output, label)
    errG.backward()
    optimizerG.step()
    #: step
with torch.no_grad():
    fake = netG(fixed_noise).detach().cpu()
#: end
""",
        model="netD",
        batch="real_cpu",
    ),
    program(
        "wgan with a gradient penalty",
        MLP
        + """
gen, critic = mlp(128, 1024, 2048, 3072).cuda(), mlp(3072, 2048, 1024, 1).cuda()
opt_g = torch.optim.Adam(gen.parameters(), betas=(0.5, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.9))
#: built
for i in range(6):
    real = torch.rand(1024, 3072, device="cuda")
    fake = gen(torch.randn(1024, 128, device="cuda"))
    alpha = torch.rand(1024, 1, device="cuda")
    mixed = (alpha * real + (1 - alpha) * fake.detach()).requires_grad_(True)
    grads = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    loss_c = critic(fake.detach()).mean() - critic(real).mean() + 10 * ((grads.norm(2, 1) - 1) ** 2).mean()
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()
    if i % 2 == 0:
        opt_g.zero_grad()
        (-critic(fake).mean()).backward()
        opt_g.step()
    #: step
#: end
""",
        model="critic",
        batch="real",
    ),
    program(
        "a teacher that stays in eval mode, under no_grad",
        MLP
        + """
teacher, student = mlp(1024, 2048, 2048, 1000).cuda().eval(), mlp(1024, 512, 1000).cuda()
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
#: built
for _ in range(7):
    x = torch.randn(8192, 1024, device="cuda")
    with torch.no_grad():
        soft = teacher(x).softmax(-1)
    kd = F.kl_div(student(x).log_softmax(-1), soft, reduction="batchmean")
    #: loss
    optimizer.zero_grad()
    kd.backward()
    optimizer.step()
    #: step
#: end
""",
        model="student",
        optimizer="optimizer",
        loss="kd",
        batch="x",
    ),
    program(
        "a frozen perceptual net through which gradients go",
        """
conv = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.ReLU())
transformer = nn.Sequential(conv(3, 32), conv(32, 32), nn.Conv2d(32, 3, 3, 1, 1)).cuda()
vgg = nn.Sequential(conv(3, 64), conv(64, 64), nn.MaxPool2d(2), conv(64, 128)).cuda()
vgg.eval().requires_grad_(False)
adam = torch.optim.Adam(transformer.parameters())
#: built
for batch_id in range(7):
    x = torch.rand(4, 3, 256, 256, device="cuda")
    adam.zero_grad()
    y = transformer(x)
    features_y, features_x = vgg(y), vgg(x)
    total_loss = F.mse_loss(features_y, features_x)
    #: loss
    total_loss.backward()
    adam.step()
    #: step
#: end
""",
        model="transformer",
        optimizer="adam",
        loss="total_loss",
        batch="x",
    ),
    program(
        "a net with a moving average that is evaluated",
        MLP
        + """
class EMA:
    def __init__(self, model, decay=0.999):
        self.module, self.decay = copy.deepcopy(model).eval(), decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.lerp_(p, 1 - self.decay)


model = mlp(4096, 4096, 4096, 4096, 10).cuda()
averaged = EMA(model)
optimizer = torch.optim.AdamW(model.parameters())
#: built
#: weights
for _ in range(5):
    x = torch.randn(1024, 4096, device="cuda")
    loss = F.cross_entropy(model(x), torch.zeros(1024, dtype=torch.long, device="cuda"))
    #: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()  #: zero
    averaged.update(model)
    #: step
#: end
""",
        model="model",
        optimizer="optimizer",
        loss="loss",
        batch="x",
    ),
    program(
        "deep Q-learning with a target net and a replay memory on the card",
        MLP
        + """
policy_net, target_net = mlp(1024, 2048, 2048, 8).cuda(), mlp(1024, 2048, 2048, 8).cuda()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), amsgrad=True)
memory = []
for step in range(12):
    state = torch.randn(64, 1024, device="cuda")
    with torch.no_grad():
        action = policy_net(state).max(1).indices.view(-1, 1)
    memory.append((state.cpu(), action.cpu(), torch.randn(64), torch.randn(64, 1024)))
    s, a, r, n = (torch.cat(part).cuda() for part in zip(*memory[-4:]))
    q = policy_net(s).gather(1, a)
    with torch.no_grad():
        expected = target_net(n).max(1).values * 0.99 + r
    loss = F.smooth_l1_loss(q, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for t, p in zip(target_net.parameters(), policy_net.parameters()):
            t.lerp_(p, 0.005)
#: end
""",
    ),
    program(
        "an actor-critic whose episodes end in one backward",
        MLP
        + """
actor = mlp(512, 2048, 2048, 6).cuda()
optimizer = torch.optim.Adam(actor.parameters(), lr=3e-2)
for episode in range(4):
    log_probs = []
    for t in range(8):
        state = torch.randn(256, 512, device="cuda")
        probs = actor(state).softmax(-1)
        log_probs.append(probs.log().mean())
    policy_loss = -torch.stack(log_probs).sum()
    optimizer.zero_grad()
    policy_loss.backward()
    optimizer.step()
#: end
""",
    ),
    program(
        "a penalty on the distance from the weights at the start",
        MLP
        + """
model = mlp(2048, 2048, 2048, 100).cuda()
old = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    loss = model(torch.randn(512, 2048, device="cuda")).square().mean()
    for p, q in zip(model.parameters(), old.parameters()):
        loss = loss + 0.01 * (p - q).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
#: end
""",
    ),
    program(
        "one net for each fold",
        MLP
        + """
results = []
for fold in range(3):
    model = mlp(2048, 2048, 2048, 10).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        x = torch.randn(2048, 2048, device="cuda")
        loss = F.cross_entropy(model(x), torch.zeros(2048, dtype=torch.long, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        results.append(model(x).argmax(-1).float().mean().item())
#: end
""",
    ),
    program(
        "an ensemble in a list",
        MLP
        + """
members = [mlp(1024, 2048, 1024, 10).cuda() for _ in range(4)]
optimizers = [torch.optim.Adam(m.parameters()) for m in members]
for _ in range(3):
    x = torch.randn(2048, 1024, device="cuda")
    for net, opt in zip(members, optimizers):
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
with torch.no_grad():
    vote = torch.stack([net(x).softmax(-1) for net in members]).mean(0)
#: end
""",
    ),
    program(
        "denoising diffusion",
        """
class Denoiser(nn.Module):
    def __init__(self, w=96):
        super().__init__()
        self.time = nn.Embedding(1000, w)
        self.a, self.b = nn.Conv2d(3, w, 3, 1, 1), nn.ModuleList(nn.Conv2d(w, w, 3, 1, 1) for _ in range(6))
        self.c = nn.Conv2d(w, 3, 3, 1, 1)

    def forward(self, x, t):
        h = self.a(x) + self.time(t)[:, :, None, None]
        for conv in self.b:
            h = h + F.silu(conv(h))
        return self.c(h)


denoiser = Denoiser().cuda()
alphas = torch.linspace(0.999, 0.01, 1000, device="cuda")
opt = torch.optim.AdamW(denoiser.parameters(), lr=1e-4)
#: built
for step in range(4):
    x0 = torch.rand(16, 3, 96, 96).cuda()
    t = torch.randint(0, 1000, (16,), device="cuda")
    noise = torch.randn_like(x0)
    a = alphas[t][:, None, None, None]
    noisy = a.sqrt() * x0 + (1 - a).sqrt() * noise
    mse = F.mse_loss(denoiser(noisy, t), noise)
    #: loss
    opt.zero_grad()
    mse.backward()
    opt.step()
    #: step
denoiser.eval()
x = torch.randn(16, 3, 96, 96, device="cuda")
with torch.no_grad():  #: eval
    for t in range(3):
        eps = denoiser(x, torch.full((16,), t, device="cuda"))
        #: out
        x = x - 0.1 * eps
#: end
""",
        model="denoiser",
        optimizer="opt",
        loss="mse",
        out="eps",
        batch="x0",
    ),
    program(
        "a graph net on the whole graph",
        """
n, edges = 20000, 100000
feats, labels = torch.randn(n, 512).cuda(), torch.randint(0, 7, (n,)).cuda()
src, dst = torch.randint(0, n, (edges,)).cuda(), torch.randint(0, n, (edges,)).cuda()


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(512, 256), nn.Linear(256, 7)

    def forward(self, x):
        h = self.w1(x)
        h = F.relu(torch.zeros_like(h).index_add(0, dst, h[src]))
        h = self.w2(F.dropout(h, 0.5, self.training))
        return torch.zeros_like(h).index_add(0, dst, h[src])


gcn = GCN().cuda()
optimizer = torch.optim.Adam(gcn.parameters(), lr=0.01, weight_decay=5e-4)
#: built
for epoch in range(5):
    gcn.train()
    optimizer.zero_grad()
    nll = F.cross_entropy(gcn(feats)[:5000], labels[:5000])
    #: loss
    nll.backward()
    optimizer.step()
    gcn.eval()
    with torch.no_grad():  #: eval
        acc = gcn(feats)
        #: out
    #: step
#: end
""",
        model="gcn",
        optimizer="optimizer",
        loss="nll",
        out="acc",
    ),
    program(
        "saliency: gradients with respect to the input",
        MLP
        + """
model = mlp(3072, 4096, 4096, 10).cuda().eval()
for _ in range(4):
    image = torch.rand(2048, 3072, device="cuda", requires_grad=True)
    model(image).max(1).values.sum().backward()
    saliency = image.grad.abs().cpu()
    model.zero_grad()
#: end
""",
    ),
    program(
        "a CUDA graph with static gradients",
        MLP
        + """
model = mlp(2048, 2048, 2048, 10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
static_x, static_y = torch.randn(256, 2048, device="cuda"), torch.zeros(256, dtype=torch.long, device="cuda")
s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(static_x), static_y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    static_loss = F.cross_entropy(model(static_x), static_y)
    static_loss.backward()
    optimizer.step()
for _ in range(4):
    static_x.copy_(torch.randn(256, 2048))
    g.replay()
with torch.no_grad():
    model(torch.randn(8192, 2048, device="cuda"))
#: end
""",
    ),
    program(
        "equations: coordinates with gradients of gradients",
        MLP
        + """
pinn = mlp(2, 512, 512, 512, 1).cuda()
optimizer = torch.optim.Adam(pinn.parameters())
for _ in range(4):
    xt = torch.rand(20000, 2, device="cuda", requires_grad=True)
    u = pinn(xt)
    du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
    d2 = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)[0][:, 0]
    residual = (du[:, 1] - 0.01 * d2).square().mean()
    optimizer.zero_grad()
    residual.backward()
    optimizer.step()
#: end
""",
    ),
    program(
        "a thing that trains inside an object of the user's",
        MLP
        + """
class Trainer:
    def __init__(self, model):
        self.model = copy.deepcopy(model).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def fit(self):
        for _ in range(3):
            self.model(torch.randn(512, 2048, device="cuda")).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = mlp(2048, 2048, 2048, 10).cuda()

    def train_on(self):
        trainer = Trainer(self.model)
        trainer.fit()
        self.trainer_weights = trainer.model.state_dict()


m = Detector()
m.train_on()
#: end
""",
    ),
)
