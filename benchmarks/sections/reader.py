"""(reader): pictures and masks in batches, beside Pillow and torch's DataLoader, and the time that loading adds to a step."""
import math

from bench import ROOT, synthetic_cars
from measuring import Trouble, alternate, best, middle, run, say

COUNT = 48  # pictures in Carvana's size


def reading(bench):
    """(reader) Carvana's pictures, and the loader's share of a step"""
    bench.need("torch", "numpy", "PIL")
    size = {"width": 96, "height": 64} if bench.arguments.tiny else {"width": 1918, "height": 1280}
    images, masks = synthetic_cars(bench, f"carvana_{size['width']}", COUNT, **size)
    return {"pictures": [pictures(bench, images, masks, workers) for workers in (1, 2)], "share": share(bench)}


def pictures(bench, images, masks, workers):
    flags = ["--images", images, "--masks", masks, "--workers", workers, "--batch", "8"]
    reports = {}

    def contestant(name, command):
        def read():
            reports[name] = run(name, [*command, *flags])
            return {"picture": middle(reports[name]["seconds"]) / reports[name]["examples"]}
        return read

    results = alternate(bench.arguments.rounds, {
        "trestle": contestant("trestle", [bench.program("read_pictures")]),
        "Pillow and DataLoader": contestant("Pillow and DataLoader", bench.peer("read_pictures"))}, say)
    for what in ("input_sum", "target_sum"):
        ours, theirs = (report[what] for report in reports.values())
        if not math.isclose(ours, theirs, rel_tol=1e-4):
            raise Trouble(f"the two programs did not read the same pictures: {what} is {ours} and {theirs}")
    several = "s" if workers > 1 else ""
    a_second = {name: [1 / seconds for seconds in best(results, name, "picture")] for name in results}
    bench.row(f"(reader) pictures per second, {workers} worker{several} (more is better)", a_second["trestle"],
              a_second["Pillow and DataLoader"], ">= 1.50", digits=1)
    return results


def share(bench):
    images, masks = synthetic_cars(bench, "carvana_small", 480, width=192, height=128)
    command = [bench.program("loader_share"), "--recipe", ROOT / "recipes/unet_quick.toml", "--images", images, "--masks", masks,
               *bench.tiny("--epochs", "1")]
    reports = []
    for number in range(bench.arguments.rounds):
        reports.append(run("loader_share", command))
        say(f"  round {number + 1}/{bench.arguments.rounds}  quick recipe: " + ", ".join(
            f"{what} {middle(reports[-1][f'{what}_seconds']):.4f} s" for what in ("loaded", "in_memory", "waited")))
    seconds = {what: [middle(report[f"{what}_seconds"]) for report in reports] for what in ("loaded", "in_memory", "waited")}
    bench.row("(reader) step of the quick recipe with its loader, against a batch in memory", seconds["loaded"],
              seconds["in_memory"], "<= 1.03", digits=4)
    bench.row("(reader) waiting for the loader in such a step", seconds["waited"], seconds["loaded"], "<= 0.03", digits=4)
    return reports
