#!/usr/bin/env python3
"""The MLP's steps of benchmarks/sharded_step.cpp in DeepSpeed 0.19 over Gloo, started by torchrun: ZeRO-1, 2 and 3.

Prints a line of JSON on rank 0. It needs torch 2.13, deepspeed 0.19.8 and ninja (pip install); its first run compiles a
part of DeepSpeed.
"""
import argparse
import contextlib
import json
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from sharded_step import mlp  # noqa: E402


def time_steps(arguments):
    torch.manual_seed(1)
    net = mlp(arguments)
    inputs, target = (torch.randn(arguments.batch, arguments.width) for _ in range(2))
    config = {
        "train_micro_batch_size_per_gpu": arguments.batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": arguments.stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": arguments.optimizer == "torch"}},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    gradients, updates = [], []
    for step in range(-2, arguments.steps):
        dist.barrier()
        begin = time.perf_counter()
        engine.backward(torch.nn.functional.mse_loss(engine(inputs), target))
        between = time.perf_counter()
        engine.step()
        dist.barrier()
        end = time.perf_counter()
        if step >= 0:
            gradients.append(between - begin)
            updates.append(end - between)
    return {"gradients_seconds": gradients, "optimizer_seconds": updates}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--optimizer", choices=("deepspeed", "torch"), default="deepspeed")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed prints there
        deepspeed.init_distributed("gloo")
        report = time_steps(arguments)
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
