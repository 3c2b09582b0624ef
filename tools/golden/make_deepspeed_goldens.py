#!/usr/bin/env python3
"""Writes folders that DeepSpeed 0.19.8 saved, and what it computed: tests/golden/deepspeed*.

In an environment with torch 2.13, deepspeed 0.19.8, ninja and safetensors (pip install):

    DS_ACCELERATOR=cpu torchrun --nproc_per_node 2 tools/golden/make_deepspeed_goldens.py [KIND ...]

The kinds, by default all:

    plain     deepspeed/: every stage in fp32 and bf16, and program.safetensors, which has the initial
              weights and the batches of the program
    frozen    deepspeed_frozen/: two parameters are frozen before initialize(), one has two names,
              and below stage 3 one has no element
    groups    deepspeed_groups/: one more parameter, and an optimizer with three groups of
              parameters; at stage 3 sub-groups of few elements

Each folder <precision>_zero<stage> has the checkpoint after three steps of the program on two
ranks, and reference.safetensors: the whole fp32 weights and averages that DeepSpeed returns for
that checkpoint, and the losses of the three steps before and the two steps after it.
"""

import argparse
import os
import pathlib
import shutil

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
BATCH, BEFORE, AFTER = 16, 3, 2
EVERY = [(precision, stage) for precision in ("fp32", "bf16") for stage in range(4)]
# The other folders add nothing to the format.
KINDS = {
    "plain": EVERY,
    "frozen": [("fp32", 0), ("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 0), ("bf16", 3)],
    "groups": [("fp32", 0), ("fp32", 1), ("bf16", 0), ("bf16", 3)],
}
FROZEN = ("0.bias", "2.weight")


def root_of(kind, root=ROOT):
    return root / ("deepspeed" if kind == "plain" else f"deepspeed_{kind}")


def config(kind, stage, precision):
    zero = {"stage": stage}
    if stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
        if kind == "groups":
            zero["sub_group_size"] = 4
    out = {
        "train_batch_size": BATCH,
        "zero_optimization": zero,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 10},
        },
    }
    if precision == "bf16":
        out["bf16"] = {"enabled": True}
    return out


class Scaled(nn.Sequential):
    """A net with a parameter of one element: in a group of its own, rank 1 has none of it."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.scale


def make_net(kind, precision, stage=0):
    # bf16 with batch norm fails in DeepSpeed on a CPU; batch norm has buffers.
    norm = nn.BatchNorm1d(3) if precision == "fp32" else nn.LayerNorm(3)
    net = (Scaled if kind == "groups" else nn.Sequential)(
        nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3), norm
    )
    if kind == "frozen":
        for name in FROZEN:
            net.get_parameter(name).requires_grad_(False)
        if stage < 3:  # DeepSpeed's stage 3 fails in the forward
            norm.register_parameter("none", nn.Parameter(torch.empty(0, 4)))
        norm.register_parameter("shared", net[2].bias)
    return net


def optimized(kind, net):
    """The model_parameters of the program's initialize()."""
    if kind != "groups":
        return net.parameters()
    others = [p for name, p in net.named_parameters() if name != "scale"]
    return [
        {"params": [p for p in others if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        {"params": [net.scale], "weight_decay": 0.0},
    ]


def batches():
    draw = torch.Generator().manual_seed(1)
    steps = BEFORE + AFTER
    return (
        torch.randn(steps, BATCH, 6, generator=draw),
        torch.randint(0, 3, (steps, BATCH), generator=draw),
    )


def train_step(engine, step, precision):
    world, rank = dist.get_world_size(), dist.get_rank()
    share = BATCH // world
    x, y = (whole[step, rank * share : (rank + 1) * share] for whole in batches())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    loss = nn.functional.cross_entropy(engine(x.to(dtype)).float(), y)
    engine.backward(loss)
    engine.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / world


def masters_of_stage_0(engine, net):
    """The optimizer of stage 0, and the tensor that it steps for each parameter of the net."""
    if not engine.bfloat16_enabled():
        return engine.optimizer, {p: p for p in net.parameters()}
    wrapper, master = engine.optimizer, {}
    for own, stepped in zip(wrapper.fp16_groups, wrapper.fp32_groups):
        master.update(zip(own, stepped))
    return wrapper.optimizer, master


def whole_parameter(parameter):
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().float().clone()


def whole_state(engine, net):
    """The fp32 weights and the averages, by "<parameter>" and "<parameter>.<field>"."""
    out = {}
    is_stage_0 = engine.zero_optimization_stage() == 0
    if is_stage_0:
        inner, master = masters_of_stage_0(engine, net)
    elif engine.zero_optimization_stage() < 3:
        # It links the states of all groups after the first step of the first one.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in net.named_parameters():
        if name == "3.none":
            out[name] = torch.empty(0, 4)
            continue
        if not parameter.requires_grad:
            out[name] = whole_parameter(parameter)
            continue
        out[name] = master[parameter] if is_stage_0 else safe_get_full_fp32_param(parameter)
        for field in ("exp_avg", "exp_avg_sq"):
            out[f"{name}.{field}"] = (
                inner.state[master[parameter]][field]
                if is_stage_0
                else safe_get_full_optimizer_state(parameter, field)
            )
    for name, buffer in net.named_buffers():
        out[name] = buffer
    return {name: tensor.detach().clone().contiguous() for name, tensor in out.items()}


def make_engine(kind, precision, stage):
    net = make_net(kind, precision, stage)
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=optimized(kind, net),
        config=config(kind, stage, precision),
    )
    return engine, net


def run(kind, precision, stage, folder):
    torch.manual_seed(0)
    engine, net = make_engine(kind, precision, stage)
    losses = [train_step(engine, step, precision) for step in range(BEFORE)]
    engine.save_checkpoint(str(folder), client_state={"epoch": 7, "note": "text"})
    state = whole_state(engine, net)
    losses += [train_step(engine, BEFORE + step, precision) for step in range(AFTER)]
    if dist.get_rank() == 0:
        for script in folder.glob("*.py"):
            script.unlink()
        state["losses"] = torch.tensor(losses, dtype=torch.float64)
        save_file(state, str(folder / "reference.safetensors"))


def write_program(path):
    program = {}
    for precision in ("fp32", "bf16"):
        torch.manual_seed(0)
        for name, tensor in make_net("plain", precision).state_dict().items():
            program[f"{precision}.{name}"] = tensor.clone()
    program["x"], program["y"] = batches()
    save_file(program, str(path))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--root", type=pathlib.Path, default=ROOT)
    arguments = parser.parse_args()
    deepspeed.init_distributed("gloo")
    for kind in arguments.kinds or KINDS:
        out = root_of(kind, arguments.root)
        if dist.get_rank() == 0:
            shutil.rmtree(out, ignore_errors=True)
            os.makedirs(out)
            if kind == "plain":
                write_program(out / "program.safetensors")
        dist.barrier()
        for precision, stage in KINDS[kind]:
            run(kind, precision, stage, out / f"{precision}_zero{stage}")
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
