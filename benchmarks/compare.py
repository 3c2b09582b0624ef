#!/usr/bin/env python3
"""Compares two builds of trestle: prints which measurements changed by more than their spread.

    benchmarks/compare.py OLD NEW [--only step,ranks] [--rounds 7]

OLD and NEW are build folders, each with the targets trestle_benchmarks and trestle_program. In each round every program of
OLD runs beside the same program of NEW, and the order alternates. A round's ratio is NEW's median step over OLD's. A row is
"slower" or "faster" if the ratios of all rounds lie on one side of 1, and the median differs from 1 by more than half of
their range. By chance alone, seven rounds lie on one side in one of 64 rows. Exit code 1 if a row is slower.

Two worktrees make two builds:

    git worktree add /tmp/old COMMIT && ln -s "$PWD/.venv" /tmp/old/.venv
    (cd /tmp/old && cmake --preset release && cmake --build --preset release --target trestle_benchmarks trestle_program)
    benchmarks/compare.py /tmp/old/build/release build/release
"""
import argparse
import sys
from pathlib import Path

from bench import TWO_STAGES, Bench
from measuring import Trouble, load, middle, quotients, run, say, seconds_until, step_seconds
from sections.start import QUICK

LAUNCH = ["launch", "--prefix", "off", "--bind", "off"]


def stepping(program, *flags):
    """A program that prints the times of its steps, in this process."""
    return lambda bench: bench.contestant(program, *flags)()["step"]


def over_ranks(program, ranks, *flags):
    """The same over processes."""
    def measure(bench):
        report = run(program, [bench.program("trestle", "apps/trestle"), *LAUNCH, "-n", ranks, "--", bench.program(program),
                               *flags, "--steps", bench.arguments.steps, *bench.tiny("--width", "64")])
        return middle(report["step_seconds"]) if "step_seconds" in report else step_seconds(report)["step"]
    return measure


def starting(bench):
    return seconds_until("unet_step", [bench.program("unet_step"), *TWO_STAGES, *QUICK],
                         lambda line: line.startswith("first step"))


def pipeline_over(ranks, schedule):
    return over_ranks("ranks_step", ranks, "--on", "processes", "--ranks", ranks, "--schedule", schedule)


# {group: {row: function of a build's Bench that returns seconds}}
ROWS = {
    "step": {
        "one stage, cpu": stepping("unet_step", "--devices", "cpu"),
        "one stage, virtual:1": stepping("unet_step", "--devices", "virtual:1"),
        "one small stage, virtual:1": stepping("unet_step", "--devices", "virtual:1", *QUICK[:8]),
        "two stages, lent cores": stepping("unet_step", *TWO_STAGES, "--lend", "--recompute", "never"),
        "two stages, recomputed": stepping("unet_step", *TWO_STAGES, "--lend", "--recompute", "always"),
    },
    "ranks": {f"pipeline, {schedule}, {ranks} processes": pipeline_over(ranks, schedule)
              for schedule in ("gpipe", "1f1b") for ranks in (2, 4)},
    "sharded": {f"{model}, {level}, 2 processes": over_ranks("sharded_step", 2, "--model", model, "--level", level, *flags)
                for model, flags in (("mlp", []), ("conv", ["--batch", "32"]))
                for level in ("none", "optimizer-state", "gradients", "parameters")},
    "start": {"process start to first step": starting},
}


def verdict(ratio):
    """ratio: {"min", "median", "max"} of NEW over OLD in each round."""
    one_side = ratio["min"] > 1 or ratio["max"] < 1
    if not one_side or abs(ratio["median"] - 1) <= (ratio["max"] - ratio["min"]) / 2:
        return ""
    return "slower" if ratio["median"] > 1 else "faster"


def measure_row(what, measure, old, new, rounds):
    times = {old: [], new: []}
    for number in range(rounds):
        for bench in ((old, new) if number % 2 == 0 else (new, old)):
            times[bench].append(measure(bench))
        say(f"  round {number + 1}/{rounds}  {what}: old {times[old][-1]:.4f} s, new {times[new][-1]:.4f} s")
    return {"what": what, "old": middle(times[old]), "new": middle(times[new]),
            "ratio": quotients(times[new], times[old])}


def table(rows):
    lines = ["| measurement | old, s | new, s | ratio: median (min .. max) | |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ratio = row["ratio"]
        lines.append(f"| {row['what']} | {row['old']:.4f} | {row['new']:.4f} | {ratio['median']:.3f} "
                     f"({ratio['min']:.3f} .. {ratio['max']:.3f}) | {verdict(ratio)} |")
    return "\n".join(lines)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="the build folder of the older commit")
    parser.add_argument("new", type=Path, help="the build folder of the newer commit")
    parser.add_argument("--only", default=",".join(ROWS), help=f"which of {','.join(ROWS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each program and build (default: 7)")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each process (default: 5)")
    parser.add_argument("--tiny", action="store_true", help="tiny nets, to check that everything runs")
    arguments = parser.parse_args(words)
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - ROWS.keys():
        parser.error(f"--only knows {', '.join(ROWS)}, not {', '.join(sorted(unknown))}")
    if arguments.rounds < 3 or arguments.steps < 1:
        parser.error("--rounds must be at least 3, and --steps at least 1")
    return arguments


def bench_of(arguments, build):
    return Bench(argparse.Namespace(build=build, python=sys.executable, rounds=arguments.rounds, steps=arguments.steps,
                                    tiny=arguments.tiny))


def main():
    arguments = parse()
    if load() > 1:
        say(f"warning: other programs are running (load {load():.1f}); the spread will be wide")
    old, new = bench_of(arguments, arguments.old), bench_of(arguments, arguments.new)
    rows = []
    try:
        for group in arguments.only:
            for what, measure in ROWS[group].items():
                rows.append(measure_row(f"({group}) {what}", measure, old, new, arguments.rounds))
    finally:  # keep measurements from before an error
        if rows:
            print(table(rows))
    return 1 if any(verdict(row["ratio"]) == "slower" for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Trouble as trouble:
        sys.exit(f"compare.py: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)
