"""(tensor): a decoder whose layers are split over processes, beside torch.distributed.tensor.parallel."""
from measuring import alternate, best, middle, run, say, seconds_until
from sections.ranks import KEEPS_PAGES

WAYS = ("tp", "tpl", "sp")  # of the peer
OURS = ("tensor", "sequence")
SMALL = ["--layers", "2", "--width", "64", "--heads", "4", "--vocabulary", "256", "--context", "32", "--batch", "4"]


class Starts:
    """The commands of both programs."""

    def __init__(self, bench):
        self.program, self.launcher = bench.program("tensor_step"), bench.program("trestle", "apps/trestle")
        self.python, self.peer = bench.arguments.python, bench.peer("tensor_step")

    def ours(self, ranks, *flags):
        start = [self.launcher, "launch", "-n", ranks, "--prefix", "off", "--bind", "off", "--"] if ranks > 1 else []
        return [*start, self.program, *flags]

    def theirs(self, ranks, way, *flags):
        start = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
        return [*([*start, *self.peer[1:]] if ranks > 1 else self.peer), "--way", way, *flags]


def memory(bench, words, ours, theirs):
    """The most memory of rank 0, without that from before the model."""
    mebibytes = lambda report, key: [report[key] / 2**20]
    bench.row(f"(tensor) {words}, MiB of a rank beside weights, states and kept activations by formula",
              mebibytes(ours, "peak_bytes"), mebibytes(ours, "predicted_bytes"), digits=0)
    bench.row(f"(tensor) {words}, MiB of a rank beside the peer's", mebibytes(ours, "peak_bytes"),
              mebibytes(theirs, "peak_bytes"), digits=0)


def tensor(bench):
    """(tensor) a step of a decoder whose layers are split over processes, against parallelize_module on Gloo"""
    bench.need("torch")
    starts, details = Starts(bench), {}

    def steps(words, commands):
        """Runs all commands in turn. Returns each one's times, and its last report."""
        reports = {}

        def step(name):
            report = reports[name] = run(name, commands[name])
            return {"step": middle([a + b for a, b in zip(report["gradients_seconds"], report["optimizer_seconds"])])}

        results = alternate(bench.arguments.rounds, {name: lambda name=name: step(name) for name in commands}, say)
        details[words] = {"times": results, "reports": reports}
        return results, reports

    for words, sizes, target in (("", [], "<= 0.93"), (", tiny", SMALL, "<= 0.50")):
        flags = ["--steps", bench.arguments.steps, *(SMALL if bench.arguments.tiny else sizes)]
        results, reports = steps(f"1{words}", {"trestle": starts.ours(1, *flags), "eager": starts.theirs(1, "one", *flags),
                                               "compiled": starts.theirs(1, "compiled", *flags)})
        for name, limit in (("eager", "<= 0.95"), ("compiled", None)):
            bench.row(f"(tensor) one process{words}, against {name}", best(results, "trestle", "step"),
                      best(results, name, "step"), limit)
        if not words:
            memory(bench, "one process", reports["trestle"], reports["eager"])
        for ranks in (2, 4):
            commands = {way: starts.ours(ranks, "--way", way, *flags) for way in (*OURS, "alone")}
            commands |= {way: starts.theirs(ranks, way, *flags) for way in WAYS}
            commands["tpl keeps pages"] = [*KEEPS_PAGES, *starts.theirs(ranks, "tpl", *flags)]
            results, reports = steps(f"{ranks}{words}", commands)
            for name, peers, limit in (("the best of three", WAYS, target), ("tpl, pages kept", ["tpl keeps pages"], None)):
                bench.row(f"(tensor) {ranks} processes{words}, our best of two against {name}", best(results, OURS, "step"),
                          best(results, peers, "step"), limit)
            bench.row(f"(tensor) {ranks} processes{words}, without messages, against the best of three",
                      best(results, "alone", "step"), best(results, WAYS, "step"))
            if not words:
                memory(bench, f"{ranks} processes", reports["tensor"], reports["tpl"])
    is_first = lambda line: line.startswith("first step")
    for ranks in (1, 2):
        flags = ["--steps", "1", *SMALL]
        commands = {"ours": starts.ours(ranks, "--way", "tensor", *flags),
                    "theirs": starts.theirs(ranks, "tpl" if ranks > 1 else "one", *flags)}
        times = alternate(bench.arguments.rounds, {name: lambda name=name: {"start": seconds_until(name, commands[name], is_first)}
                                                   for name in commands}, say)
        bench.row(f"(tensor) {ranks} process{'es' if ranks > 1 else ''}, tiny, from the start to the end of the first step",
                  best(times, "ours", "start"), best(times, "theirs", "start"))
    return details
