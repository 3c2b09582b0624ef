"""Writes tests/golden/sampler/distributed_sampler.txt: the indices of each rank from torch's DistributedSampler.

    python tools/golden/make_sampler_goldens.py

The first line is torch's version. Then three lines for each rank of each case: `count ranks shuffle seed epoch drop_last
rank`, the number of indices and the indices, an empty line. Long lists keep only the first 20 and the last 20 numbers.
"""

import pathlib

import torch
from torch.utils.data.distributed import DistributedSampler

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "sampler"

# count, ranks, shuffle, seed, epoch, drop_last
CASES = [
    (12, 4, True, 0, 0, False),
    (12, 4, True, 0, 1, False),
    (10, 4, True, 0, 0, False),
    (10, 4, True, 0, 0, True),
    (10, 4, False, 0, 3, False),
    (10, 4, False, 0, 3, True),
    (23, 1, True, 7, 2, False),
    (23, 3, True, 7, 2, False),
    (23, 3, True, 9, 0, False),  # the order of seed 7 in epoch 2
    (3, 8, True, 5, 1, False),
    (3, 8, False, 5, 1, False),
    (3, 8, True, 5, 1, True),
    (1, 4, True, 0, 0, False),
    (0, 2, True, 0, 0, False),
    (5088, 8, True, 42, 19, False),
    (70001, 6, True, 2**40, 3, False),
    (70001, 6, True, 2**40, 3, True),
]


def shorten(indices):
    return indices if len(indices) <= 40 else indices[:20] + indices[-20:]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f"torch {torch.__version__.split('+')[0]}"]
    for count, ranks, shuffle, seed, epoch, drop_last in CASES:
        for rank in range(ranks):
            sampler = DistributedSampler(
                range(count), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
            )
            sampler.set_epoch(epoch)
            indices = list(sampler)
            assert len(indices) == len(sampler)
            lines += [f"{count} {ranks} {int(shuffle)} {seed} {epoch} {int(drop_last)} {rank}"]
            lines += [" ".join(map(str, [len(indices), *shorten(indices)])), ""]
    (OUT / "distributed_sampler.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
