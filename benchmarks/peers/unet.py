"""The U-Net that the peers train, the same as trestle/models/unet.h: plain, and as torchgpipe's layers in a row."""
import torch
from torch import nn
from torch.nn import functional as F


class DoubleConv(nn.Module):
    def __init__(self, inputs, outputs, pool=False):
        super().__init__()
        self.pool = pool
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)

    def forward(self, x):
        if self.pool:
            x = F.max_pool2d(x, 2)
        x = self.norm1(self.conv1(x)).relu_()
        return self.norm2(self.conv2(x)).relu_()


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.enter = DoubleConv(3, width)
        self.down = nn.ModuleList(DoubleConv(a, b, pool=True) for a, b in zip(widths, widths[1:]))
        pairs = list(zip(widths, widths[1:]))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(DoubleConv(b, a) for a, b in pairs)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        skips = []
        x = self.enter(x)
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


def loss_of(scores, target):
    """Cross-entropy + dice over the whole batch."""
    probability = torch.softmax(scores, 1)
    truth = torch.zeros_like(probability).scatter_(1, target.unsqueeze(1), 1.0)
    common = (probability * truth).sum((0, 2, 3))
    sums = probability.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    dice = (2 * common + 1e-6) / (sums + 1e-6)
    return F.cross_entropy(scores, target) + 1 - dice.mean()


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-5, weight_decay=1e-8, momentum=0.9)
