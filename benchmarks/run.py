#!/usr/bin/env python3
"""Measures trestle against its peers and against its own predictions, on this machine.

  (a) a step of the 31 M U-Net on one virtual device, against plain libtorch and plain Python torch
  (b) two stages, four micro-batches, against torchgpipe, for each way to recompute
  (c) measured against predicted step time    (d) measured against predicted peak bytes
  (e) process start to the end of the first step, against the same in Python

Programs run as processes of their own, one at a time, alternating. What is below 1 is in trestle's favour. Close
everything else first: on a busy machine the numbers mean nothing.

    cmake --preset release && cmake --build --preset release --target trestle_benchmarks trestle_program
    benchmarks/run.py --python PYTHON_WITH_TORCH_AND_TORCHGPIPE [--only a,e] [--save]
"""
import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import Trouble, alternate, load, machine, ratios, run, say, seconds_until, spread, step_seconds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODES = ("never", "except_last", "always")
TWO_STAGES = ["--devices", "virtual:2", "--balance", "13,9", "--micro-batches", "4"]
NETS = {  # what (c) and (d) are measured on
    "quick": ["--width", "16", "--batch", "16", "--rows", "64", "--columns", "96", "--steps", "10", "--warm-up", "2"],
    "31M": ["--steps", "3"],
}


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []

    def program(self, name, folder="benchmarks"):
        path = Path(self.arguments.build) / folder / name
        if not path.exists():
            raise Trouble(f"there is no {path}.\nBuild it: cmake --preset release && cmake --build --preset release "
                          "--target trestle_benchmarks trestle_program")
        return path

    def peer(self, name):
        return [self.arguments.python, HERE / "peers" / f"{name}.py"]

    def need(self, *packages):
        """Says in one line what the peers lack, instead of a traceback for each."""
        look = "import importlib.util, sys; sys.exit(' '.join(p for p in sys.argv[1:] if not importlib.util.find_spec(p)) or None)"
        try:
            done = subprocess.run([self.arguments.python, "-c", look, *packages], capture_output=True, text=True)
        except OSError as error:
            raise Trouble(f"{self.arguments.python} cannot be started: {error}.\nName another with --python.") from None
        if done.returncode != 0:
            raise Trouble(f"{self.arguments.python} lacks {done.stderr.strip()}.\nInstall it there "
                          "(torch==2.13.0, torchgpipe==0.0.7, pillow), name another Python with --python, or leave these "
                          "measurements out with --only.")

    def row(self, what, ours, theirs, ratio, target=None):
        self.rows.append({"what": what, "ours": ours, "theirs": theirs, "ratio": ratio, "target": target})

    def steps(self):
        return ["--steps", self.arguments.steps]

    def one_stage(self):
        """(a)"""
        self.need("torch")
        contestants = {
            "trestle, virtual:1": lambda: step_seconds(run("unet_step", [self.program("unet_step"), *self.steps()])),
            "libtorch": lambda: step_seconds(run("plain_unet_step", [self.program("plain_unet_step"), *self.steps()])),
            "Python torch": lambda: step_seconds(run("plain_torch.py", [*self.peer("plain_torch"), *self.steps()])),
        }
        results = alternate(self.arguments.rounds, contestants, say)
        ours = "trestle, virtual:1"
        for theirs, target in (("libtorch", "<= 1.00"), ("Python torch", "<= 0.95")):
            for what, words in (("step", "step"), ("gradients", "without the optimizer")):
                self.row(f"(a) one stage against {theirs}, {words}", spread([r[what] for r in results[ours]]),
                         spread([r[what] for r in results[theirs]]), ratios(results, ours, theirs, what),
                         target if what == "step" else None)
        return results

    def two_stages(self):
        """(b)"""
        self.need("torch", "torchgpipe")
        everything = {}
        for mode in MODES:
            flags = ["--recompute", mode, *self.steps()]
            contestants = {
                "trestle": lambda: step_seconds(run("unet_step", [self.program("unet_step"), *TWO_STAGES, *flags])),
                "torchgpipe": lambda: step_seconds(run("torchgpipe_step.py", [*self.peer("torchgpipe_step"), *flags])),
            }
            results = everything[mode] = alternate(self.arguments.rounds, contestants, say)
            for what, words in (("step", "step"), ("gradients", "without the optimizer")):
                self.row(f"(b) two stages against torchgpipe, {mode}, {words}",
                         spread([r[what] for r in results["trestle"]]), spread([r[what] for r in results["torchgpipe"]]),
                         ratios(results, "trestle", "torchgpipe", what))
        return everything

    def predictions(self):
        """(c) and (d): both numbers come from one process."""
        everything = {}
        for net, size in NETS.items():
            for schedule in ("gpipe", "1f1b"):
                for mode in MODES:
                    name = f"{net}, {schedule}, {mode}"
                    command = [self.program("unet_step"), *TWO_STAGES, *size, "--schedule", schedule, "--recompute", mode,
                               "--predict"]
                    reports = []
                    for number in range(self.arguments.rounds):
                        reports.append(run("unet_step", command))
                        say(f"  round {number + 1}/{self.arguments.rounds}  {name}: predicted "
                            f"{reports[-1]['predicted']['seconds']:.3f} s, measured "
                            f"{step_seconds(reports[-1])['gradients']:.3f} s")
                    everything[name] = reports
                    self.compare_prediction(name, reports)
        return everything

    def compare_prediction(self, name, reports):
        measured = [step_seconds(report)["gradients"] for report in reports]
        predicted = [report["predicted"]["seconds"] for report in reports]
        if "c" in self.arguments.only:
            self.row(f"(c) step time, {name}", spread(measured), spread(predicted),
                     spread([a / b for a, b in zip(measured, predicted)]), "0.90 .. 1.10")
        if "d" not in self.arguments.only:
            return
        for stage in range(2):
            measured = [report["peak_bytes"][stage] / 2**20 for report in reports]
            predicted = [report["predicted"]["peak_bytes"][stage] / 2**20 for report in reports]
            self.row(f"(d) peak MiB of virtual:{stage}, {name}", spread(measured), spread(predicted),
                     spread([a / b for a, b in zip(measured, predicted)]), "0.95 .. 1.05")

    def first_step(self):
        """(e)"""
        self.need("torch", "numpy", "PIL")
        quick = ["--width", "16", "--batch", "16", "--rows", "64", "--columns", "96", "--steps", "1", "--warm-up", "0"]
        ours = [self.program("unet_step"), *TWO_STAGES, "--recompute", "except_last", *quick]
        theirs = [*self.peer("plain_torch"), *quick]
        said = lambda line: line.startswith("first step")
        self.start("(e) start to first step, model and batch in memory", "<= 0.30",
                   lambda: seconds_until("unet_step", ours, said), lambda: seconds_until("plain_torch.py", theirs, said))
        images, masks = self.quick_data()
        peer = [*self.peer("first_recipe_step"), "--images", images, "--masks", masks]
        stepped = lambda line: '"event":"step"' in line
        with tempfile.TemporaryDirectory() as runs:
            for words, predict in (("", "false"), (" and prediction", "true")):
                train = [self.program("trestle", "apps/trestle"), "train", ROOT / "recipes/unet_quick.toml", "--json",
                         "--images", images, "--masks", masks, "--runs", runs, "--predict", predict]
                self.start(f"(e) start to first step of the recipe, with its files{words}",
                           None if predict == "true" else "<= 0.30",
                           lambda: seconds_until("trestle train", train, stepped),
                           lambda: seconds_until("first_recipe_step.py", peer, said))

    def quick_data(self):
        folder = ROOT / "data" / "carvana_small"
        if not folder.exists():
            say("  making the quick recipe's pictures")
            done = subprocess.run([self.program("trestle", "apps/trestle"), "data", "synthesize", "carvana", "--count", "480",
                                   "--width", "192", "--height", "128", "--out", folder], capture_output=True, text=True)
            if done.returncode != 0:
                raise Trouble(f"trestle data synthesize failed:\n{done.stderr.strip()}")
        return folder / "train_hq", folder / "train_masks"

    def start(self, what, target, ours, theirs):
        ours(), theirs()  # files into memory: "warm"
        results = alternate(max(5, self.arguments.rounds), {"trestle": lambda: {"start": ours()},
                                                            "Python torch": lambda: {"start": theirs()}}, say)
        self.row(what, spread([r["start"] for r in results["trestle"]]), spread([r["start"] for r in results["Python torch"]]),
                 ratios(results, "trestle", "Python torch", "start"), target)


def table(rows):
    lines = ["| what | trestle, or measured | peer, or predicted | ratio: median (min .. max) | target |",
             "|---|---:|---:|---:|---:|"]
    for row in rows:
        digits = 1 if "MiB" in row["what"] else 3
        lines.append(f"| {row['what']} | {row['ours']['median']:.{digits}f} | {row['theirs']['median']:.{digits}f} | "
                     f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} .. {row['ratio']['max']:.3f}) | "
                     f"{row['target'] or ''} |")
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build" / "release", help="the build folder (default: build/release)")
    parser.add_argument("--python", default="python3", help="a Python that has the peers (default: python3)")
    parser.add_argument("--only", default="a,b,c,d,e", help="which of a,b,c,d,e (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each contestant (default: 5)")
    parser.add_argument("--steps", type=int, default=3, help="counted steps of each process (default: 3)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/<time>.json")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := set(arguments.only) - set("abcde"):
        parser.error(f"--only knows a, b, c, d and e, not {', '.join(sorted(unknown))}")
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
        say(f"note: other programs are running (load {load_before:.1f}); the numbers will be worse than they should be")
    for letters, measure in (("a", bench.one_stage), ("b", bench.two_stages), ("cd", bench.predictions),
                             ("e", bench.first_step)):
        if set(letters) & set(arguments.only):
            say(f"{measure.__doc__.split(':')[0]} ...")
            details[letters] = measure()
    print(table(bench.rows))
    if arguments.save:
        path = HERE / "results" / f"{begin:%Y-%m-%d_%H-%M}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"begun": begin.isoformat(timespec="seconds"), "machine": machine(),
                                    "load_before": load_before, "rounds": arguments.rounds, "steps": arguments.steps,
                                    "rows": bench.rows, "details": details}, indent=1) + "\n", encoding="utf-8")
        say(f"wrote {path}")


if __name__ == "__main__":
    try:
        main()
    except Trouble as trouble:
        sys.exit(f"run.py: {trouble}")
    except KeyboardInterrupt:
        sys.exit(130)
