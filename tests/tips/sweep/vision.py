"""Healthy programs for images."""

from tests.tips.sweep.program import program

BLOCK = """
class Block(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.down = nn.Conv2d(i, o, 1, stride) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    def __init__(self, width=64, classes=100):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3)
        self.layers = nn.Sequential(
            Block(width, width), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
            Block(4 * width, 8 * width, 2),
        )
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        return self.fc(self.layers(F.relu(self.stem(x))).mean((2, 3)))

"""

VISION = (
    program(
        "mnist, functions train() and test()",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


def train(model, device, optimizer, epoch):
    model.train()
    for batch_idx in range(6):
        data, target = torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,))
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()


def test(model, device):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():  #: eval
        for _ in range(3):
            data = torch.randn(1000, 1, 28, 28).to(device)
            target = torch.randint(0, 10, (1000,)).to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1, keepdim=True).eq(target.view(-1, 1)).sum().item()


device = torch.device("cuda")
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
#: built
for epoch in range(1, 3):
    train(model, device, optimizer, epoch)
    test(model, device)
#: end
""",
        model="model",
        optimizer="optimizer",
    ),
    program(
        "a residual net in the notebook's own names",
        BLOCK
        + """
net = ResNet().cuda()
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.StepLR(opt, 2)
#: built
for epoch in range(2):
    net.train()
    for i in range(4):
        x, y = torch.randn(24, 3, 224, 224).cuda(), torch.randint(0, 100, (24,)).cuda()
        logits = net(x)
        l = F.cross_entropy(logits, y)
        #: loss
        l.backward()
        opt.step()
        opt.zero_grad()
        #: step
    sched.step()
    net.eval()
    with torch.no_grad():  #: eval
        for i in range(3):
            pred = net(torch.randn(48, 3, 224, 224).cuda())
            #: out
#: end
""",
        model="net",
        optimizer="opt",
        loss="l",
        out="pred",
        batch="x",
    ),
    program(
        "a frozen backbone with a head of its own",
        BLOCK
        + """
backbone, head = ResNet().cuda(), nn.Linear(100, 5).cuda()
for p in backbone.parameters():
    p.requires_grad_(False)
backbone.eval()
optim = torch.optim.Adam(head.parameters())
#: built
for it in range(5):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    error = F.cross_entropy(head(backbone(images)), torch.randint(0, 5, (32,), device="cuda"))
    optim.zero_grad()
    error.backward()
    optim.step()
#: end
""",
        optimizer="optim",
        loss="error",
        batch="images",
    ),
    program(
        "features of a frozen net without no_grad",
        BLOCK
        + """
encoder = ResNet().cuda().eval().requires_grad_(False)
features = []
for _ in range(5):
    features.append(encoder(torch.randn(48, 3, 224, 224, device="cuda")).cpu())
#: end
""",
    ),
    program(
        "prediction under inference_mode, half precision",
        BLOCK
        + """
classifier = ResNet(96).half().cuda().eval()
with torch.inference_mode():
    for _ in range(5):
        top = classifier(torch.randn(96, 3, 224, 224, device="cuda").half()).softmax(-1).cpu()
#: end
""",
    ),
    program(
        "a variational autoencoder",
        """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(3072, 2048), nn.Linear(2048, 64), nn.Linear(2048, 64)
        self.fc3, self.fc4 = nn.Linear(64, 2048), nn.Linear(2048, 3072)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        h1 = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h1), self.fc22(h1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decode(z), mu, logvar


vae = VAE().cuda()
adam = torch.optim.Adam(vae.parameters(), lr=1e-3)
#: built
#: weights
train_loss = 0
for i in range(6):
    data = torch.rand(4096, 3072).cuda()
    adam.zero_grad()
    recon, mu, logvar = vae(data)
    elbo = F.binary_cross_entropy(recon, data, reduction="sum")
    elbo = elbo - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    #: loss
    elbo.backward()
    train_loss += elbo.item()
    adam.step()
    #: step
with torch.no_grad():
    sample = vae.decode(torch.randn(64, 64).cuda()).cpu()
#: end
""",
        model="vae",
        optimizer="adam",
        loss="elbo",
        batch="data",
    ),
    program(
        "a style that is optimized into a picture, LBFGS",
        """
cnn = nn.Sequential(*(nn.Sequential(nn.Conv2d(3 if i == 0 else 64, 64, 3, 1, 1), nn.ReLU())
                      for i in range(5))).cuda().eval().requires_grad_(False)
content = torch.rand(1, 3, 512, 512, device="cuda")
with torch.no_grad():
    target = cnn(content)
img = content.clone().requires_grad_(True)
lbfgs = torch.optim.LBFGS([img], max_iter=3)
for run in range(3):
    def closure():
        lbfgs.zero_grad()
        score = F.mse_loss(cnn(img), target)
        score.backward()
        return score
    lbfgs.step(closure)
#: end
""",
    ),
    program(
        "super resolution, the older zero_grad at the loop's head",
        """
class Net(nn.Module):
    def __init__(self, upscale):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(1, 64, 5, 1, 2), nn.Conv2d(64, 64, 3, 1, 1),
                                    nn.Conv2d(64, 32, 3, 1, 1)])
        self.last, self.shuffle = nn.Conv2d(32, upscale**2, 3, 1, 1), nn.PixelShuffle(upscale)

    def forward(self, x):
        for conv in self.convs:
            x = F.relu(conv(x))
        return self.shuffle(self.last(x))


model = Net(3).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
#: built
for epoch in range(3):
    epoch_loss = 0
    model.train()
    for iteration in range(3):
        input, target = torch.rand(8, 1, 128, 128).cuda(), torch.rand(8, 1, 384, 384).cuda()
        optimizer.zero_grad()
        loss = F.mse_loss(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()
        #: step
    avg_psnr = 0
    model.eval()
    with torch.no_grad():  #: eval
        for _ in range(2):
            prediction = model(torch.rand(32, 1, 128, 128).cuda())
            #: out
            avg_psnr += prediction.mean().item()
#: end
""",
        model="model",
        optimizer="optimizer",
        loss="loss",
        out="prediction",
        batch="input",
    ),
    program(
        "pictures that grow from epoch to epoch",
        BLOCK
        + """
model = ResNet(48).cuda()
optimizer = torch.optim.AdamW(model.parameters())
#: built
for size in (96, 128, 160, 224):
    for _ in range(3):
        x = torch.randn(16, 3, size, size, device="cuda")
        loss = F.cross_entropy(model(x), torch.zeros(16, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        #: step
#: end
""",
        model="model",
        optimizer="optimizer",
        loss="loss",
        batch="x",
    ),
    program(
        "a U-Net under autocast with a scaler",
        """
class UNet(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        def double(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
                                 nn.Conv2d(o, o, 3, 1, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True))
        self.d1, self.d2, self.mid = double(3, w), double(w, 2 * w), double(2 * w, 4 * w)
        self.u2, self.c2 = nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), double(4 * w, 2 * w)
        self.u1, self.c1 = nn.ConvTranspose2d(2 * w, w, 2, 2), double(2 * w, w)
        self.out = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.mid(F.max_pool2d(b, 2))
        b = self.c2(torch.cat([b, self.u2(c)], 1))
        return self.out(self.c1(torch.cat([a, self.u1(b)], 1)))


unet = UNet().cuda()
optimizer = torch.optim.RMSprop(unet.parameters(), lr=1e-5, momentum=0.999)
grad_scaler = torch.amp.GradScaler("cuda")
#: built
for epoch in range(2):
    unet.train()
    for step in range(3):
        images = torch.randn(4, 3, 256, 256).cuda()
        masks = torch.randint(0, 2, (4, 256, 256)).cuda()
        with torch.autocast("cuda"):
            masks_pred = unet(images)
            loss = F.cross_entropy(masks_pred, masks)
        #: loss
        optimizer.zero_grad(set_to_none=True)
        grad_scaler.scale(loss).backward()
        grad_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        grad_scaler.step(optimizer)
        grad_scaler.update()
        #: step
    unet.eval()
    with torch.inference_mode():  #: eval
        for _ in range(2):
            dice = unet(torch.randn(8, 3, 256, 256).cuda())
            #: out
#: end
""",
        model="unet",
        optimizer="optimizer",
        loss="loss",
        out="dice",
        batch="images",
    ),
    program(
        "evaluation in batches eight times as large",
        BLOCK
        + """
resnet = ResNet(32).cuda()
sgd = torch.optim.SGD(resnet.parameters(), 0.01, momentum=0.9)
#: built
for epoch in range(3):
    resnet.train()
    for _ in range(4):
        inputs = torch.randn(16, 3, 192, 192, device="cuda")
        criterion = F.cross_entropy(resnet(inputs), torch.zeros(16, dtype=torch.long).cuda())
        #: loss
        sgd.zero_grad()
        criterion.backward()
        sgd.step()
        #: step
    resnet.eval()
    with torch.no_grad():  #: eval
        for rows in (128, 128, 40):
            scores = resnet(torch.randn(rows, 3, 192, 192, device="cuda"))
            #: out
#: end
""",
        model="resnet",
        optimizer="sgd",
        loss="criterion",
        out="scores",
        batch="inputs",
    ),
)
