"""(tensor): a decoder whose layers are split over processes, beside torch.distributed.tensor.parallel."""
from measuring import alternate, best, middle, run, say
from sections.ranks import KEEPS_PAGES

WAYS = ("tp", "tpl", "sp")  # of the peer
SMALL = ["--layers", "2", "--width", "64", "--heads", "4", "--vocabulary", "256", "--context", "32", "--batch", "4"]


def step(name, command):
    report = run(name, command)
    return {"step": middle([a + b for a, b in zip(report["gradients_seconds"], report["optimizer_seconds"])])}


def tensor(bench):
    """(tensor) a step of a decoder whose layers are split over processes, against parallelize_module on Gloo"""
    bench.need("torch")
    program, launcher = bench.program("tensor_step"), bench.program("trestle", "apps/trestle")
    details = {}

    def ours(ranks, *flags):
        start = [launcher, "launch", "-n", ranks, "--prefix", "off", "--bind", "off", "--"] if ranks > 1 else []
        return lambda: step("tensor_step", [*start, program, *flags])

    def theirs(ranks, way, *flags, pages=()):
        start = [*pages, bench.arguments.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        peer = [*start, *bench.peer("tensor_step")[1:]] if ranks > 1 else bench.peer("tensor_step")
        return lambda: step("tensor_step.py", [*peer, "--way", way, *flags])

    for words, sizes, target in (("", [], "<= 0.93"), (", tiny", SMALL, "<= 0.50")):
        flags = ["--steps", bench.arguments.steps, *(SMALL if bench.arguments.tiny else sizes)]
        results = details["1" + words] = alternate(bench.arguments.rounds, {
            "trestle": ours(1, *flags), "eager": theirs(1, "one", *flags), "compiled": theirs(1, "compiled", *flags)}, say)
        for name, limit in (("eager", "<= 0.95"), ("compiled", None)):
            bench.row(f"(tensor) one process{words}, against {name}", best(results, "trestle", "step"),
                      best(results, name, "step"), limit)
        for ranks in (2, 4):
            contestants = {"tensor": ours(ranks, "--way", "tensor", *flags), "sequence": ours(ranks, "--way", "sequence", *flags),
                           "alone": ours(ranks, "--way", "alone", *flags)}
            contestants |= {way: theirs(ranks, way, *flags) for way in WAYS}
            contestants["tpl keeps pages"] = theirs(ranks, "tpl", *flags, pages=KEEPS_PAGES)
            results = details[f"{ranks}{words}"] = alternate(bench.arguments.rounds, contestants, say)
            bench.row(f"(tensor) {ranks} processes{words}, our best of two against the best of three",
                      best(results, ("tensor", "sequence"), "step"), best(results, WAYS, "step"), target)
            bench.row(f"(tensor) {ranks} processes{words}, our best of two against tpl, pages kept",
                      best(results, ("tensor", "sequence"), "step"), best(results, "tpl keeps pages", "step"))
            bench.row(f"(tensor) {ranks} processes{words}, without messages, against the best of three",
                      best(results, "alone", "step"), best(results, WAYS, "step"))
    return details
