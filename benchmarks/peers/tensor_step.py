#!/usr/bin/env python3
"""The steps of benchmarks/tensor_step.cpp in Python torch over Gloo, started by torchrun, in the three ways of
torch.distributed.tensor.parallel: `tp` splits attention and MLP, `tpl` also embedding, head and loss, `sp` is `tpl` with
sequence-parallel norms. One process computes the plain step, eager or compiled.

Prints a line of JSON on rank 0.
"""
import argparse
import contextlib
import json
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.mlp_norm, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, given, heads):
        super().__init__()
        self.tokens = nn.Embedding(given.vocabulary, given.width)
        self.positions = nn.Embedding(given.context, given.width)
        self.blocks = nn.ModuleList(Block(given.width, heads) for _ in range(given.layers))
        self.norm = nn.LayerNorm(given.width)
        self.head = nn.Linear(given.width, given.vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]).unsqueeze(0))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def split(model, way, processes):
    mesh = init_device_mesh("cpu", (processes,))
    plan = {}
    sequence = way == "sp"
    for i in range(len(model.blocks)):
        out = RowwiseParallel(output_layouts=Shard(1)) if sequence else RowwiseParallel()
        plan |= {f"blocks.{i}.attention.qkv": ColwiseParallel(), f"blocks.{i}.attention.out": out,
                 f"blocks.{i}.mlp.up": ColwiseParallel(), f"blocks.{i}.mlp.down": out}
        if sequence:
            whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
            plan |= {f"blocks.{i}.attention_norm": SequenceParallel(), f"blocks.{i}.mlp_norm": SequenceParallel(),
                     f"blocks.{i}.attention": PrepareModuleInput(**whole), f"blocks.{i}.mlp": PrepareModuleInput(**whole)}
    if way != "tp":
        plan["head"] = ColwiseParallel(input_layouts=Shard(1) if sequence else Replicate(), output_layouts=Shard(-1),
                                       use_local_output=False)
        plan["tokens"] = RowwiseParallel(input_layouts=Replicate(),
                                         output_layouts=Shard(1) if sequence else Replicate())
    if sequence:
        plan["norm"] = SequenceParallel()
        plan["positions"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    return parallelize_module(model, mesh, plan)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=("one", "compiled", "tp", "tpl", "sp"), default="one")
    for name, default in (("steps", 8), ("layers", 4), ("width", 512), ("heads", 8), ("vocabulary", 8192), ("context", 256),
                          ("batch", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    alone = given.way in ("one", "compiled")
    processes = 1
    if not alone:
        dist.init_process_group("gloo")
        processes = dist.get_world_size()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = Decoder(given, given.heads // processes)
    parameters = sum(one.numel() for one in model.parameters())
    if not alone:
        model = split(model, given.way, processes)
    forward = torch.compile(model) if given.way == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=alone, foreach=None if alone else False)
    if not alone:  # plain and split parameters cannot share a fused group
        plain = [p for p in model.parameters() if not hasattr(p, "to_local")]
        parts = [p for p in model.parameters() if hasattr(p, "to_local")]
        optimizer = torch.optim.AdamW([{"params": group} for group in (plain, parts) if group], lr=1e-3, fused=True)
    ids = torch.randint(given.vocabulary, (given.batch, given.context + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    context = loss_parallel if given.way in ("tpl", "sp") else contextlib.nullcontext
    gradients, updates, last = [], [], 0.0
    for step in range(-2, given.steps):
        if not alone:
            dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        with context():
            loss = F.cross_entropy(forward(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
        between = time.perf_counter()
        optimizer.step()
        if not alone:
            dist.barrier()
        end = time.perf_counter()
        if step == -2 and (alone or dist.get_rank() == 0):
            print("first step", flush=True)
        if step >= 0:
            gradients.append(between - begin)
            updates.append(end - between)
            last = float(loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach())
    if alone or dist.get_rank() == 0:
        print(json.dumps({"gradients_seconds": gradients, "optimizer_seconds": updates, "parameters": parameters,
                          "loss": last,
                          "peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}), flush=True)
    if not alone:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
