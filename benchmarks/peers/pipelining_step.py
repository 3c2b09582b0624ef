#!/usr/bin/env python3
"""Steps of an MLP on torch.distributed.pipelining, one or two stages per process, over Gloo, started by torchrun.

Prints "first step" when the first is over, and on rank 0 a line of JSON: {"step_seconds": [...], "per_step": {...}}, the
second with the sum over all ranks of what getrusage() counts.
"""
import argparse
import json
import resource
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B,
                                          ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble)

# (class, stages of a rank, whether they form a V); ZB-H1 is the interleaved zero bubble of one stage.
SCHEDULES = {"gpipe": (ScheduleGPipe, 1, False), "1f1b": (Schedule1F1B, 1, False),
             "interleaved_1f1b": (ScheduleInterleaved1F1B, 2, False),
             "zb_h1": (ScheduleInterleavedZeroBubble, 1, False), "zbv": (ScheduleZBVZeroBubble, 2, True)}

USAGE = {"waits": "ru_nvcsw", "preemptions": "ru_nivcsw", "page_faults": "ru_minflt", "system_seconds": "ru_stime",
         "user_seconds": "ru_utime"}


def usage():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return torch.tensor([float(getattr(used, name)) for name in USAGE.values()], dtype=torch.float64)


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
    make, each, is_v = SCHEDULES[arguments.schedule]
    count = size * each
    numbers = [rank + i * size for i in range(each)] if not is_v else [rank, count - 1 - rank]
    nets, stages = torch.nn.ModuleList(), []
    for number in numbers:
        own = range(arguments.layers)[number * arguments.layers // count:(number + 1) * arguments.layers // count]
        nets.append(torch.nn.Sequential(*[
            torch.nn.Sequential(torch.nn.Linear(arguments.width, arguments.width), torch.nn.ReLU()) for _ in own]))
        stages.append(PipelineStage(nets[-1], number, count, torch.device("cpu")))
    several = make not in (ScheduleGPipe, Schedule1F1B)
    schedule = make(stages if several else stages[0], arguments.micro_batches,
                    loss_fn=torch.nn.functional.mse_loss)
    first, last = 0 in numbers, count - 1 in numbers
    optimizer = torch.optim.SGD(nets.parameters(), 0.01)
    inputs = torch.randn(arguments.batch, arguments.width)
    target = torch.randn(arguments.batch, arguments.width)
    times = []
    for step in range(arguments.steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        ends = {"target": target, "losses": []} if last else {}
        schedule.step(*([inputs] if first else []), **ends)
        optimizer.step()
        dist.barrier()
        if step > 0:
            times.append(time.perf_counter() - begin)
            continue
        if rank == 0:
            print("first step", flush=True)
        before = usage()
    used = usage() - before
    dist.all_reduce(used)
    if rank == 0:
        per_step = dict(zip(USAGE, (used / arguments.steps).tolist()))
        print(json.dumps({"step_seconds": times, "per_step": per_step}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
