"""Writes tests/golden/split/random_split.txt: torch.utils.data.random_split for a few sizes and seeds.

    python tools/golden/make_split_goldens.py

Four lines for each case: `count fraction seed`, the training indices, the validation indices, an empty line. Long lists
keep only the first 20 and the last 20 numbers.
"""

import pathlib

import torch
from torch.utils.data import random_split

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "split"


def shorten(indices):
    indices = list(indices)
    return indices if len(indices) <= 40 else indices[:20] + indices[-20:]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines = [f"torch {torch.__version__.split('+')[0]}"]
    for count, fraction, seed in ((10, 0.2, 42), (23, 0.3, 0), (5088, 0.2, 42), (70000, 0.1, 7)):
        validation = int(count * fraction)
        train, valid = random_split(
            range(count), [count - validation, validation], generator=torch.Generator().manual_seed(seed)
        )
        lines += [f"{count} {fraction} {seed}"]
        lines += [" ".join(map(str, shorten(part.indices))) for part in (train, valid)]
        lines += [""]
    (OUT / "random_split.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
