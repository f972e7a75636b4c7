"""After tzt101/CLADE#1: out of memory with --norm_mode clade, which should be lighter than SPADE."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"


class ClassAffine(nn.Module):
    def __init__(self, label_nc, affine_nc):
        super().__init__()
        self.affine_nc, self.label_nc = affine_nc, label_nc
        self.weight = nn.Parameter(torch.empty(label_nc, affine_nc))
        self.bias = nn.Parameter(torch.empty(label_nc, affine_nc))
        nn.init.uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def affine_gather(self, input, mask):
        n, c, h, w = input.shape
        mask2 = torch.argmax(mask, 1)  # [n, h, w]
        mask2 = mask2.view(n, h * w).long()
        mask2 = mask2.unsqueeze(1).expand(n, self.affine_nc, h * w)  # [n, nc, hw]
        weight2 = torch.unsqueeze(self.weight, 2).expand(
            self.label_nc, self.affine_nc, h * w
        )  # [cls, nc, hw]
        bias2 = torch.unsqueeze(self.bias, 2).expand(self.label_nc, self.affine_nc, h * w)
        class_weight = torch.gather(weight2, 0, mask2).view(n, self.affine_nc, h, w)
        class_bias = torch.gather(bias2, 0, mask2).view(n, self.affine_nc, h, w)
        return class_weight, class_bias

    def affine_embed(self, mask):
        arg_mask = torch.argmax(mask, 1).long()  # [n, h, w]
        class_weight = F.embedding(arg_mask, self.weight).permute(0, 3, 1, 2)  # [n, c, h, w]
        class_bias = F.embedding(arg_mask, self.bias).permute(0, 3, 1, 2)
        return class_weight, class_bias

    def forward(self, input, mask):
        if CURED:
            class_weight, class_bias = self.affine_embed(mask)
        else:
            class_weight, class_bias = self.affine_gather(input, mask)
        return input * class_weight + class_bias


class SPADELight(nn.Module):
    def __init__(self, norm_nc, label_nc):
        super().__init__()
        self.param_free_norm = nn.InstanceNorm2d(norm_nc, affine=False)
        self.class_specified_affine = ClassAffine(label_nc, norm_nc)

    def forward(self, x, segmap):
        normalized = self.param_free_norm(x)
        segmap = F.interpolate(segmap, size=x.size()[2:], mode="nearest")
        return self.class_specified_affine(normalized, segmap)


class SPADEResnetBlock(nn.Module):
    def __init__(self, fin, fout, label_nc):
        super().__init__()
        self.learned_shortcut = fin != fout
        fmiddle = min(fin, fout)
        self.conv_0 = nn.Conv2d(fin, fmiddle, 3, padding=1)
        self.conv_1 = nn.Conv2d(fmiddle, fout, 3, padding=1)
        self.norm_0, self.norm_1 = SPADELight(fin, label_nc), SPADELight(fmiddle, label_nc)
        if self.learned_shortcut:
            self.conv_s = nn.Conv2d(fin, fout, 1, bias=False)
            self.norm_s = SPADELight(fin, label_nc)

    def forward(self, x, seg):
        x_s = self.conv_s(self.norm_s(x, seg)) if self.learned_shortcut else x
        dx = self.conv_0(F.leaky_relu(self.norm_0(x, seg), 2e-1))
        dx = self.conv_1(F.leaky_relu(self.norm_1(dx, seg), 2e-1))
        return x_s + dx


class SPADEGenerator(nn.Module):
    def __init__(self, label_nc, nf=8, sw=8):
        super().__init__()
        self.sw = sw
        self.fc = nn.Conv2d(label_nc, 8 * nf, 3, padding=1)
        self.head_0 = SPADEResnetBlock(8 * nf, 8 * nf, label_nc)
        self.up_0 = SPADEResnetBlock(8 * nf, 4 * nf, label_nc)
        self.up_1 = SPADEResnetBlock(4 * nf, 2 * nf, label_nc)
        self.up_2 = SPADEResnetBlock(2 * nf, nf, label_nc)
        self.conv_img = nn.Conv2d(nf, 3, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, seg):
        x = self.head_0(self.fc(F.interpolate(seg, size=(self.sw, self.sw))), seg)
        x = self.up_0(self.up(x), seg)
        x = self.up_1(self.up(x), seg)
        x = self.up_2(self.up(self.up(x)), seg)
        return torch.tanh(self.conv_img(F.leaky_relu(x, 2e-1)))


class Pix2PixModel(nn.Module):
    def __init__(self, label_nc):
        super().__init__()
        self.label_nc = label_nc
        self.netG = SPADEGenerator(label_nc)
        self.netD = nn.Sequential(
            nn.Conv2d(label_nc + 3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4, 2, 1)
        )

    def preprocess_input(self, data):
        label_map = data["label"].long().to(DEVICE)
        bs, _, h, w = label_map.size()
        input_semantics = torch.zeros(bs, self.label_nc, h, w, device=DEVICE).scatter_(
            1, label_map, 1.0
        )
        return input_semantics, data["image"].to(DEVICE)

    def forward(self, data, mode):
        input_semantics, real_image = self.preprocess_input(data)
        if mode == "generator":
            fake_image = self.netG(input_semantics)
            pred_fake = self.netD(torch.cat([input_semantics, fake_image], dim=1))
            return -pred_fake.mean() + 10 * F.l1_loss(fake_image, real_image)
        with torch.no_grad():
            fake_image = self.netG(input_semantics)
        pred_fake = self.netD(torch.cat([input_semantics, fake_image], dim=1))
        pred_real = self.netD(torch.cat([input_semantics, real_image], dim=1))
        return F.relu(1 + pred_fake).mean() + F.relu(1 - pred_real).mean()


class Pix2PixTrainer:
    def __init__(self, label_nc):
        self.pix2pix_model = Pix2PixModel(label_nc).to(DEVICE)
        self.optimizer_G = torch.optim.Adam(
            self.pix2pix_model.netG.parameters(), lr=1e-4, betas=(0.0, 0.9)
        )
        self.optimizer_D = torch.optim.Adam(
            self.pix2pix_model.netD.parameters(), lr=4e-4, betas=(0.0, 0.9)
        )

    def run_generator_one_step(self, data):
        self.optimizer_G.zero_grad()
        self.g_loss = self.pix2pix_model(data, mode="generator")
        self.g_loss.backward()
        self.optimizer_G.step()

    def run_discriminator_one_step(self, data):
        self.optimizer_D.zero_grad()
        self.d_loss = self.pix2pix_model(data, mode="discriminator")
        self.d_loss.backward()
        self.optimizer_D.step()


def main():
    label_nc = 51
    trainer = Pix2PixTrainer(label_nc)
    for i in range(2):
        data_i = {
            "label": torch.randint(0, label_nc, (1, 1, 128, 128)),
            "image": torch.rand(1, 3, 128, 128) * 2 - 1,
        }
        trainer.run_generator_one_step(data_i)
        trainer.run_discriminator_one_step(data_i)
        print(f"iteration {i} G {trainer.g_loss.item():.3f} D {trainer.d_loss.item():.3f}")


if __name__ == "__main__":
    main()
