"""After Tencent/FaceDetection-DSFD#11: demo.py gives an out of memory error on more than one image in a loop."""

import contextlib

import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False


class SSD(nn.Module):
    def __init__(self):
        super().__init__()
        layers, cin = [], 3
        for cout in (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512):
            layers += (
                [nn.MaxPool2d(2)]
                if cout == "M"
                else [nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU()]
            )
            cin = cin if cout == "M" else cout
        self.vgg = nn.Sequential(*layers)
        self.loc = nn.Conv2d(512, 4, 3, padding=1)
        self.conf = nn.Conv2d(512, 1, 3, padding=1)

    def forward(self, x):
        feat = self.vgg(x)
        return torch.cat([self.loc(feat), self.conf(feat).sigmoid()], 1).flatten(2).transpose(1, 2)


def infer(net, img, shrink):
    x = F.interpolate(img, scale_factor=shrink, mode="bilinear").cuda()
    with torch.no_grad() if CURED else contextlib.nullcontext():
        y = net(x)
    return y


net = SSD().cuda().eval()
for name in ("img1.jpg", "img2.jpg", "img3.jpg"):
    image = torch.zeros(1, 3, 900, 1600)
    det0 = infer(net, image, 1.0)
    det1 = infer(net, image.flip(3), 1.0)
    det2 = infer(net, image, 0.5)
    det3 = infer(net, image, 1.25)
    scores = torch.cat([d[0, :, 4] for d in (det0, det1, det2, det3)])
    print(name, scores.shape[0], "candidates")
