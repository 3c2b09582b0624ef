"""(resnet50): ResNet-50 beside Python torch's, only the forward, and a training step."""
from bench import FORMATS
from measuring import alternate, best, say

# Images of 3 x 128 x 128. The tutorial's batches of 120 are three times this work.
BATCHES = (8, 40)
DEVICES = ("cpu", "virtual:1")


def steps(bench):
    """(resnet50) ResNet-50 of torchvision"""
    bench.need("torch")
    return {batch: steps_of(bench, batch) for batch in ((4,) if bench.arguments.tiny else BATCHES)}


def steps_of(bench, batch):
    contestants = {}
    for words, flags in FORMATS.items():
        flags = ["--batch", batch, *flags]
        for device in DEVICES:
            contestants[f"trestle, {device}, {words}"] = bench.contestant("resnet50_step", "--device", device, *flags)
        contestants[f"eager, {words}"] = bench.contestant("resnet50_step.py", *flags)
    results = alternate(bench.arguments.rounds, contestants, say)
    for what, words in (("step", "a step"), ("forward", "forward alone")):
        peer = best(results, [f"eager, {order}" for order in FORMATS], what)
        for device in DEVICES:
            bench.row(f"(resnet50) batch of {batch}, {words}, {device}, our better against Python's better",
                      best(results, [f"trestle, {device}, {order}" for order in FORMATS], what), peer,
                      "<= 0.95" if device == "cpu" else "")
    return results
