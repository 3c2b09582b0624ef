"""(split): a backward in two halves."""
from measuring import alternate, best, middle, run, say
from sections.ranks import KEEPS_PAGES

# The target of I + W against B where all layers with large weights are products of matrices.
SPLIT_NETS = {"linear": "<= 1.05", "convolution": None, "attention": "<= 1.05"}


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
