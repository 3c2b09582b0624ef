"""DataLoader, DataParallel and Adam: ten epochs over 1,000 samples of 10 numbers, saved as example_model.pth. --open FILE
prints the loss of a saved model over all samples, and trains nothing."""

import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import survey


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(10, 50)
        self.out = nn.Linear(50, 2)

    def forward(self, x):
        return self.out(F.relu(self.hidden(x)))


def main():
    parser = survey.parser()
    parser.add_argument("--out", default=".")
    parser.add_argument("--open")
    arguments = parser.parse_args()
    data = TensorDataset(survey.samples((1000, 10), 1000), survey.classes((1000,), 2000, 2))
    net = Net()
    if arguments.open:
        net.load_state_dict(torch.load(arguments.open, weights_only=True))
        survey.print_loss(0, F.cross_entropy(net(data.tensors[0]), data.tensors[1]).item())
        return
    survey.set_weights(net)
    # One process reads all samples; the sampler's order depends only on the seed and the epoch.
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=7)
    loader = DataLoader(data, batch_size=50, sampler=sampler)
    model = nn.DataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            with survey.autocast(arguments.precision):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        survey.print_loss(epoch, total / len(loader))
    torch.save(net.state_dict(), os.path.join(arguments.out, "example_model.pth"))


if __name__ == "__main__":
    main()
