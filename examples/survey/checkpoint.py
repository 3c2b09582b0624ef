"""checkpoint(): the activations of two blocks are not stored, the backward recomputes them."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import survey


def make_block():
    return nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = make_block()
        self.block2 = make_block()
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        x = checkpoint(self.block1, x, use_reentrant=False)
        x = checkpoint(self.block2, x, use_reentrant=False)
        return self.head(x)


def main():
    arguments = survey.parser().parse_args()
    batch = 512 if arguments.full else 32
    net = Net()
    survey.set_weights(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(5):
        x = survey.samples((batch, 128), 1000 + step)
        y = survey.classes((batch,), 2000 + step, 10)
        optimizer.zero_grad()
        with survey.autocast(arguments.precision):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        survey.print_loss(step, loss.item())


if __name__ == "__main__":
    main()
