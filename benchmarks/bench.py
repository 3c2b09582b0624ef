"""What the sections of run.py share: where the programs are, what the peers need, and the rows of the table."""
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
        """Says in one line what the peers lack, instead of a traceback for each."""
        look = "import importlib.util, sys; sys.exit(' '.join(p for p in sys.argv[1:] if not importlib.util.find_spec(p)) or None)"
        try:
            done = subprocess.run([self.arguments.python, "-c", look, *packages], capture_output=True, text=True)
        except OSError as error:
            raise Trouble(f"{self.arguments.python} cannot be started: {error}.\nName another with --python.") from None
        if done.returncode != 0:
            raise Trouble(f"{self.arguments.python} lacks {done.stderr.strip()}.\nInstall it there "
                          "(torch==2.13.0, torchgpipe==0.0.7, pillow), name another Python with --python, or leave these "
                          "measurements out with --only.")

    def tiny(self, *flags):
        """These flags where run.py is only to show that everything runs."""
        return flags if self.arguments.tiny else ()

    def contestant(self, name, *flags):
        """A function that runs one program of the training steps, ours or a peer's (*.py), and gives its medians."""
        start = self.peer(name.removesuffix(".py")) if name.endswith(".py") else [self.program(name)]
        command = [*start, *flags, "--steps", self.arguments.steps,
                   *self.tiny("--width", "4", "--batch", "4", "--rows", "32", "--columns", "32")]
        return lambda: step_seconds(run(name, command))

    def row(self, what, ours, theirs, target=None, ratio=None, digits=3):
        """`ours` and `theirs`: a number for each round."""
        self.rows.append({"what": what, "ours": spread(ours), "theirs": spread(theirs),
                          "ratio": ratio or quotients(ours, theirs), "target": target, "digits": digits})

    def compare(self, results, what, ours, theirs, target=None, gradients=True):
        """Rows of two contestants, or of the better of several on either side: a step, and a step without the optimizer."""
        for key, words in (("step", "step"), ("gradients", "without the optimizer")):
            if key == "step" or gradients:
                self.row(f"{what}, {words}", best(results, ours, key), best(results, theirs, key),
                         target if key == "step" else None)


def synthetic_cars(bench, name, count, width, height):
    """The folders of pictures and masks, which are made where they are not there yet."""
    folder = ROOT / "data" / f"{name}-synthetic"
    if not folder.exists():
        say(f"  making {count} pictures of {width} x {height} in {folder}")
        done = subprocess.run([str(word) for word in (
            bench.program("trestle", "apps/trestle"), "data", "synthesize", "carvana", "--count", count, "--width", width,
            "--height", height, "--out", folder)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"trestle data synthesize failed:\n{done.stderr.strip()}")
    return folder / "train_hq", folder / "train_masks"


def table(rows):
    lines = ["| what | trestle, or measured | peer, or predicted | ratio: median (min .. max) | target |",
             "|---|---:|---:|---:|---:|"]
    for row in rows:
        digits = row["digits"]
        lines.append(f"| {row['what']} | {row['ours']['median']:.{digits}f} | {row['theirs']['median']:.{digits}f} | "
                     f"{row['ratio']['median']:.3f} ({row['ratio']['min']:.3f} .. {row['ratio']['max']:.3f}) | "
                     f"{row['target'] or ''} |")
    return "\n".join(lines)
