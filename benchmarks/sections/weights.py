"""(weights): loading a weights file into a model's parameters."""
import math
import subprocess
import tempfile
from pathlib import Path

from measuring import Trouble, alternate, best, middle, run, say


def loading(bench):
    """(weights) a safetensors file into a model's parameters"""
    bench.need("torch", "numpy", "safetensors")
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--file", Path(folder) / "weights.safetensors", *bench.tiny("--layers", "4", "--width", "64")]
        ours, theirs = [bench.program("load_weights"), *flags], [*bench.peer("load_weights"), *flags]
        done = subprocess.run([*ours, "--write"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"the file could not be written:\n{done.stderr.strip()}")
        reports = {}

        def contestant(name, command):
            def load():
                reports[name] = run(name, command)
                return {"load": middle(reports[name]["seconds"])}
            return load

        results = alternate(bench.arguments.rounds, {"trestle": contestant("trestle", ours),
                                                     "Python": contestant("Python", theirs)}, say)
    if not math.isclose(reports["trestle"]["sum"], reports["Python"]["sum"], rel_tol=1e-6, abs_tol=1e-6):
        raise Trouble(f"the two did not load the same numbers: {reports}")
    bench.row(f"(weights) {reports['trestle']['bytes'] / 2**30:.2f} GiB of safetensors into the parameters, against load_file and "
              "load_state_dict", best(results, "trestle", "load"), best(results, "Python", "load"), "<= 1.00")
    return results
