"""DistributedDataParallel with its DistributedSampler. Starts its two ranks with torch.multiprocessing.spawn; under torchrun
each process is one rank."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import survey


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(F.relu(self.net1(x)))


def train(arguments):
    data = TensorDataset(survey.samples((1000, 10), 1000), survey.samples((1000, 5), 2000))
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, batch_size=20, sampler=sampler)
    net = Net()
    survey.set_weights(net)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for x, y in loader:
            optimizer.zero_grad()
            with survey.autocast(arguments.precision):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            survey.print_loss(epoch, total.item() / (len(loader) * dist.get_world_size()))


def rank(number, world, store, arguments):
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=world)
    train(arguments)
    dist.destroy_process_group()


def main():
    arguments = survey.parser().parse_args()
    if "RANK" in os.environ:
        rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, args=(2, f"file://{folder}/store", arguments), nprocs=2)


if __name__ == "__main__":
    main()
