#!/usr/bin/env python3
"""Compares trestle with its peers and with its own predictions, on this machine.

  (a) a step of the 31 M U-Net on one virtual device, against plain libtorch and Python torch, eager and compiled
  (b) two stages, four micro-batches, against torchgpipe, for each recomputation mode
  (c) measured and predicted step times    (d) measured and predicted peak bytes
  (e) process start to the end of the first step, against the same in Python
  (f) one step of each optimizer, against torch::optim
  (g) the largest U-Net that trains on 1, 2, 4, 8 virtual devices of 512 MiB
  (h) compiling a program that includes trestle, against one that includes torch
  (bf16) a step of the 31 M U-Net in bf16 autocast, against Python torch's, eager and compiled
  (reader) Carvana's pictures in batches, against Pillow and DataLoader, and the loader's share of a quick recipe's step
  (resnet50) ResNet-50, forward and training step, against Python torch
  (sweep) PyTorch's model-parallel tutorial: split sizes with known costs, and with ResNet-50 on this machine
  (ranks) an MLP over 2 and 4 processes, against torch.distributed.pipelining on Gloo; (transports) one pipeline in one
  process, on thread ranks, on processes; (messages) a message against c10d's own; (rankstart) four ranks to the first step,
  against torchrun; (idle) sixteen thread ranks that sleep, against the simulator
  (ddp), (fsdp) one model on 2 and 4 processes, against Python's DistributedDataParallel and FSDP2 on Gloo; (shardranks)
  thread ranks against processes; (overlap) how much of the communication a backward hides; (flatoptimizer) optimizers over
  flat shards, against torch::optim; (deepspeed) ZeRO-1 to 3 on 2 processes, against DeepSpeed on Gloo; (shardlargest) the largest model that trains at each level, against the formula
  (shardsave) a checkpoint of 1 GiB against the disk's sequential writing; a save in the background against a copy in memory
  (tensor) a step of a decoder whose layers are split over 2 and 4 processes, against parallelize_module on Gloo
  (gpt) a training step of a GPT, against Python torch, eager and compiled; (generate) a token of SmolLM2-135M in fp32, bf16 and int8,
  against transformers, and llama.cpp where its package is; (tokens) 100 MB of text, against Hugging Face's tokenizers
  (split) a backward in two halves, I and W, against the whole one and against torch.distributed.pipelining's halves
  (largeschedule) schedules of 512 ranks and 4096 micro-batches, generated, validated, lowered and simulated, against limits
  (weights) a safetensors file of 1 GiB into a model's parameters, against Python's load_file and load_state_dict

Programs run as separate processes, one at a time, alternating. A ratio below 1 is in trestle's favour, except in g, for
pictures and for actions per second. Close all other programs first: on a busy machine the numbers mean nothing.

    cmake --preset release && cmake --build --preset release --target trestle_benchmarks trestle_program
    benchmarks/run.py --python PYTHON_WITH_TORCH_AND_TORCHGPIPE [--only a,bf16] [--save]
"""
import argparse
import datetime
import json
import sys

from bench import HERE, ROOT, Bench, table
from measuring import Trouble, load, machine, say
from sections import language, parts, precision, predictions, ranks, reader, resnet50, saving, schedules, sharding, start, steps, sweep, tensor, weights

# The names of measurements, and the function that makes them.
SECTIONS = {("a",): steps.one_stage, ("b",): steps.two_stages, ("c", "d"): predictions.predictions, ("e",): start.first_step,
            ("f",): parts.optimizers, ("g",): parts.largest, ("h",): parts.compiling, ("bf16",): precision.bf16,
            ("ranks",): ranks.against_pipelining, ("transports",): ranks.transports, ("messages",): ranks.messages,
            ("rankstart",): ranks.start, ("idle",): ranks.idle, ("reader",): reader.reading, ("resnet50",): resnet50.steps, ("sweep",): sweep.tutorial,
            ("ddp",): sharding.ddp, ("fsdp",): sharding.fsdp, ("deepspeed",): sharding.deepspeed, ("shardranks",): sharding.ranks, ("overlap",): sharding.overlap,
            ("flatoptimizer",): sharding.flat_optimizer, ("shardlargest",): sharding.largest, ("shardsave",): saving.speed, ("weights",): weights.loading,
            ("split",): schedules.split, ("largeschedule",): schedules.large,
            ("tensor",): tensor.tensor, ("gpt",): language.gpt, ("characters",): language.characters, ("busy",): language.busy, ("generate",): language.generate, ("tokens",): language.tokens}
NAMES = [name for names in SECTIONS for name in names]
OPTIONAL = {"deepspeed"}  # measured only where --only names it: its package compiles a part of itself


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "release", help="the build folder (default: build/release)")
    parser.add_argument("--python", default="python3", help="a Python that has the peers (default: python3)")
    parser.add_argument("--only", default=",".join(name for name in NAMES if name not in OPTIONAL),
                        help=f"which of {','.join(NAMES)} (default: all but {', '.join(sorted(OPTIONAL))})")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program (default: 5)")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each process (default: 3)")
    parser.add_argument("--tiny", action="store_true", help="tiny nets, to check that everything runs")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<time>.json")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set(NAMES):
        parser.error(f"--only knows {', '.join(NAMES)}, not {', '.join(sorted(unknown))}")
    if arguments.rounds < 1 or arguments.steps < 1:
        parser.error("--rounds and --steps must be at least 1")
    return arguments


def main():
    arguments = parse()
    bench = Bench(arguments)
    begin = datetime.datetime.now()
    details = {}
    load_before = load()
    if load_before > 1:
        say(f"warning: other programs are running (load {load_before:.1f}); the numbers will be too slow")
    try:
        for names, measure in SECTIONS.items():
            if set(names) & set(arguments.only):
                say(f"{measure.__doc__} ...")
                details["".join(names)] = measure(bench)
    finally:  # keep measurements from before an error
        if bench.rows:
            print(table(bench.rows))
        if arguments.save and bench.rows:
            save(bench, begin, load_before, details)


def save(bench, begin, load_before, details):
    path = HERE / "results" / f"{begin:%Y-%m-%d_%H-%M}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"begun": begin.isoformat(timespec="seconds"), "machine": machine(),
                                "load_before": load_before, "rounds": bench.arguments.rounds,
                                "steps": bench.arguments.steps, "rows": bench.rows, "details": details},
                               indent=1) + "\n", encoding="utf-8")
    say(f"wrote {path}")


if __name__ == "__main__":
    try:
        main()
    except Trouble as trouble:
        sys.exit(f"run.py: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)
