#!/usr/bin/env python3
"""Writes tests/golden/sharding/fsdp.json: a small net trained by PyTorch's DistributedDataParallel and fully_shard (FSDP2)
for five steps of AdamW with clipping: each rank's losses, the norms, and the final weights. Weights and batches follow
the formula of formula.py.

    python tools/golden/make_fsdp_goldens.py     (torch and numpy; starts up to four processes that communicate by Gloo)
"""
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import formula

OUT = Path(__file__).resolve().parents[2] / "tests/golden/sharding/fsdp.json"
STEPS, ROWS = 5, 8
CASES = {
    "ddp_2": dict(mesh=[2], sharded=False, dtype="double"),
    "ddp_4": dict(mesh=[4], sharded=False, dtype="double"),
    "fsdp_2": dict(mesh=[2], sharded=True, dtype="double"),
    "fsdp_4": dict(mesh=[4], sharded=True, dtype="double"),
    "hsdp_2x2": dict(mesh=[2, 2], sharded=True, dtype="double"),
    "fsdp_2_bfloat16": dict(mesh=[2], sharded=True, dtype="bfloat16"),
    "hsdp_2x2_bfloat16": dict(mesh=[2, 2], sharded=True, dtype="bfloat16"),
}


def make_net(dtype):
    net = torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.Tanh(), torch.nn.Linear(12, 12), torch.nn.Tanh(),
                              torch.nn.Linear(12, 5))
    formula.set_formula_weights(net.named_parameters())
    return net.double() if dtype == "double" else net


def wrap(net, case):
    names = ("replicate", "shard") if len(case["mesh"]) == 2 else ("shard",)
    mesh = init_device_mesh("cpu", tuple(case["mesh"]), mesh_dim_names=names)
    if not case["sharded"]:
        return DistributedDataParallel(net)
    policy = MixedPrecisionPolicy()
    if case["dtype"] == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(net, mesh=mesh, mp_policy=policy)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(case, rank, size):
    net = wrap(make_net(case["dtype"]), case)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        x = formula.formula_tensor((ROWS, 10), 1000 + step).chunk(size)[rank]
        y = formula.formula_tensor((ROWS, 5), 2000 + step).chunk(size)[rank]
        if case["dtype"] == "double":
            x, y = x.double(), y.double()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        norms.append(whole(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)).item())
        optimizer.step()
        losses.append(loss.item())
    all_losses = [None] * size
    dist.all_gather_object(all_losses, losses)
    weights = {name.removeprefix("module."): whole(parameter.detach()).flatten().tolist()
               for name, parameter in net.named_parameters()}
    return dict(losses=all_losses, norms=norms, weights=weights)


def short(value):
    if isinstance(value, dict):
        return {name: short(inner) for name, inner in value.items()}
    return [short(inner) for inner in value] if isinstance(value, list) else float(f"{value:.14g}")


def run(rank, size, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size)
    results = {}
    for name, case in CASES.items():
        if torch.Size(case["mesh"]).numel() == size:
            results[name] = case | short(train(case, rank, size))
    if rank == 0:
        (Path(folder) / f"results{size}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in (2, 4):
            mp.spawn(run, args=(size, folder), nprocs=size)
            cases |= json.loads((Path(folder) / f"results{size}.json").read_text())
    content = dict(made_by="python tools/golden/make_fsdp_goldens.py", versions=dict(torch=torch.__version__.split("+")[0]),
                   cases={name: cases[name] for name in CASES})
    OUT.write_text(json.dumps(content) + "\n")
    print(len(cases), "cases")
