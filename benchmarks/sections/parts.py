"""(f), (g) and (h): optimizers, the largest net that fits, and the compile time of the library's headers."""
import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

from measuring import Trouble, run, say

OPTIMIZERS = {"AdamW": "<= 0.20", "Adam": None, "RMSprop, momentum, weight decay": "<= 0.35", "SGD, momentum": "<= 0.75",
              "SGD, momentum, weight decay": "<= 0.40"}
# A net that grows in depth computes more per parameter, so its pictures are smaller.
GROWTHS = {"width": [], "depth": ["--rows", "32", "--columns", "48"]}
COMPILE_ROUNDS = 3
INCLUDED = ("trestle/trestle.h", "trestle/pipeline/pipeline.h", "torch/torch.h")


def optimizers(bench):
    """(f) one step of the optimizer"""
    everything = {}
    for device in ("cpu", "virtual:1"):  # separate processes: virtual devices replace a process's allocator
        command = [bench.program("optimizer_step"), "--device", device, *bench.tiny("--width", "4", "--steps", "2")]
        reports = everything[device] = []
        for number in range(bench.arguments.rounds):
            reports.append(run("optimizer_step", command))
            say(f"  round {number + 1}/{bench.arguments.rounds}  {device}: " + ", ".join(
                f"{row['name']} {row['ours'] / row['theirs']:.2f}" for row in reports[-1]["rows"]))
        for number, first in enumerate(reports[0]["rows"]):
            rows = [report["rows"][number] for report in reports]
            millions = reports[0]["parameters"] / 1e6
            bench.row(f"(f) {first['name']}, {millions:.1f} M parameters, {reports[0]['device']}",
                      [row["ours"] for row in rows], [row["theirs"] for row in rows], OPTIMIZERS[first["name"]],
                      digits=4)
    return everything


def largest(bench):
    """(g) the largest U-Net that fits"""
    everything = {}
    for grow, flags in GROWTHS.items():
        command = [bench.program("largest_unet"), "--grow", grow, *flags, *bench.tiny("--budget", "24MiB", "--channels", "16", "--devices", "1,2")]
        report = everything[grow] = run("largest_unet", command, show=True)
        on_one = report["rows"][0]["parameters"] / report["rows"][0]["devices"] / 1e6
        for row in report["rows"]:
            millions = row["parameters"] / 1e6
            several = "s" if row["devices"] > 1 else ""
            bench.row(f"(g) M parameters that fit on {row['devices']} virtual device{several}, growing in {grow} (peer: ideal)",
                      [millions], [row["devices"] * on_one], digits=1)
    return everything


def compiling(bench):
    """(h) seconds to compile"""
    command = compiler(bench)
    rounds = 1 if bench.arguments.tiny else COMPILE_ROUNDS
    seconds = {name: [] for name in INCLUDED}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name in INCLUDED:
                source = Path(folder) / "main.cpp"
                source.write_text(f"#include <{name}>\nint main() {{}}\n", encoding="utf-8")
                begin = time.perf_counter()
                done = subprocess.run([*command, "-c", source, "-o", source.with_suffix(".o")], capture_output=True, text=True,
                                      env={**os.environ, "CCACHE_DISABLE": "1"})
                seconds[name].append(time.perf_counter() - begin)
                if done.returncode != 0:
                    raise Trouble(f"a program with <{name}> does not compile:\n{done.stderr.strip()[-800:]}")
                say(f"  round {number + 1}/{rounds}  {name}: {seconds[name][-1]:.2f} s")
    for name in INCLUDED[:2]:
        bench.row(f"(h) compiling a program with <{name}> against <torch/torch.h>", seconds[name], seconds["torch/torch.h"])
    return seconds


def compiler(bench):
    """The build's compiler and include paths, without ccache, the precompiled header and other flags."""
    build = Path(bench.arguments.build)
    try:
        cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
        commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise Trouble(f"there is no {error.filename}.\nConfigure the build: cmake --preset release") from None
    words = shlex.split(next(one["command"] for one in commands if one["file"].endswith("benchmarks/unet_step.cpp")))
    flags = []
    for word, following in zip(words, words[1:]):
        if word == "-isystem":
            flags += [word, following]
        elif word.startswith(("-I", "-D")):
            flags.append(word)
    return [re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.M)[1], "-std=c++20", "-O1", *flags]
