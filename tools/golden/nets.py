"""The nets of trestle/models, in Python: each is a list of layers with named skips, and a function to run it.

Layers, parameter names and their order are those of the C++ models. The golden fixtures and the benchmarks' peers use
these nets; torchgpipe_nets.py converts them for torchgpipe.
"""

import torch
from torch import nn
import torch.nn.functional as F


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


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


def pad_and_join(x, skip):
    rows = skip.size(2) - x.size(2)
    columns = skip.size(3) - x.size(3)
    if rows or columns:
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
    return torch.cat([skip, x], 1)


class DoubleConv3d(nn.Module):
    def __init__(self, inputs, outputs, pool=None):
        super().__init__()
        self.pool = pool
        self.conv1 = nn.Conv3d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm3d(outputs)
        self.conv2 = nn.Conv3d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm3d(outputs)

    def forward(self, x):
        if self.pool:
            x = F.max_pool3d(x, self.pool)
        x = self.norm1(self.conv1(x)).relu_()
        return self.norm2(self.conv2(x)).relu_()


def pad_and_join_volumes(x, skip):
    padding = []
    for dimension in (4, 3, 2):
        missing = skip.size(dimension) - x.size(dimension)
        padding += [missing // 2, missing - missing // 2]
    return torch.cat([skip, F.pad(x, padding) if any(padding) else x], 1)


class DownsampleAdd(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x, identity):
        return x + self.norm(self.conv(identity))


class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(3 * width, width)

    def forward(self, x, first, second):
        return torch.tanh(self.linear(torch.cat([x, first, second], 1)))


# A net is a list of (name, module, kept, taken): `kept` is None, ("output", name) or ("input", name).


def unet(width, in_channels=3, classes=2):
    layers = [("in", DoubleConv(in_channels, width), None, [])]
    channels = width
    for level in range(1, 5):
        layers.append((f"cat{level}", Call(lambda x: x), ("output", f"skip{level}"), []))
        layers.append((f"down{level}", DoubleConv(channels, 2 * channels, pool=True), None, []))
        channels *= 2
    for step in range(1, 5):
        layers.append((f"up{step}_t", nn.ConvTranspose2d(channels, channels // 2, 2, 2), None, []))
        layers.append((f"up{step}_pop", Call(pad_and_join), None, [f"skip{5 - step}"]))
        layers.append((f"up{step}_conv", DoubleConv(channels, channels // 2), None, []))
        channels //= 2
    layers.append(("out", nn.Conv2d(channels, classes, 1), None, []))
    return layers


def unet3d(width, depth, pooling, in_channels=1, classes=2):
    layers = [("in", DoubleConv3d(in_channels, width), None, [])]
    channels = width
    for level in range(1, depth + 1):
        pool = tuple(pooling[level - 1])
        layers.append((f"cat{level}", Call(lambda x: x), ("output", f"skip{level}"), []))
        layers.append((f"down{level}", DoubleConv3d(channels, 2 * channels, pool=pool), None, []))
        channels *= 2
    for step in range(1, depth + 1):
        pool = tuple(pooling[depth - step])
        layers.append((f"up{step}_t", nn.ConvTranspose3d(channels, channels // 2, pool, pool), None, []))
        layers.append((f"up{step}_pop", Call(pad_and_join_volumes), None, [f"skip{depth + 1 - step}"]))
        layers.append((f"up{step}_conv", DoubleConv3d(channels, channels // 2), None, []))
        channels //= 2
    layers.append(("out", nn.Conv3d(channels, classes, 1), None, []))
    return layers


def resnet18_flat(width, in_channels=1, classes=10):
    def conv(inputs, outputs, kernel, stride):
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)

    layers = [
        ("input_layer.conv1", conv(in_channels, width, 7, 2), None, []),
        ("input_layer.norm1", nn.BatchNorm2d(width), None, []),
        ("input_layer.relu", Call(F.relu), None, []),
        ("input_layer.pool", Call(lambda x: F.max_pool2d(x, 3, 2, 1)), None, []),
    ]
    inputs = width
    for stage in range(1, 5):
        for block in range(1, 3):
            outputs = width * 2 ** (stage - 1)
            stride = 2 if stage > 1 and block == 1 else 1
            name = f"basic_block{stage}{block}"
            add = DownsampleAdd(inputs, outputs, stride) if stride > 1 else Call(lambda x, y: x + y)
            layers += [
                (name + ".conv1", conv(inputs, outputs, 3, stride), ("input", name + ".identity"), []),
                (name + ".norm1", nn.BatchNorm2d(outputs), None, []),
                (name + ".relu1", Call(F.relu), None, []),
                (name + ".conv2", conv(outputs, outputs, 3, 1), None, []),
                (name + ".norm2", nn.BatchNorm2d(outputs), None, []),
                (name + ".add", add, None, [name + ".identity"]),
                (name + ".relu2", Call(F.relu), None, []),
            ]
            inputs = outputs
    layers.append(("output_layer.flatten", Call(lambda x: x.flatten(1)), None, []))
    layers.append(("output_layer.linear", nn.Linear(8 * width, classes), None, []))
    return layers


def toy(width, features=12, classes=4, dropout=0.0):
    return [
        ("in", nn.Linear(features, width), None, []),
        ("tanh1", Call(torch.tanh), ("output", "hidden"), []),
        ("drop1", nn.Dropout(dropout), None, []),
        ("mid1", nn.Linear(width, width), None, []),
        ("add", Call(lambda x, y: x + y), None, ["hidden"]),
        ("tanh2", Call(torch.tanh), None, []),
        ("drop2", nn.Dropout(dropout), ("input", "before"), []),
        ("mid2", nn.Linear(width, width), None, []),
        ("mix", Mix(width), None, ["hidden", "before"]),
        ("out", nn.Linear(width, classes), None, []),
    ]


def named_parameters(layers):
    return [(f"{name}.{key}", p) for name, module, _, _ in layers for key, p in module.named_parameters()]


def run_plain(layers, x, before_layer=lambda index: None):
    kept = {}
    for index, (_, module, keep, taken) in enumerate(layers):
        if keep and keep[0] == "input":
            kept[keep[1]] = x
        before_layer(index)
        x = module(x, *[kept[name] for name in taken])
        if keep and keep[0] == "output":
            kept[keep[1]] = x
    return x


class Plain(nn.Module):
    """A list of layers as one module."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.children_in_a_row = nn.ModuleList(module for _, module, _, _ in layers)

    def forward(self, x):
        return run_plain(self.layers, x)
