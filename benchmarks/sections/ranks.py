"""(ranks): pipelines over processes and thread ranks."""
from measuring import alternate, best, middle, run, say, seconds_until

PLANS = ((2, "gpipe"), (2, "1f1b"), (4, "gpipe"), (4, "1f1b"), (4, "interleaved_1f1b"), (4, "zb_h1"), (4, "zbv"))


def launched(bench, ranks, *flags):
    return [bench.program("trestle", "apps/trestle"), "launch", "-n", ranks, "--prefix", "off", "--bind", "off", "--",
            bench.program("ranks_step"), "--on", "processes", "--ranks", ranks, *flags]


def torchrun(bench, ranks, *flags):
    return [bench.arguments.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks,
            *bench.peer("pipelining_step")[1:], *flags]


def median_step(name, command):
    return {"step": middle(run(name, command)["step_seconds"])}


def sizes(bench):
    return ["--steps", bench.arguments.steps, *bench.tiny("--width", "64", "--batch", "16")]


# glibc's malloc then returns no memory to the system, and takes large blocks from what it kept.
KEEPS_PAGES = ["env", "MALLOC_TRIM_THRESHOLD_=17179869184", "MALLOC_MMAP_MAX_=0", "MALLOC_TOP_PAD_=67108864"]


def step_and_usage(name, command):
    report = run(name, command)
    return {"step": middle(report["step_seconds"]), **report["per_step"]}


def against_pipelining(bench):
    """(ranks) an MLP over processes, against torch.distributed.pipelining"""
    bench.need("torch")
    details = {}
    for ranks, schedule in PLANS:
        flags = ["--schedule", schedule, *sizes(bench)]
        results = alternate(bench.arguments.rounds, {
            "trestle": lambda: step_and_usage("ranks_step", launched(bench, ranks, *flags)),
            "pipelining": lambda: step_and_usage("pipelining_step.py", torchrun(bench, ranks, *flags)),
            "trestle keeps pages": lambda: step_and_usage("ranks_step", launched(bench, ranks, *flags, "--keep-pages")),
            "pipelining keeps pages": lambda: step_and_usage(
                "pipelining_step.py", KEEPS_PAGES + torchrun(bench, ranks, *flags))}, say)
        for pages, words, target in (("", "", "<= 0.85"), (" keeps pages", ", pages kept", "<= 0.85")):
            what = f"(ranks) MLP, {ranks} processes, {schedule}{words}"
            ours, theirs = "trestle" + pages, "pipelining" + pages
            bench.row(f"{what}, step", best(results, ours, "step"), best(results, theirs, "step"), target)
            for key, name, scale in (("waits", "context switches of waiting threads per step", 1),
                                     ("preemptions", "context switches of running threads per step", 1),
                                     ("page_faults", "page faults per step", 1),
                                     ("system_seconds", "system time per step, ms", 1000)):
                bench.row(f"{what}, {name}", [scale * one for one in best(results, ours, key)],
                          [scale * one for one in best(results, theirs, key)], digits=0)
        details[f"{ranks} {schedule}"] = results
    return details


def transports(bench):
    """(transports) the same pipeline in one process, on thread ranks and on processes"""
    details = {}
    for what in ("mlp", "unet"):
        flags = ["--what", what, *sizes(bench)]
        if what == "unet":
            flags += ["--batch", "8", "--micro-batches", "4"]
        program = bench.program("ranks_step")
        results = alternate(bench.arguments.rounds, {
            "local": lambda: median_step("ranks_step", [program, "--on", "local", *flags]),
            "threads": lambda: median_step("ranks_step", [program, "--on", "threads", *flags]),
            "processes": lambda: median_step("ranks_step", launched(bench, 2, *flags))}, say)
        bench.row(f"(transports) {what}, 2 thread ranks against processes", best(results, "threads", "step"),
                  best(results, "processes", "step"), "< 1")
        bench.row(f"(transports) {what}, one process (one thread) against 2 thread ranks",
                  best(results, "local", "step"), best(results, "threads", "step"))
        details[what] = results
    return details


def messages(bench):
    """(messages) a message of 1 KiB between empty stages, against c10d's send and receive"""
    ours, theirs = [], []
    for _ in range(bench.arguments.rounds):
        report = run("ranks_step", launched(bench, 2, "--what", "messages", "--steps", bench.arguments.steps))
        ours.append(middle(report["message_seconds"]) * 1e6)
        theirs.append(middle(report["bare_seconds"]) * 1e6)
    bench.row("(messages) 1 KiB between empty stages, microseconds", ours, theirs, "<= 1.3", digits=1)
    return {"ours": ours, "theirs": theirs}


def start(bench):
    """(rankstart) four ranks from their start to the end of the first step, against torchrun"""
    bench.need("torch")
    said = lambda line: line.startswith("first step")
    flags = ["--width", "64", "--batch", "16", "--steps", "1"]
    results = alternate(bench.arguments.rounds, {
        "trestle": lambda: {"start": seconds_until("trestle launch", launched(bench, 4, *flags), said)},
        "torchrun": lambda: {"start": seconds_until("torchrun", torchrun(bench, 4, *flags), said)}}, say)
    bench.row("(rankstart) four ranks to the first step", best(results, "trestle", "start"),
              best(results, "torchrun", "start"), "<= 0.2")
    return results


def idle(bench):
    """(idle) sixteen thread ranks whose stages sleep, against the simulator"""
    details = {}
    for schedule in ("gpipe", "1f1b"):
        report = run("ranks_step", [bench.program("ranks_step"), "--what", "idle", "--on", "threads", "--ranks", "16",
                                    "--schedule", schedule, "--micro-batches", "16", "--steps", bench.arguments.steps])
        measured = [100 * share for share in report["idle"]]
        expected = [100 * report["simulated_idle"]] * len(measured)
        bench.row(f"(idle) 16 thread ranks, {schedule}, percent of the makespan", measured, expected,
                  "within 3 points", digits=1)
        details[schedule] = report
    return details
