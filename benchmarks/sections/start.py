"""(e): from the start of a process to the end of its first training step."""
import tempfile

from bench import ROOT, TWO_STAGES, synthetic_cars
from measuring import alternate, best, say, seconds_until

QUICK = ["--width", "16", "--batch", "16", "--rows", "64", "--columns", "96", "--steps", "1", "--warm-up", "0"]
WITHOUT_PREDICTION, WITH_PREDICTION = "<= 0.18", "<= 0.28"


def first_step(bench):
    """(e) start to first step"""
    bench.need("torch", "numpy", "PIL")
    ours = [bench.program("unet_step"), *TWO_STAGES, "--recompute", "except_last", *QUICK]
    theirs = [*bench.peer("plain_torch"), *QUICK]
    said = lambda line: line.startswith("first step")
    details = {"in memory": race(bench, "(e) start to first step, model and batch in memory", WITHOUT_PREDICTION,
                                 lambda: seconds_until("unet_step", ours, said),
                                 lambda: seconds_until("plain_torch.py", theirs, said))}
    images, masks = synthetic_cars(bench, "carvana_small", 480, width=192, height=128)
    peer = [*bench.peer("first_recipe_step"), "--images", images, "--masks", masks]
    stepped = lambda line: '"event":"step"' in line
    with tempfile.TemporaryDirectory() as runs:
        for words, predict, target in (("", "false", WITHOUT_PREDICTION), (" and prediction", "true", WITH_PREDICTION)):
            train = [bench.program("trestle", "apps/trestle"), "train", ROOT / "recipes/unet_quick.toml", "--json",
                     "--images", images, "--masks", masks, "--runs", runs, "--predict", predict]
            details["files" + words] = race(bench, f"(e) start to first step of the recipe, with its files{words}", target,
                                            lambda: seconds_until("trestle train", train, stepped),
                                            lambda: seconds_until("first_recipe_step.py", peer, said))
    return details


def race(bench, what, target, ours, theirs):
    ours(), theirs()  # cache the files: "warm"
    results = alternate(max(5, bench.arguments.rounds), {"trestle": lambda: {"start": ours()},
                                                         "Python torch": lambda: {"start": theirs()}}, say)
    bench.row(what, best(results, "trestle", "start"), best(results, "Python torch", "start"), target)
    return results
