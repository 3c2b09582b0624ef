"""(c) and (d): the simulator's prediction of a step, beside the measurement."""
from bench import MODES, TWO_STAGES
from measuring import run, say, step_seconds

NETS = {
    "quick": ["--width", "16", "--batch", "16", "--rows", "64", "--columns", "96", "--steps", "10", "--warm-up", "2"],
    "31M": ["--steps", "3"],
}
TINY = {"tiny": ["--width", "4", "--batch", "4", "--rows", "32", "--columns", "32", "--steps", "2"]}
LENT_MODES = ("never", "always")


def predictions(bench):
    """(c) and (d) measurement and prediction"""
    everything = {}
    for net, size in (TINY if bench.arguments.tiny else NETS).items():
        for schedule in ("gpipe", "1f1b"):
            for lend in (False, True):
                for mode in LENT_MODES if lend else MODES:
                    name = f"{net}, {schedule}, {mode}" + (", lent" if lend else "")
                    command = [bench.program("unet_step"), *TWO_STAGES, *size, "--schedule", schedule, "--recompute", mode,
                               "--predict", *(["--lend"] if lend else [])]
                    everything[name] = measure(bench, name, command)
                    compare(bench, name, everything[name])
    return everything


def measure(bench, name, command):
    """Both numbers come from one process."""
    reports = []
    for number in range(bench.arguments.rounds):
        reports.append(run("unet_step", command))
        say(f"  round {number + 1}/{bench.arguments.rounds}  {name}: predicted {reports[-1]['predicted']['seconds']:.3f} s, "
            f"measured {step_seconds(reports[-1])['gradients']:.3f} s")
    return reports


def compare(bench, name, reports):
    if "c" in bench.arguments.only:
        bench.row(f"(c) step time, {name}", [step_seconds(report)["gradients"] for report in reports],
                  [report["predicted"]["seconds"] for report in reports], "0.90 .. 1.10")
    if "d" in bench.arguments.only:
        for stage in range(2):
            bench.row(f"(d) peak MiB of virtual:{stage}, {name}",
                      [report["peak_bytes"][stage] / 2**20 for report in reports],
                      [report["predicted"]["peak_bytes"][stage] / 2**20 for report in reports], "0.95 .. 1.05", digits=1)
