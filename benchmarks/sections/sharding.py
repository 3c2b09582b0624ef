"""(ddp), (fsdp), (deepspeed), (shardranks), (overlap), (flatoptimizer), (shardlargest): one model on several ranks."""
from measuring import alternate, best, middle, run, say, spread
from sections.ranks import KEEPS_PAGES

MODELS = {"mlp": [], "conv": ["--model", "conv", "--batch", "32"]}
OPTIMIZERS = {"adamw": "<= 0.20", "rmsprop": "<= 0.35", "sgd": "<= 0.75"}


def launched(bench, ranks, *flags):
    return [bench.program("trestle", "apps/trestle"), "launch", "-n", ranks, "--prefix", "off", "--bind", "off", "--",
            bench.program("sharded_step"), *flags]


def torchrun(bench, ranks, *flags):
    return [bench.arguments.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
            *bench.peer("sharded_step")[1:], *flags]


def sizes(bench, *flags):
    return [*flags, "--steps", bench.arguments.steps, *bench.tiny("--width", "64")]


# Each row as the programs come, and with both keeping the pages of freed memory.
PAGES = {"": ([], []), ", pages kept": (["--keep-pages"], KEEPS_PAGES)}


def step(name, command):
    report = run(name, command)
    return {"step": middle([a + b for a, b in zip(report["gradients_seconds"], report["optimizer_seconds"])])}


def ddp(bench):
    """(ddp) a step with replicated weights over processes, against Python's DistributedDataParallel on Gloo"""
    bench.need("torch")
    details = {}
    for model, flags in MODELS.items():
        for ranks in (2, 4):
            common = sizes(bench, *flags)
            for words, (own, env) in PAGES.items():
                results = alternate(bench.arguments.rounds, {
                    "trestle": lambda: step("sharded_step", launched(bench, ranks, *common, *own)),
                    "apart": lambda: step("sharded_step", launched(bench, ranks, "--what", "apart", *common, *own)),
                    "fused": lambda: step("sharded_step.py", env + torchrun(bench, ranks, *common)),
                    "stock": lambda: step("sharded_step.py",
                                          env + torchrun(bench, ranks, "--optimizer", "stock", *common))}, say)
                for peer, target in (("fused", "<= 0.95"), ("stock", "<= 0.75")):
                    bench.row(f"(ddp) {model}, {ranks} processes, against {peer} AdamW{words}",
                              best(results, "trestle", "step"), best(results, peer, "step"), target)
                bench.row(f"(ddp) {model}, {ranks} processes that do not communicate, against fused AdamW{words}",
                          best(results, "apart", "step"), best(results, "fused", "step"))
                details[f"{model} {ranks}{words}"] = results
    return details


def fsdp(bench):
    """(fsdp) a step with sharded state over processes, against Python's FSDP2 on Gloo"""
    bench.need("torch")
    details = {}
    for model, flags in MODELS.items():
        for level, words in (("gradients", "ZeRO-2"), ("parameters", "ZeRO-3")):
            for ranks in (2, 4):
                common = sizes(bench, "--level", level, *flags)
                for pages, (own, env) in PAGES.items():
                    results = alternate(bench.arguments.rounds, {
                        "trestle": lambda: step("sharded_step", launched(bench, ranks, *common, *own)),
                        "apart": lambda: step("sharded_step",
                                              launched(bench, ranks, "--what", "apart", *common, *own)),
                        "fsdp2": lambda: step("sharded_step.py", env + torchrun(bench, ranks, *common))}, say)
                    bench.row(f"(fsdp) {model}, {words}, {ranks} processes, against FSDP2{pages}",
                              best(results, "trestle", "step"), best(results, "fsdp2", "step"), "<= 0.70")
                    bench.row(f"(fsdp) {model}, {words}, {ranks} processes that do not communicate{pages}",
                              best(results, "apart", "step"), best(results, "fsdp2", "step"))
                    details[f"{model} {level} {ranks}{pages}"] = results
    return details


def deepspeed(bench):
    """(deepspeed) a step of the MLP, 12 x 1024, with sharded state over two processes, against DeepSpeed's on Gloo"""
    bench.need("torch", "deepspeed", "ninja")
    details = {}
    for stage, level in ((1, "optimizer-state"), (2, "gradients"), (3, "parameters")):
        common = sizes(bench, "--layers", "12")
        peer = [bench.arguments.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2,
                *bench.peer("deepspeed_step")[1:], "--stage", stage, *common]
        results = alternate(bench.arguments.rounds, {
            "trestle": lambda: step("sharded_step", launched(bench, 2, "--level", level, *common)),
            "deepspeed": lambda: step("deepspeed_step.py", peer)}, say)
        bench.row(f"(deepspeed) mlp of 12 layers, ZeRO-{stage}, 2 processes, against DeepSpeed on Gloo",
                  best(results, "trestle", "step"), best(results, "deepspeed", "step"), "<= 0.45")
        details[f"stage {stage}"] = results
    return details


def ranks(bench):
    """(shardranks) thread ranks against processes, at each level"""
    details = {}
    for level in ("none", "optimizer-state", "gradients", "parameters"):
        common = sizes(bench, "--level", level)
        threads = [bench.program("sharded_step"), "--on", "threads", "--ranks", "2", *common]
        results = alternate(bench.arguments.rounds, {
            "threads": lambda: step("sharded_step", threads),
            "processes": lambda: step("sharded_step", launched(bench, 2, *common))}, say)
        bench.row(f"(shardranks) mlp, level {level}, 2 thread ranks against 2 processes", best(results, "threads", "step"),
                  best(results, "processes", "step"), "< 1")
        details[level] = results
    return details


def overlap(bench):
    """(overlap) communication that a backward hides, against Python's DistributedDataParallel"""
    bench.need("torch")
    common = sizes(bench, "--what", "overlap")

    def shares(name, command):
        report = {key: middle(seconds) for key, seconds in run(name, command).items()}
        shown = report["with_seconds"] - report["without_seconds"]
        return {"alone": report["alone_seconds"], "shown": shown, "hidden": 1 - shown / report["alone_seconds"]}

    results = alternate(bench.arguments.rounds, {
        "trestle": lambda: shares("sharded_step", launched(bench, 2, *common)),
        "ddp": lambda: shares("sharded_step.py", torchrun(bench, 2, *common))}, say)
    for key, words in (("alone", "gradients reduced with nothing beside, s"),
                       ("shown", "what reducing them adds to a forward and backward, s")):
        bench.row(f"(overlap) mlp, 2 processes, {words}", best(results, "trestle", key), best(results, "ddp", key))
    hidden = {name: [100 * one["hidden"] for one in results[name]] for name in results}
    points = [ours - theirs for ours, theirs in zip(hidden["trestle"], hidden["ddp"])]
    bench.row("(overlap) mlp, 2 processes, hidden, percent (ratio: points more)", hidden["trestle"], hidden["ddp"],
              ratio=spread(points), digits=0)
    return results


def flat_optimizer(bench):
    """(flatoptimizer) an optimizer's step over flat shards, against torch::optim's"""
    command = [bench.program("sharded_step"), "--what", "optimizer", "--on", "threads", "--ranks", "1",
               *sizes(bench, "--layers", "30")]
    reports = [run("sharded_step", command) for _ in range(bench.arguments.rounds)]
    for name, target in OPTIMIZERS.items():
        bench.row(f"(flatoptimizer) {name} over the shards of 31.5 M parameters", [one[name]["ours"] for one in reports],
                  [one[name]["theirs"] for one in reports], target, digits=4)
    return reports


def largest(bench):
    """(shardlargest) the largest model that fits, at each level, against the formula"""
    report = run("largest_sharded", [bench.program("largest_sharded"),
                                     *bench.tiny("--budget", "8MiB", "--width", "64", "--devices", "1,2")], show=True)
    for row in report["rows"]:
        bench.row(f"(shardlargest) M parameters, level {row['level']}, {row['devices']} virtual devices (peer: formula)",
                  [row["parameters"] / 1e6], [row["formula"] / 1e6], digits=1)
    return report
