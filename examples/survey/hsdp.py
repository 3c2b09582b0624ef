"""HSDP on a mesh of two rows and four columns: FSDP2 within a row, replicas over the rows. Starts eight ranks itself; under
torchrun each process is one rank. The C++ program is examples/hsdp.cpp."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import survey

WIDTH, BLOCKS = 256, 6


def train(arguments):
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    layers = [layer for _ in range(BLOCKS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 4))
    survey.set_weights(net)
    policy = MixedPrecisionPolicy()
    if arguments.precision != "fp32":
        policy = MixedPrecisionPolicy(
            param_dtype=survey.DTYPES[arguments.precision], reduce_dtype=torch.float32, output_dtype=torch.float32)
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0)
    for step in range(10):
        x = survey.samples((8, WIDTH), 1000 + 100 * step + dist.get_rank())
        y = x[:, :4].argmax(1)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            survey.print_loss(step, mean.item() / dist.get_world_size())


def rank(number, world, store, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=number, world_size=world)
    train(arguments)
    dist.destroy_process_group()


def main():
    arguments = survey.parser().parse_args()
    if "RANK" in os.environ:
        rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, args=(8, f"file://{folder}/store", arguments), nprocs=8)


if __name__ == "__main__":
    main()
