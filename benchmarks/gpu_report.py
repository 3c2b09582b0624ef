#!/usr/bin/env python3
"""Measures training steps on this machine's NVIDIA GPUs and writes one report; gpu.sh runs it after building and testing.

    benchmarks/gpu_report.py --build build/gpu --python PYTHON --doctor LOG --tests JUNIT_XML --out REPORT.md
    benchmarks/gpu_report.py --data DATA.json --out REPORT.md      write the report again, from saved measurements

The measurements are also saved as gpu_report.json in the build folder. Exits with 1 if a test or a measurement failed; the
report names it.
"""
import argparse
import datetime
import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

from bench import FORMATS, Bench, table
from measuring import Trouble, alternate, machine, run, say, spread, step_seconds

BATCH = ["--batch", "16", "--rows", "192", "--columns", "288", "--warm-up", "5"]
MICRO_BATCHES = "8"
MOST_STAGES = 16  # the net has 22 layers
LOOK = """import json, torch
print(json.dumps({"torch": torch.__version__, "CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version(),
                  "GPUs": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}))"""


def one_gpu(bench):
    contestants = {}
    for words, flags in FORMATS.items():
        contestants[f"trestle, {words}"] = bench.contestant("unet_step", "--devices", "cuda:0", *BATCH, *flags)
        contestants[f"libtorch, {words}"] = bench.contestant("plain_unet_step", "--device", "cuda:0", *BATCH, *flags)
        contestants[f"Python, {words}"] = bench.contestant("plain_torch.py", "--device", "cuda:0", *BATCH, *flags)
    results = alternate(bench.arguments.rounds, contestants, say)
    for peer in ("libtorch", "Python"):
        for words in FORMATS:
            bench.compare(results, f"one stage on cuda:0 against {peer}, {words}", f"trestle, {words}", f"{peer}, {words}")


def many_gpus(bench, stages, devices, shares):
    """Compares pipelines over several GPUs with the same net on one. Stores each rank's busy shares in `shares`."""
    cut = ["--balance", "13,9"] if stages == 2 else ["--measure-balance"]
    for mode in ("never", "always"):
        name = f"{stages} stages on {devices}, {mode}"
        command = [bench.program("unet_step"), "--devices", devices, *cut, "--micro-batches", MICRO_BATCHES, "--recompute",
                   mode, "--steps", bench.arguments.steps, *BATCH]
        shares[name] = []

        def pipelined():
            report = run("unet_step", command)
            shares[name].append(report["busy_shares"])
            return step_seconds(report)

        results = alternate(bench.arguments.rounds, {
            name: pipelined, "one stage": bench.contestant("unet_step", "--devices", "cuda:0", *BATCH)}, say)
        bench.compare(results, f"{name}, against one stage on cuda:0, never", name, "one stage", gradients=False)


def measure(arguments):
    bench = Bench(arguments)
    shares, troubles = {}, []
    found = run("torch", [arguments.python, "-c", LOOK])
    gpus = len(found["GPUs"])
    several = [(2, "cuda:0,cuda:1"), (gpus, "cuda:all")] if gpus > 2 else [(2, "cuda:all")] if gpus == 2 else []
    parts = [lambda: one_gpu(bench)]
    parts += [lambda stages=stages, devices=devices: many_gpus(bench, stages, devices, shares)
              for stages, devices in several if stages <= MOST_STAGES]
    for part in parts:
        try:
            part()
        except Trouble as trouble:
            say(str(trouble))
            troubles.append(str(trouble))
    return {"when": datetime.datetime.now().isoformat(timespec="seconds"), "torch": found, "machine": machine(),
            "driver": driver(), "doctor": Path(arguments.doctor).read_text(encoding="utf-8"), "tests": tests(arguments.tests),
            "rounds": arguments.rounds, "steps": arguments.steps, "rows": bench.rows, "troubles": troubles,
            "busy": {name: [spread(of_rank) for of_rank in zip(*rounds)] for name, rounds in shares.items() if rounds}}


def driver():
    done = subprocess.run(["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True)
    return done.stdout.strip().splitlines()


def tests(path):
    """The number of tests, and the names of failed ones."""
    try:
        cases = list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):
        return {"run": 0, "failed": []}
    return {"run": len(cases), "failed": [case.get("name") for case in cases if case.get("status") == "fail"
                                          or case.find("failure") is not None]}


def passed(data):
    return data["tests"]["run"] > 0 and not data["tests"]["failed"] and not data["troubles"]


def in_block(text):
    return ["", "```", *text.strip().splitlines(), "```", ""]


def report(data):
    """The whole report, as Markdown."""
    found, ran = data["torch"], data["tests"]
    failed = len(ran["failed"])
    lines = ["# trestle on GPUs", "", f"{data['when']}, {data['machine']['system']}, {data['machine']['cores']} cores; torch "
             f"{found['torch']}, CUDA {found['CUDA']}, cuDNN {found['cuDNN']}, Python {data['machine']['python']}.", "",
             "| GPU | name | memory | driver |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(part.strip() for part in gpu.split(",")) + " |" for gpu in data["driver"]]
    lines += ["", "`trestle doctor`:", *in_block(data["doctor"]), "## Tests", ""]
    if ran["run"] == 0:
        lines.append("No test was run: see the output of ctest.")
    else:
        lines.append(f"{ran['run']} tests on GPUs: {ran['run'] - failed} passed, {failed} failed.")
        lines += ["", *(f"- failed: `{name}`" for name in ran["failed"])] if failed else []
    lines += ["", "## Training steps", "", "The U-Net of 31 M parameters, 16 images of 192 x 288, RMSprop, "
              f"{data['rounds']} rounds of {data['steps']} steps. Seconds; a ratio below 1 is in trestle's favour.", ""]
    lines.append(table(data["rows"]) if data["rows"] else "Nothing was measured.")
    if data["busy"]:
        lines += ["", "## Busy", "", f"Each stage's computing share of a step, {MICRO_BATCHES} micro-batches, GPipe: "
                  "median (min .. max).", "", "| plan | stage by stage |", "|---|---|"]
        for name, ranks in data["busy"].items():
            lines.append(f"| {name} | " + ", ".join(f"{rank['median']:.2f} ({rank['min']:.2f} .. {rank['max']:.2f})"
                                                    for rank in ranks) + " |")
    if data["troubles"]:
        lines += ["", "## Failed measurements"]
        for trouble in data["troubles"]:
            lines += in_block(trouble)
    return "\n".join(lines).rstrip() + "\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", help="the build folder")
    parser.add_argument("--python", default="python3", help="a Python with a CUDA build of torch (default: python3)")
    parser.add_argument("--doctor", help="the output of `trestle doctor`")
    parser.add_argument("--tests", help="ctest's report, as JUnit XML")
    parser.add_argument("--data", help="a gpu_report.json, to write its report again")
    parser.add_argument("--out", required=True, help="the report")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each program (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each process (default: 20)")
    arguments = parser.parse_args()
    arguments.tiny = False
    if not arguments.data and not (arguments.build and arguments.doctor and arguments.tests):
        parser.error("--build, --doctor and --tests are needed, or --data")
    return arguments


def main():
    arguments = parse()
    if arguments.data:
        data = json.loads(Path(arguments.data).read_text(encoding="utf-8"))
    else:
        data = measure(arguments)
        (Path(arguments.build) / "gpu_report.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    Path(arguments.out).write_text(report(data), encoding="utf-8")
    return 0 if passed(data) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Trouble, OSError, ValueError) as trouble:
        sys.exit(f"gpu_report.py: {trouble}")
