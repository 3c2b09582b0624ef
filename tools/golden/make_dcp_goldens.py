#!/usr/bin/env python3
"""Writes tests/golden/dcp: a folder of torch.distributed.checkpoint, and what it holds.

    torchrun --nproc_per_node 2 tools/golden/make_dcp_goldens.py

Two ranks save it with torch 2.13: tensors that are sharded along their rows and along their
columns, whole tensors, Python objects, and an optimizer's state as that of FSDP2.
"""

import os
import pathlib
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "dcp"


def main():
    dist.init_process_group("gloo")
    out = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    if dist.get_rank() == 0:
        shutil.rmtree(out, ignore_errors=True)
    dist.barrier()
    os.chdir(out.parent)
    mesh = init_device_mesh("cpu", (2,))
    rows = torch.arange(15.0).reshape(5, 3) / 8
    columns = torch.arange(12.0).reshape(3, 4).bfloat16()
    bias, steps = torch.tensor([1.5, -2.0, 0.25]), torch.tensor(-7)

    def sharded(tensor, dimension):
        return distribute_tensor(tensor, mesh, [Shard(dimension)])

    weights = {
        "fc.weight": sharded(rows, 0),
        "fc.columns": sharded(columns, 1),
        "fc.bias": bias,
        "norm.num_batches_tracked": steps,
    }
    state = {
        "fc.weight": {
            "step": torch.tensor(4.0),
            "exp_avg": sharded(rows * 2, 0),
            "exp_avg_sq": sharded(rows * 3, 0),
        }
    }
    groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": ["fc.weight"]}]
    dcp.save(
        {"model": weights, "epoch": 7, "optim": {"state": state, "param_groups": groups}},
        checkpoint_id=out.name,  # it is in the files
    )
    if dist.get_rank() == 0:
        values = {
            "fc.weight": rows,
            "fc.columns": columns,
            "fc.bias": bias,
            "norm.num_batches_tracked": steps,
            "fc.weight.exp_avg": rows * 2,
            "fc.weight.exp_avg_sq": rows * 3,
        }
        save_file(values, str(out / "reference.safetensors"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
