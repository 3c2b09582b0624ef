"""(a) and (b): training steps beside libtorch, Python torch and torchgpipe."""
from bench import FORMATS, MODES, TWO_STAGES
from measuring import alternate, say


def one_stage(bench):
    """(a) one stage"""
    bench.need("torch")
    contestants = {}
    for words, flags in FORMATS.items():
        contestants[f"trestle, {words}"] = bench.contestant("unet_step", "--devices", "virtual:1", *flags)
        contestants[f"libtorch, {words}"] = bench.contestant("plain_unet_step", *flags)
        contestants[f"eager, {words}"] = bench.contestant("plain_torch.py", *flags)
        contestants[f"compiled, {words}"] = bench.contestant("plain_torch.py", "--compile", *flags)
    results = alternate(bench.arguments.rounds, contestants, say)
    ours = [f"trestle, {words}" for words in FORMATS]
    for words, target in (("contiguous", "<= 0.90"), ("channels_last", "<= 0.97")):
        bench.compare(results, f"(a) one stage against Python torch, {words}", f"trestle, {words}", f"eager, {words}", target)
    bench.compare(results, "(a) one stage, our better against Python's best of four", ours,
                  [f"{way}, {words}" for way in ("eager", "compiled") for words in FORMATS], "<= 0.95")
    for words in FORMATS:
        bench.compare(results, f"(a) one stage against libtorch, {words}", f"trestle, {words}", f"libtorch, {words}", "<= 1.00")
    return results


def two_stages(bench):
    """(b) two stages"""
    bench.need("torch", "torchgpipe")
    return {mode: two_stages_with(bench, mode) for mode in MODES}


def two_stages_with(bench, mode):
    on_cpu = ["cpu" if word == "virtual:2" else word for word in TWO_STAGES]
    recompute = ["--recompute", mode]
    contestants = {"without lending": bench.contestant("unet_step", *TWO_STAGES, *recompute)}
    for words, flags in FORMATS.items():
        contestants[f"virtual:2, {words}"] = bench.contestant("unet_step", *TWO_STAGES, "--lend", *recompute, *flags)
        contestants[f"cpu, {words}"] = bench.contestant("unet_step", *on_cpu, *recompute, *flags)
        contestants[f"torchgpipe, {words}"] = bench.contestant("torchgpipe_step.py", *recompute, *flags)
    results = alternate(bench.arguments.rounds, contestants, say)
    for words in FORMATS:
        bench.compare(results, f"(b) virtual:2, lending, against torchgpipe, {mode}, {words}", f"virtual:2, {words}",
                      f"torchgpipe, {words}", "<= 0.85")
    bench.compare(results, f"(b) virtual:2, lending, our better against its better, {mode}",
                  [f"virtual:2, {words}" for words in FORMATS], [f"torchgpipe, {words}" for words in FORMATS], "<= 0.88",
                  gradients=False)
    for words in FORMATS:
        bench.compare(results, f"(b) plain cpu against torchgpipe, {mode}, {words}", f"cpu, {words}", f"torchgpipe, {words}",
                      "<= 0.82", gradients=False)
    bench.compare(results, f"(b) virtual:2 without lending against torchgpipe, {mode}, contiguous", "without lending",
                  "torchgpipe, contiguous", gradients=False)
    return results
