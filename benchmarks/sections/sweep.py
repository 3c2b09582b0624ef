"""(sweep): PyTorch's model-parallel tutorial. With known costs, the minimum over split sizes is inside the range. With
ResNet-50, it shows this machine's cores."""
import json
import subprocess

from bench import HERE, ROOT
from measuring import Trouble, say

RECIPES = [ROOT / f"recipes/resnet50_{name}.toml" for name in ("single_device", "model_parallel", "pipelined")]
SPLITS = "pipeline.split_size=4,8,12,20,40,60,120"
SMALLER = ["--set", "data.shape=3,64,64"]  # a quarter of the tutorial's pixels
STEPS = ["--warm-up", "1", "--steps", "2"]


def tutorial(bench):
    """(sweep) the model-parallel tutorial"""
    sleeping, resnet = [bench.program("sleeping_trestle")], [bench.program("trestle", "apps/trestle")]
    tiny = bench.tiny("--set", "model.width=4", "--set", "data.shape=3,32,32", "--set", "train.batch=24")
    splits = "pipeline.split_size=4,12,24" if bench.arguments.tiny else SPLITS
    known = measured(bench, "known_costs", sleeping, [HERE / "sleeping.toml", "--over", "pipeline.split_size=1,2,4,8,12,20,40,60,120"])
    curve = measured(bench, "split_sizes", resnet, [RECIPES[2], "--over", splits, *SMALLER, *tiny])
    bars = measured(bench, "recipes", resnet, [*RECIPES, *SMALLER, *tiny])
    against_prediction(bench, "known costs", known)
    inside(known)
    against_prediction(bench, "ResNet-50", curve)
    single, parallel, pipelined = (point["runs"] for point in bars["points"])
    bench.row("(sweep) ResNet-50: model parallel against a single device of one core", parallel, single)
    bench.row("(sweep) ResNet-50: pipelined, 20 samples a piece, against model parallel", pipelined, parallel)
    bench.row("(sweep) ResNet-50: pipelined against a single device of one core", pipelined, single)
    return {"known costs": known, "split sizes": curve, "recipes": bars}


def measured(bench, name, program, flags):
    """Runs `trestle sweep` with these flags; its pictures stay in benchmarks/results/sweep."""
    out = HERE / "results" / "sweep" / name
    (out / "measurements.jsonl").unlink(missing_ok=True)  # measure again
    say(f"  {name}: {out}")
    command = [*program, "sweep", *flags, *STEPS, "--runs", bench.arguments.rounds, "--out", out]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Trouble(f"trestle sweep failed with exit code {done.returncode}:\n{done.stderr.strip()[-800:]}")
    return json.loads((out / "sweep.json").read_text(encoding="utf-8"))


def against_prediction(bench, what, result):
    for point in result["points"]:
        bench.row(f"(sweep) {what}: split size {point['values']['pipeline.split_size']}, against its prediction", point["runs"],
                  [point["predicted"]] * len(point["runs"]))


def inside(result):
    """Checks that with known costs the minimum is neither the first nor the last point."""
    if result["best"] in (0, len(result["points"]) - 1):
        raise Trouble("the shortest step is at the end of the range of split sizes: "
                      f"{result['points'][result['best']]['values']}")
