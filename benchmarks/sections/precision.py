"""(bf16): a training step in bf16 autocast, beside Python torch's."""
from bench import FORMATS
from measuring import alternate, say


def bf16(bench):
    """(bf16) one stage in bf16 autocast"""
    bench.need("torch")
    contestants = {}
    for words, flags in FORMATS.items():
        flags = ["--precision", "bf16", *flags]
        contestants[f"trestle, {words}"] = bench.contestant("unet_step", "--devices", "virtual:1", *flags)
        contestants[f"eager, {words}"] = bench.contestant("plain_torch.py", *flags)
        contestants[f"compiled, {words}"] = bench.contestant("plain_torch.py", "--compile", *flags)
    contestants["trestle, fp32"] = bench.contestant("unet_step", "--devices", "virtual:1", "--channels-last")
    results = alternate(bench.arguments.rounds, contestants, say)
    for words in FORMATS:
        bench.compare(results, f"(bf16) against Python torch, {words}", f"trestle, {words}", f"eager, {words}")
    ours = [f"trestle, {words}" for words in FORMATS]
    bench.compare(results, "(bf16) our better against Python's better", ours, [f"eager, {words}" for words in FORMATS], "<= 0.95")
    bench.compare(results, "(bf16) our better against Python's best of four", ours,
                  [f"{way}, {words}" for way in ("eager", "compiled") for words in FORMATS], "<= 0.95", gradients=False)
    bench.compare(results, "(bf16) our better against our fp32, channels_last", ours, "trestle, fp32", gradients=False)
    return results
