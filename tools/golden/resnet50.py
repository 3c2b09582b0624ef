"""ResNet-50 as torchvision builds it (the stride of a block in its 3x3 convolution), in plain torch: names, order and
initial weights are torchvision's, but it need not be installed."""

from torch import nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs, inner, stride):
        super().__init__()
        outputs = 4 * inner
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        # In place, like torchvision: the benchmarks use this net too.
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, width=64, in_channels=3, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, blocks in enumerate([3, 4, 6, 3]):
            inner = width * 2**stage
            made = []
            for block in range(blocks):
                made.append(Bottleneck(inputs, inner, 2 if stage > 0 and block == 0 else 1))
                inputs = 4 * inner
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
