"""(resnet50): ResNet-50 beside Python torch's, forward alone and a training step."""
from bench import FORMATS
from measuring import alternate, best, say

# Of 3 x 128 x 128; the tutorial has batches of 120, which are the same work three times over.
BATCHES = (8, 40)


def steps(bench):
    """(resnet50) ResNet-50 of torchvision"""
    bench.need("torch")
    return {batch: steps_of(bench, batch) for batch in ((4,) if bench.arguments.tiny else BATCHES)}


def steps_of(bench, batch):
    contestants = {}
    for words, flags in FORMATS.items():
        flags = ["--batch", batch, *flags]
        contestants[f"trestle, {words}"] = bench.contestant("resnet50_step", *flags)
        contestants[f"eager, {words}"] = bench.contestant("resnet50_step.py", *flags)
    results = alternate(bench.arguments.rounds, contestants, say)
    for what, words in (("step", "a step"), ("forward", "forward alone")):
        for order in FORMATS:
            bench.row(f"(resnet50) batch of {batch}, {words}, {order}", best(results, f"trestle, {order}", what),
                      best(results, f"eager, {order}", what))
        bench.row(f"(resnet50) batch of {batch}, {words}, our better against Python's better",
                  best(results, [f"trestle, {order}" for order in FORMATS], what),
                  best(results, [f"eager, {order}" for order in FORMATS], what), "<= 0.95")
    return results
