#!/usr/bin/env python3
"""Steps of an MLP on torch.distributed.pipelining, one stage per process, over Gloo, started by torchrun.

Prints "first step" when the first is over, and on rank 0 a line of JSON: {"step_seconds": [...]}.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="gpipe")
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    own = range(arguments.layers)[rank * arguments.layers // size:(rank + 1) * arguments.layers // size]
    net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(arguments.width, arguments.width), torch.nn.ReLU())
                                for _ in own])
    stage = PipelineStage(net, rank, size, torch.device("cpu"))
    make = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[arguments.schedule]
    schedule = make(stage, arguments.micro_batches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    inputs = torch.randn(arguments.batch, arguments.width)
    target = torch.randn(arguments.batch, arguments.width)
    times = []
    for step in range(arguments.steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
        optimizer.step()
        dist.barrier()
        if step > 0:
            times.append(time.perf_counter() - begin)
        elif rank == 0:
            print("first step", flush=True)
    if rank == 0:
        print(json.dumps({"step_seconds": times}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
