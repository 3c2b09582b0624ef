"""Shared by the sections of run.py: the paths of programs, the packages of peers, and the rows of the table."""
import subprocess
from pathlib import Path

from measuring import Trouble, best, quotients, run, say, spread, step_seconds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MODES = ("never", "except_last", "always")
TWO_STAGES = ["--devices", "virtual:2", "--balance", "13,9", "--micro-batches", "4"]
FORMATS = {"contiguous": [], "channels_last": ["--channels-last"]}


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rows = []

    def program(self, name, folder="benchmarks"):
        path = Path(self.arguments.build) / folder / name
        if not path.exists():
            raise Trouble(f"there is no {path}.\nBuild it: cmake --preset release && cmake --build --preset release "
                          "--target trestle_benchmarks trestle_program")
        return path

    def peer(self, name):
        return [self.arguments.python, HERE / "peers" / f"{name}.py"]

    def need(self, *packages):
        """Reports the missing packages of the peers in one line, instead of a traceback for each."""
        look = "import importlib.util, sys; sys.exit(' '.join(p for p in sys.argv[1:] if not importlib.util.find_spec(p)) or None)"
        try:
            done = subprocess.run([self.arguments.python, "-c", look, *packages], capture_output=True, text=True)
        except OSError as error:
            raise Trouble(f"{self.arguments.python} cannot be started: {error}.\nSet another one with --python.") from None
        if done.returncode != 0:
            raise Trouble(f"{self.arguments.python} lacks {done.stderr.strip()}.\nInstall it there "
                          "(torch==2.13.0, torchgpipe==0.0.7, pillow, deepspeed==0.19.8 with ninja), set another Python with --python, or omit these "
                          "measurements with --only.")

    def tiny(self, *flags):
        """Returns these flags with --tiny, else nothing."""
        return flags if self.arguments.tiny else ()

    def contestant(self, name, *flags):
        """Returns a function that runs one program, ours or a peer's (*.py), and returns the medians of its steps."""
        start = self.peer(name.removesuffix(".py")) if name.endswith(".py") else [self.program(name)]
        command = [*start, *flags, "--steps", self.arguments.steps,
                   *self.tiny("--width", "4", "--batch", "4", "--rows", "32", "--columns", "32")]
        return lambda: step_seconds(run(name, command))

    def has(self, package):
        """Whether the peers' Python has this package."""
        look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"
        return subprocess.run([self.arguments.python, "-c", look]).returncode == 0

    def steps(self, *words):
        """Runs one program, and returns the medians of its steps."""
        return step_seconds(run(Path(words[0]).name, [*words, "--steps", self.arguments.steps]))

    def row(self, what, ours, theirs, target=None, ratio=None, digits=3):
        """`ours` and `theirs` have a number for each round."""
        self.rows.append({"what": what, "ours": spread(ours), "theirs": spread(theirs),
                          "ratio": ratio or quotients(ours, theirs), "target": target, "digits": digits})

    def compare_one(self, results, what, ours, theirs, key, target=None, digits=3):
        """Adds the row of one measurement of two programs."""
        self.row(what, best(results, ours, key), best(results, theirs, key), target, digits=digits)

    def compare(self, results, what, ours, theirs, target=None, gradients=True):
        """Adds rows for two programs, or for the best of several on each side: a step, and a step without the optimizer."""
        for key, words in (("step", "step"), ("gradients", "without the optimizer")):
            if key == "step" or gradients:
                self.row(f"{what}, {words}", best(results, ours, key), best(results, theirs, key),
                         target if key == "step" else None)


def synthetic_cars(bench, name, count, width, height):
    """Returns the folders of pictures and masks, and creates them if they are missing."""
    folder = ROOT / "data" / f"{name}-synthetic"
    if not folder.exists():
        say(f"  creating {count} pictures of {width} x {height} in {folder}")
        done = subprocess.run([str(word) for word in (
            bench.program("trestle", "apps/trestle"), "data", "synthesize", "carvana", "--count", count, "--width", width,
            "--height", height, "--out", folder)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"trestle data synthesize failed:\n{done.stderr.strip()}")
    return folder / "train_hq", folder / "train_masks"


def table(rows):
    lines = ["| measurement | trestle, or measured | peer, or predicted | ratio: median (min .. max) | target |",
             "|---|---:|---:|---:|---:|"]
    for row in rows:
        digits = row["digits"]
        lines.append(f"| {row['what']} | {row['ours']['median']:.{digits}f} | {row['theirs']['median']:.{digits}f} | "
                     f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} .. {row['ratio']['max']:.3f}) | "
                     f"{row['target'] or ''} |")
    return "\n".join(lines)
