#!/usr/bin/env python3
"""Writes tests/golden/sharding/powersgd.json: the results of PyTorch's powerSGD_hook for two ranks' gradients, which follow
the formula of formula.py, in float64, over six steps.

    python tools/golden/make_powersgd_goldens.py     (torch and numpy; starts two processes that communicate by Gloo)
"""
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

import formula

OUT = Path(__file__).resolve().parents[2] / "tests/golden/sharding/powersgd.json"
BUCKETS = [[[6, 8], [8], [4, 3, 2, 2]], [[5, 4], [3]]]
STEPS = 6
CASES = {
    "rank_1": dict(matrix_approximation_rank=1, start_powerSGD_iter=2),
    "rank_2": dict(matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1, random_seed=7),
    "rank_3_by_qr": dict(matrix_approximation_rank=3, start_powerSGD_iter=2, min_compression_rate=0.5),
    "cold": dict(matrix_approximation_rank=1, start_powerSGD_iter=2, warm_start=False),
    "no_feedback": dict(matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1, use_error_feedback=False,
                        orthogonalization_epsilon=1e-3),
}


class Bucket:
    """The methods of torch.distributed.GradBucket that a hook calls."""

    def __init__(self, number, step, rank):
        key = 1000 * (step + 1) + 100 * number + 10 * rank
        sizes = [torch.Size(shape).numel() for shape in BUCKETS[number]]
        self.number = number
        self.memory = torch.cat([torch.from_numpy(formula.formula(size, key + i)) for i, size in enumerate(sizes)])
        self.parts = [part.view(shape) for part, shape in zip(self.memory.split(sizes), BUCKETS[number])]

    def buffer(self):
        return self.memory

    def index(self):
        return self.number

    def gradients(self):
        return self.parts

    def is_last(self):
        return self.number == len(BUCKETS) - 1


def run(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name, options in CASES.items():
        state = PowerSGDState(None, **options)
        steps = []
        for step in range(STEPS):
            averages = [powerSGD_hook(state, Bucket(number, step, rank)).wait() for number in range(len(BUCKETS))]
            steps.append([[float(f"{v:.12g}") for v in average.tolist()] for average in averages])
        results[name] = dict(options=options, averages=steps, before=state.total_numel_before_compression,
                             after=state.total_numel_after_compression)
    if rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(folder,), nprocs=2)
        cases = json.loads((Path(folder) / "results.json").read_text())
    content = dict(made_by="python tools/golden/make_powersgd_goldens.py",
                   versions=dict(torch=torch.__version__.split("+")[0]), buckets=BUCKETS, cases=cases)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(content) + "\n")
    print(len(CASES), "cases")
