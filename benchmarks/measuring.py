"""Runs a program and reads its times; compares two programs by their ratio in each round."""
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time


COUNTS = ("waits", "preemptions", "page_faults")  # of getrusage(), which are not seconds


class Trouble(Exception):
    """An error that the user can fix; the message names the fix."""


def output_of(name, command, show=False):
    """Returns what the program prints. `show` prints its messages too."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True,
                          stderr=None if show else subprocess.PIPE)
    if done.returncode != 0:
        raise Trouble(f"{name} failed with exit code {done.returncode}:\n{(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout


def run(name, command, show=False):
    """Returns the JSON object on the last line of the program's output. `show` prints the other lines."""
    return json.loads(output_of(name, command, show).strip().splitlines()[-1])


def seconds_until(name, command, is_the_line):
    """Seconds from the process's start to the line that `is_the_line`; then ends the process."""
    begin = time.perf_counter()
    with subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as process:
        for line in process.stdout:
            if is_the_line(line):
                took = time.perf_counter() - begin
                process.send_signal(signal.SIGKILL)
                return took
        raise Trouble(f"{name} ended before its first step:\n{process.stderr.read().strip()[-800:]}")


def middle(values):
    return statistics.median(values)


def spread(values):
    return {"min": min(values), "median": middle(values), "max": max(values)}


def step_seconds(report):
    """Medians of one process's steps: zero_grad to the end of backward, the same with the optimizer, and only the forward
    if the process reports it."""
    both = [a + b for a, b in zip(report["gradients_seconds"], report["optimizer_seconds"])]
    found = {"gradients": middle(report["gradients_seconds"]), "step": middle(both)}
    if "forward_seconds" in report:
        found["forward"] = middle(report["forward_seconds"])
    return found


def alternate(rounds, contestants, say):
    """Runs every program (name -> function that returns {what: seconds or count}) once per round. Each round starts with a different
    program, so that changes of the machine's load affect all programs."""
    results = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(rounds):
        for name in names[number % len(names):] + names[:number % len(names)]:
            results[name].append(contestants[name]())
            say(f"  round {number + 1}/{rounds}  {name}: " +
                ", ".join(f"{what} {value:.0f}" if what in COUNTS else f"{what} {value:.3f} s"
                          for what, value in results[name][-1].items()))
    return results


def best(results, names, what):
    """The minimum over these programs (one name, or several) in each round."""
    names = [names] if isinstance(names, str) else names
    return [min(one[what] for one in together) for together in zip(*(results[name] for name in names))]


def quotients(ours, theirs):
    return spread([a / b if b else float("nan") for a, b in zip(ours, theirs)])


def load():
    return os.getloadavg()[0]


def machine():
    found = {"system": platform.platform(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            flags = next(line for line in text if line.startswith("flags")).split()
        found["vector_units"] = next(name for name in ("avx512f", "avx2", "sse2") if name in flags)
    except (OSError, StopIteration):
        pass
    return found


def has_bf16_instructions():
    """False on an x86-64 processor without them, where libtorch multiplies bf16 matrices twenty times slower than fp32."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as text:
            flags = next((line for line in text if line.startswith("flags")), "avx512_bf16")
    except OSError:
        return True
    return "avx512_bf16" in flags or "amx_bf16" in flags


def say(*words):
    print(*words, file=sys.stderr, flush=True)
