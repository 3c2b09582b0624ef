"""Model parallelism: a convolutional net in two parts, each on its own device: two GPUs, or the CPU twice."""

import torch
from torch import nn
from torch.nn import functional as F

import survey


class ModelParallelNet(nn.Module):
    def __init__(self, side, devices):
        super().__init__()
        self.devices = devices
        self.part1 = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.part2 = nn.Sequential(
            nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(128 * (side // 4) ** 2, 10))
        survey.set_weights(self)
        self.part1.to(devices[0])
        self.part2.to(devices[1])

    def forward(self, x):
        x = self.part1(x.to(self.devices[0]))
        return self.part2(x.to(self.devices[1]))


def main():
    arguments = survey.parser().parse_args()
    batch, side = (16, 224) if arguments.full else (4, 32)
    devices = ["cuda:0", "cuda:1"] if torch.cuda.device_count() > 1 else ["cpu", "cpu"]
    model = ModelParallelNet(side, devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for step in range(3):
        images = survey.samples((batch, 3, side, side), 1000 + step)
        targets = survey.classes((batch,), 2000 + step, 10).to(devices[1])
        optimizer.zero_grad()
        with survey.autocast(arguments.precision):
            loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        survey.print_loss(step, loss.item())


if __name__ == "__main__":
    main()
