#!/usr/bin/env python3
"""Compares the predicted with the measured time of a step on two hosts, in the modes of docs/link.md.

    tests/hosts/link_predictions.py [--build build/release] [--rate 100mbit,1gbit] [--delay 0] [--mode NAME] [--rounds 3]

Each host has one core. `tc tbf` limits each host's rate, and a forwarder delays each packet, which takes part of a
core. The recipe is recipes/unet_quick.toml. A step's time is the mean of the steps after the first one, without the
optimizer. Prints a line for each run, and a table of the medians with the least and the greatest ratio of predicted to
measured. Run it on an idle machine.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, HostsError, enter_namespaces  # noqa: E402
from hosts.hosts import ROOT  # noqa: E402

STEPS = 6
ONE_F_ONE_B = {'"gpipe"': '"1f1b"', '"cross_entropy+dice"': '"cross_entropy+dice_per_micro_batch"'}

# name: (ranks on each host, flags, changes of the recipe)
MODES = {
    "GPipe": (1, (), {}),
    "1F1B": (1, (), ONE_F_ONE_B),
    "DDP": (1, ("--mesh", "replicate=2"), {}),
    "ZeRO-1": (1, ("--mesh", "shard=2", "--shard-level", "optimizer_state"), {}),
    "ZeRO-2": (1, ("--mesh", "shard=2", "--shard-level", "gradients"), {}),
    "ZeRO-3": (1, ("--mesh", "shard=2"), {}),
    "HSDP": (2, ("--mesh", "replicate=2,shard=2"), {}),
}


def write_recipe(folder, changes):
    text = (ROOT / "recipes/unet_quick.toml").read_text(encoding="utf-8")
    for old, new in changes.items():
        if text.count(old) != 1:
            raise HostsError(f"recipes/unet_quick.toml has {text.count(old)} times {old}, not once")
        text = text.replace(old, new)
    end = f"max_steps = {STEPS}\npictures = false\ntensorboard = false\nsave_every = 0\n"
    (folder / "run.toml").write_text(text.rstrip() + "\n" + end, encoding="utf-8")


def measure(hosts, mode):
    """(predicted, measured) seconds of a step."""
    from training import PORT, TRESTLE
    ranks, flags, changes = MODES[mode]
    write_recipe(hosts.folder, changes)
    programs = []
    for node, host in enumerate(hosts):
        programs.append(host.start(
            ["taskset", "-c", node, TRESTLE, "launch", "-n", ranks, "--nodes", 2, "--node-rank", node, "--rendezvous",
             f"node0:{PORT}", "--", TRESTLE, "train", "run.toml", *flags, "--json", "--deadline", 120],
            environment={"OMP_NUM_THREADS": "1"}))
    for program in programs:
        if program.wait(600) != 0:
            raise HostsError(f"{program.name} exited with {program.poll()}:\n{program.text()}")
    for line in programs[0].text().splitlines():
        begin = line.find('{"event":"done"')
        if begin >= 0:
            done = json.loads(line[begin:])
            shutil.rmtree(hosts.folder / "runs")  # the hosts' disk is small
            return done["predicted_step_seconds"], done["step_seconds"]
    raise HostsError(f"{programs[0].name} has not printed its times:\n{programs[0].text()}")


def cells(runs):
    """The medians in ms and the ratio with its range."""
    ratios = [predicted / measured for predicted, measured in runs]
    predicted, measured = (1000 * statistics.median(column) for column in zip(*runs))
    return f"{predicted:.0f} | {measured:.0f} | {predicted / measured:.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--rate", default="100mbit,1gbit", help="rates as tc spells them, separated by commas")
    parser.add_argument("--delay", type=int, default=0, help="milliseconds in each direction")
    parser.add_argument("--mode", choices=MODES, help="only this mode")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["TRESTLE_BUILD"] = str(arguments.build.resolve())
    enter_namespaces()
    rates = arguments.rate.split(",")
    results = {}
    with Hosts(2, disk="512m") as hosts:
        for number in range(arguments.rounds):
            for rate in rates:
                for host in hosts:
                    host.link.rate(rate)
                    host.link.delay(arguments.delay)
                for mode in [arguments.mode] if arguments.mode else MODES:
                    predicted, measured = measure(hosts, mode)
                    results.setdefault((mode, rate), []).append((predicted, measured))
                    print(f"round {number + 1}, {rate}, {mode}: predicted {1000 * predicted:.0f} ms, measured "
                          f"{1000 * measured:.0f} ms, ratio {predicted / measured:.2f}", flush=True)
    print("| | " + " | ".join(f"{rate}: predicted, ms | measured, ms | ratio" for rate in rates) + " |")
    print("|---|" + "---|---|---|" * len(rates))
    for mode in [arguments.mode] if arguments.mode else MODES:
        print(f"| {mode} | " + " | ".join(cells(results[mode, rate]) for rate in rates) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
