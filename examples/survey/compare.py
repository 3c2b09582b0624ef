#!/usr/bin/env python3
"""Runs a program and compares the losses that it prints with those in a file.

    compare.py [--tolerance 1e-5] GOLDEN -- PROGRAM ARGUMENTS...

Both have lines "loss STEP VALUE"; a launcher's prefix such as "[0] " is ignored, and so are all other lines. The tolerance is
relative. Exits with 0 if the steps are the same and each loss is within the tolerance."""

import argparse
import re
import subprocess
import sys

LINE = re.compile(r"^(?:\[\d+\] )?loss (\d+) (\S+)$", re.MULTILINE)


def losses_of(text):
    return [(int(step), float(value)) for step, value in LINE.findall(text)]


def difference(expected, got):
    """The largest relative difference, or why the losses cannot be compared."""
    if not expected:
        return "the golden file has no losses"
    if [step for step, _ in expected] != [step for step, _ in got]:
        return f"{len(expected)} losses were expected, and {len(got)} printed"
    differences = [abs(a - b) / abs(a) for (_, a), (_, b) in zip(expected, got)]
    return float("nan") if any(one != one for one in differences) else max(differences)


def self_check():
    golden = losses_of("loss 0 2.0\nloss 1 1.0\n")
    assert difference(golden, losses_of("[0] loss 0 2.0\nother\nloss 1 1.00001\n")) < 1.1e-5
    assert not difference(golden, losses_of("loss 0 nan\nloss 1 1.0\n")) <= 1
    assert isinstance(difference(golden, losses_of("loss 0 2.0\n")), str)
    assert isinstance(difference([], []), str)


def main():
    self_check()
    parser = argparse.ArgumentParser()
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("golden")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    run = subprocess.run(arguments.command, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout, end="")
    if run.returncode != 0:
        sys.exit(f"{arguments.command[0]} exited with code {run.returncode}")
    with open(arguments.golden, encoding="utf-8") as file:
        result = difference(losses_of(file.read()), losses_of(run.stdout))
    if isinstance(result, str):
        sys.exit(result)
    print(f"largest relative difference from Python: {result:.2g}")
    if not result <= arguments.tolerance:  # also for NaN
        sys.exit(f"{result:.2g} is more than {arguments.tolerance:g}")


if __name__ == "__main__":
    main()
