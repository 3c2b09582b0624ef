"""A training step of the U-Net with torchgpipe: 22 layers over CPU stages, skips by stash and pop."""
import torch
from torch import nn
from torchgpipe import GPipe
from torchgpipe.skip import Namespace, pop, skippable, stash

from measured_steps import job, report, run_steps
from unet import DoubleConv, loss_of, rmsprop


@skippable(stash=["skip"])
class Keep(nn.Module):
    def forward(self, x):
        yield stash("skip", x)
        return x


@skippable(pop=["skip"])
class Join(nn.Module):
    def forward(self, x):
        skip = yield pop("skip")
        return torch.cat([skip, x], 1)


def layers_in_a_row(width):
    namespaces = [Namespace() for _ in range(4)]
    layers = [DoubleConv(3, width)]
    for level in range(4):
        channels = width << level
        layers += [Keep().isolate(namespaces[level]), DoubleConv(channels, 2 * channels, pool=True)]
    for level in reversed(range(4)):
        channels = width << level
        layers += [nn.ConvTranspose2d(2 * channels, channels, 2, 2), Join().isolate(namespaces[level]),
                   DoubleConv(2 * channels, channels)]
    return nn.Sequential(*layers, nn.Conv2d(width, 2, 1))


def add_flags(parser):
    parser.add_argument("--balance", default="13,9")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--recompute", choices=("never", "except_last", "always"), default="never")


def main():
    size = job(__doc__, add_flags)
    torch.manual_seed(1)
    balance = [int(layers) for layers in size.balance.split(",")]
    model = GPipe(layers_in_a_row(size.width), balance, devices=["cpu"] * len(balance), chunks=size.micro_batches,
                  checkpoint=size.recompute)
    optimizer = rmsprop(model.parameters())
    images = torch.rand(size.batch, 3, size.rows, size.columns)
    masks = torch.randint(2, (size.batch, size.rows, size.columns))
    loss = 0.0

    def gradients():
        nonlocal loss
        optimizer.zero_grad()
        value = loss_of(model(images), masks)
        value.backward()
        loss = value.item()

    times = run_steps(size, gradients, optimizer.step)
    report(times, parameters=sum(p.numel() for p in model.parameters()), loss=loss)


main()
