#!/usr/bin/env python3
"""Checks by hand that a real DeepSpeed resumes from trestle's folders with the same bits.

    export TRESTLE_DEEPSPEED_OUT=FOLDER; mkdir $TRESTLE_DEEPSPEED_OUT
    build/dev/tests/deepspeed/deepspeed_test --gtest_filter=DeepspeedFolders.SavedOnes*Own
    DS_ACCELERATOR=cpu torchrun --nproc_per_node 2 tools/golden/check_deepspeed_resume.py

In the environment of make_deepspeed_goldens.py. For each folder DeepSpeed loads it, continues the
program of the goldens, and must compute the losses of the uninterrupted run to the last bit. The
initial weights, frozen ones too, differ from those of the folder.
"""

import os
import pathlib
import sys

import deepspeed
import torch
import torch.distributed as dist
from make_deepspeed_goldens import AFTER, BEFORE, KINDS, make_engine, root_of, train_step
from safetensors.torch import load_file


def resumed_losses(folder, kind, precision, stage):
    torch.manual_seed(99)
    engine, _ = make_engine(kind, precision, stage)
    path, client_state = engine.load_checkpoint(str(folder))
    if path is None or client_state["epoch"] != 7 or engine.global_steps != BEFORE:
        sys.exit(f"{folder}: DeepSpeed loaded {path}, step {engine.global_steps}, {client_state}")
    return [train_step(engine, BEFORE + step, precision) for step in range(AFTER)]


def main():
    deepspeed.init_distributed("gloo")
    made = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["TRESTLE_DEEPSPEED_OUT"])
    wrong = 0
    for kind, folders in KINDS.items():
        for precision, stage in folders:
            name = f"{precision}_zero{stage}"
            losses = resumed_losses(root_of(kind, made) / name, kind, precision, stage)
            reference = load_file(root_of(kind) / name / "reference.safetensors")["losses"]
            expected = reference[BEFORE:].tolist()
            wrong += losses != expected
            if dist.get_rank() == 0:
                outcome = "same bits" if losses == expected else f"{losses}, not {expected}"
                print(f"{kind} {name}: {outcome}", flush=True)
    if dist.get_rank() == 0:
        print(f"{wrong} folders differ", flush=True)
    dist.barrier()
    # Threads of Gloo can abort the process at its end.
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
