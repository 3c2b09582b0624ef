#!/usr/bin/env python3
"""The steps of benchmarks/sharded_step.cpp in Python torch over Gloo, started by torchrun: DistributedDataParallel at level
none, FSDP2 (fully_shard) at levels gradients (reshard_after_forward=False) and parameters.

Prints a line of JSON on rank 0.
"""
import argparse
import contextlib
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def mlp(arguments):
    return torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(arguments.width, arguments.width), torch.nn.ReLU())
        for _ in range(arguments.layers)])


def convolutions(arguments):
    layers, channels = [], 3
    for i in range(4):
        more = (arguments.width // 16) << i
        layers.append(torch.nn.Sequential(torch.nn.Conv2d(channels, more, 3, padding=1, stride=2 if i else 1),
                                          torch.nn.ReLU()))
        channels = more
    return torch.nn.Sequential(*layers, torch.nn.Flatten(),
                               torch.nn.Sequential(torch.nn.Linear(16 * channels, 512), torch.nn.ReLU()),
                               torch.nn.Linear(512, 10))


def make_job(arguments):
    torch.manual_seed(1)
    if arguments.model == "mlp":
        return mlp(arguments), torch.randn(arguments.batch, arguments.width), torch.randn(arguments.batch, arguments.width)
    return convolutions(arguments), torch.randn(arguments.batch, 3, 32, 32), torch.randn(arguments.batch, 10)


def parallel(net, arguments):
    if arguments.level == "none":
        return DistributedDataParallel(net)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    options = {"mesh": mesh, "reshard_after_forward": arguments.level == "parameters"}
    for layer in net:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **options)
    return fully_shard(net, **options)


def time_steps(arguments):
    net, inputs, target = make_job(arguments)
    net = parallel(net, arguments)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=arguments.optimizer == "fused")
    gradients, updates = [], []
    for step in range(-2, arguments.steps):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(inputs), target).backward()
        between = time.perf_counter()
        optimizer.step()
        dist.barrier()
        end = time.perf_counter()
        if step >= 0:
            gradients.append(between - begin)
            updates.append(end - between)
    return {"gradients_seconds": gradients, "optimizer_seconds": updates}


def overlap(arguments):
    net, inputs, target = make_job(arguments)
    left = sum(parameter.numel() for parameter in net.parameters())
    net = DistributedDataParallel(net)

    def timed(function):
        dist.barrier()
        begin = time.perf_counter()
        function()
        dist.barrier()
        return time.perf_counter() - begin

    def gradients(context=contextlib.nullcontext):
        net.zero_grad()
        with context():
            torch.nn.functional.mse_loss(net(inputs), target).backward()

    buckets, size = [], 1 << 18
    while left > 0:
        buckets.append(torch.zeros(min(size, left)))
        left -= buckets[-1].numel()
        size = 25 << 18

    def reduce():
        works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
        for work in works:
            work.wait()

    times = []
    for step in range(-2, arguments.steps):
        one = timed(gradients), timed(lambda: gradients(net.no_sync)), timed(reduce)
        if step >= 0:
            times.append(one)
    with_, without, alone = zip(*times)
    return {"with_seconds": with_, "without_seconds": without, "alone_seconds": alone}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=("steps", "overlap"), default="steps")
    parser.add_argument("--model", choices=("mlp", "conv"), default="mlp")
    parser.add_argument("--level", choices=("none", "gradients", "parameters"), default="none")
    parser.add_argument("--optimizer", choices=("fused", "stock"), default="fused")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = overlap(arguments) if arguments.what == "overlap" else time_steps(arguments)
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
