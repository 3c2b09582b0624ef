#!/usr/bin/env python3
"""Writes tests/golden/tensor_parallel/decoder.safetensors: a small GPT-2 style decoder whose layers, embedding, head and
loss PyTorch's parallelize_module and loss_parallel split over 2 and 4 processes that communicate by Gloo.

    tools/golden/make_tensor_parallel_goldens.py     (torch, numpy and safetensors)

The file holds "losses.<processes>" float64 [10], the losses of ten steps of AdamW in double on 1, 2 and 4 processes, and
"gradient.<name>" float32 for each parameter, the gradient of the first step on 2 processes. Those on 4 differ by less than
1e-12. Names, and the rows q|k|v of the fused projection, are those of trestle's model. Parameters have the numbers of
formula.set_formula_weights() in the order of their sorted names. Step s trains on formula_classes([4, 17], 1000 + s, 96):
the first 16 ids of a row are the input, the last 16 the targets.
"""
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

import formula

OUT = Path(__file__).resolve().parents[2] / "tests/golden/tensor_parallel/decoder.safetensors"
LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS, ROWS, STEPS = 2, 32, 4, 96, 16, 4, 10
# As in make_transformer_goldens.py: the bias of the keys has a gradient of rounding errors alone.
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1, "foreach": False}


class Attention(nn.Module):
    def __init__(self, processes):
        super().__init__()
        self.heads = HEADS // processes
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, processes):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention(processes)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self, processes):
        super().__init__()
        self.embed = nn.ModuleDict({"tokens": nn.Embedding(VOCABULARY, WIDTH), "positions": nn.Embedding(TOKENS, WIDTH)})
        self.blocks = nn.ModuleList(Block(processes) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embed["tokens"](ids) + self.embed["positions"](torch.arange(TOKENS))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def name_in_trestle(name):
    return name.removesuffix(".weight") if name.startswith("embed.") else name


def named(model):
    return {name_in_trestle(name): parameter for name, parameter in model.named_parameters()}


def by_process(rows, processes):
    """q|k|v to q k v of the first process, q k v of the second and so on: ColwiseParallel cuts consecutive rows."""
    return rows.unflatten(0, (3, processes, -1)).transpose(0, 1).flatten(0, 2)


def by_projection(rows, processes):
    return rows.unflatten(0, (processes, 3, -1)).transpose(0, 1).flatten(0, 2)


def make(processes):
    model = Decoder(processes)
    formula.set_formula_weights(sorted(named(model).items()))
    model.double()
    with torch.no_grad():
        for name, parameter in named(model).items():
            if ".qkv." in name:
                parameter.copy_(by_process(parameter.clone(), processes))
    if processes == 1:
        return model
    plan = {"embed.tokens": RowwiseParallel(input_layouts=Replicate()),
            "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    for i in range(LAYERS):
        plan |= {f"blocks.{i}.attention.qkv": ColwiseParallel(), f"blocks.{i}.attention.out": RowwiseParallel(),
                 f"blocks.{i}.mlp.up": ColwiseParallel(), f"blocks.{i}.mlp.down": RowwiseParallel()}
    model = parallelize_module(model, init_device_mesh("cpu", (processes,)), plan)
    split = [name for name, parameter in named(model).items() if isinstance(parameter, DTensor)]
    assert len(split) == 2 + 8 * LAYERS, split  # a name that matches nothing is silently ignored
    return model


def step_loss(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(processes):
    model = make(processes)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, gradients = [], {}
    for step in range(STEPS):
        ids = formula.formula_classes((ROWS, TOKENS + 1), 1000 + step, VOCABULARY)
        optimizer.zero_grad()
        if processes == 1:
            loss = step_loss(model, ids)
            loss.backward()
        else:
            with loss_parallel():
                loss = step_loss(model, ids)
                loss.backward()
        losses.append(whole(loss.detach()))
        if step == 0:
            for name, parameter in named(model).items():
                gradient = whole(parameter.grad)
                gradients[name] = by_projection(gradient, processes) if ".qkv." in name else gradient.clone()
        optimizer.step()
    return torch.stack(losses), gradients


def run(rank, processes, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{processes}", rank=rank, world_size=processes)
    losses, gradients = train(processes)
    if rank == 0:
        save_file({"losses": losses} | {name: tensor.contiguous() for name, tensor in gradients.items()},
                  Path(folder) / f"{processes}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def main():
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for processes in (1, 2, 4):
            mp.spawn(run, args=(processes, folder), nprocs=processes)
            results[processes] = load_file(Path(folder) / f"{processes}.safetensors")
    golden = {f"losses.{processes}": result["losses"] for processes, result in results.items()}
    for name, gradient in results[2].items():
        for processes in (1, 4):
            torch.testing.assert_close(results[processes][name], gradient, rtol=0, atol=1e-12)
        if name != "losses":
            golden[f"gradient.{name}"] = gradient.float()
    OUT.parent.mkdir(exist_ok=True)
    save_file(golden, OUT, metadata={"made_by": "tools/golden/make_tensor_parallel_goldens.py",
                                     "torch": torch.__version__.split("+")[0]})
    print(", ".join(f"{loss:.6f}" for loss in golden["losses.2"].tolist()))


if __name__ == "__main__":
    main()
