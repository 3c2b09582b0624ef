"""(shardsave): a checkpoint of sharded ranks."""
import tempfile
from pathlib import Path

from measuring import run, spread


def speed(bench):
    """(shardsave) a checkpoint of 1 GiB, against the disk's sequential writing; a save in the background, against a copy"""
    with tempfile.TemporaryDirectory(dir=Path(bench.arguments.build)) as folder:
        report = run("save_speed", [bench.program("save_speed"), "--folder", Path(folder) / "saved", "--rounds",
                                    bench.arguments.rounds, *bench.tiny("--layers", "4", "--width", "64")])
    gigabytes = report["bytes"][0] / 1e9
    saved, plain = ([gigabytes / seconds for seconds in report[what]] for what in ("save", "disk"))
    bench.row(f"(shardsave) {gigabytes:.2f} GB of 2 thread ranks, GB/s until it is on the disk (peer: one file, in sequence)",
              saved, plain, ">= 0.8", ratio=spread([a / b for a, b in zip(saved, plain)]))
    bench.row("(shardsave) seconds that a save in the background holds a step up (peer: a copy in memory)", report["stall"],
              report["copy"], "<= 1.2")
    return report
