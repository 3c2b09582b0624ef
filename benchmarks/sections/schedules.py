"""(split) and (largeschedule): a backward in two halves, and schedules of many ranks before a run."""
import json

from measuring import Trouble, alternate, best, middle, output_of, run, say
from sections.ranks import KEEPS_PAGES

# The target of I + W against B where all layers with large weights are products of matrices.
SPLIT_NETS = {"linear": "<= 1.05", "convolution": None, "attention": "<= 1.05"}
SCHEDULES = ("1f1b", "zb_h1", "zbv")
LEAST_SPEEDS = {"times": 8, "memory": 4}  # millions of actions per second; slower machines miss them
LIMITS = {"seconds": 15, "GiB": 4}


def halves(name, command):
    """Medians of each net's backward as a whole, of I, and of I and W together."""
    report, medians = run(name, command), {}
    for net in SPLIT_NETS:
        times = report[net]
        medians[f"{net} B"] = middle(times["whole_seconds"])
        medians[f"{net} I"] = middle(times["input_seconds"])
        medians[f"{net} I + W"] = middle([a + b for a, b in zip(times["input_seconds"], times["weight_seconds"])])
    return medians


def split(bench):
    """(split) I and W of a stage against its whole backward, and against torch.distributed.pipelining's"""
    bench.need("torch")
    flags = ["--steps", 5 * bench.arguments.steps, *bench.tiny("--width", "64", "--channels", "8")]
    ours, theirs = [bench.program("split_backward_cost"), *flags], [*bench.peer("split_backward"), *flags]
    results = alternate(bench.arguments.rounds, {
        "trestle": lambda: halves("split_backward_cost", ours),
        "pipelining": lambda: halves("split_backward.py", theirs),
        "trestle keeps pages": lambda: halves("split_backward_cost", [*ours, "--keep-pages"]),
        "pipelining keeps pages": lambda: halves("split_backward.py", KEEPS_PAGES + theirs)}, say)
    for net, target in SPLIT_NETS.items():
        for pages, words in (("", ""), (" keeps pages", ", pages kept")):
            of = lambda name, what: best(results, name + pages, f"{net} {what}")
            what = f"(split) {net}{words}"
            bench.row(f"{what}, I + W against B", of("trestle", "I + W"), of("trestle", "B"), target, digits=4)
            bench.row(f"{what}, I + W against the peer's", of("trestle", "I + W"), of("pipelining", "I + W"), "<= 1", digits=4)
            bench.row(f"{what}, the peer's I + W against its B", of("pipelining", "I + W"), of("pipelining", "B"), digits=4)
    return results


def speed(bench, what, schedule, size):
    """Runs one benchmark of schedule_speed in a process of its own."""
    pattern = f"^{what}/{schedule}/{size}(/|$)"
    found = json.loads(output_of("schedule_speed", [
        bench.program("schedule_speed"), f"--benchmark_filter={pattern}", "--benchmark_format=json"]))["benchmarks"]
    if len(found) != 1:
        raise Trouble(f"schedule_speed has {len(found)} benchmarks {pattern}.\nBuild it again.")
    return found[0]


def large(bench):
    """(largeschedule) schedules of 512 ranks and 4096 micro-batches before a run, and the simulator's speed"""
    size, speed_size = ("16/104", "16/104") if bench.arguments.tiny else ("512/4096", "512/400")
    rounds, details = bench.arguments.rounds, {}
    for number in range(rounds):
        for schedule in SCHEDULES:
            for what in ("times", "memory"):
                one = {"whole": speed(bench, f"whole_{what}", schedule, size),
                       "simulator": speed(bench, f"simulate_{what}", schedule, speed_size)}
                details.setdefault(f"{schedule} {what}", []).append(one)
                say(f"  round {number + 1}/{rounds}  {schedule}, {what}: {one['whole']['real_time']:.2f} s, "
                    f"{one['whole']['peak_bytes'] / 2**30:.2f} GiB, {one['simulator']['items_per_second'] / 1e6:.2f} M actions "
                    "per second")
    for schedule in SCHEDULES:
        for what, words in (("times", "without memory"), ("memory", "with memory")):
            reports = [one["whole"] for one in details[f"{schedule} {what}"]]
            name = f"(largeschedule) {schedule}, {reports[0]['actions'] / 1e6:.1f} M actions, simulated {words}"
            bench.row(f"{name}, s (peer: limit)", [one["real_time"] for one in reports], [LIMITS["seconds"]] * rounds,
                      "<= 1", digits=2)
            bench.row(f"{name}, peak GiB (peer: limit)", [one["peak_bytes"] / 2**30 for one in reports],
                      [LIMITS["GiB"]] * rounds, "<= 1", digits=2)
    millions = lambda key: [one["simulator"]["items_per_second"] / 1e6 for one in details[key]]
    for what, words in (("times", "without memory"), ("memory", "with memory")):
        for schedule in SCHEDULES:
            bench.row(f"(largeschedule) {schedule}, M actions per second simulated {words} (peer: 1f1b)",
                      millions(f"{schedule} {what}"), millions(f"1f1b {what}"), f">= {LEAST_SPEEDS[what]} M", digits=2)
    return details
