"""benchmarks/compare.py, with builds whose programs only print times."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import compare  # noqa: E402

PROGRAMS = ("unet_step", "ranks_step", "sharded_step")


def make_build(folder, seconds):
    """A build whose steps take these seconds, one after another; the last one is repeated."""
    for name in PROGRAMS:
        path = folder / "benchmarks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"""#!{sys.executable}
import json, pathlib
seconds = {json.dumps(seconds)}
count = pathlib.Path(__file__ + ".count")
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
value = seconds[min(number, len(seconds) - 1)]
print("first step", flush=True)
print(json.dumps({{"gradients_seconds": [value], "optimizer_seconds": [0.0]}}))
""", encoding="utf-8")
        path.chmod(0o755)


def compared(old, new, *flags):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        make_build(folder / "old", old)
        make_build(folder / "new", new)
        return subprocess.run([sys.executable, ROOT / "benchmarks/compare.py", folder / "old", folder / "new", "--only",
                               "step", "--rounds", "5", *flags], capture_output=True, text=True, check=False)


class Compare(unittest.TestCase):
    def test_a_slower_build_is_found_by_its_number(self):
        done = compared([1.00, 1.01, 0.99], [1.10, 1.11, 1.09])
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout.count("slower"), 5, done.stdout)

    def test_a_faster_build_ends_with_exit_code_0(self):
        done = compared([1.0], [0.9])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("faster"), 5, done.stdout)

    def test_noise_is_no_change(self):
        done = compared([1.0, 1.2, 0.9, 1.1], [1.1, 0.9, 1.2, 1.0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("slower", done.stdout.split("\n", 1)[1])

    def test_a_change_within_the_spread_is_none(self):
        self.assertEqual(compare.verdict({"min": 1.01, "median": 1.02, "max": 1.20}), "")
        self.assertEqual(compare.verdict({"min": 1.05, "median": 1.10, "max": 1.15}), "slower")
        self.assertEqual(compare.verdict({"min": 0.85, "median": 0.90, "max": 0.95}), "faster")

    def test_missing_programs_name_the_target(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, ROOT / "benchmarks/compare.py", folder, folder], capture_output=True,
                                  text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("trestle_benchmarks", done.stderr)


if __name__ == "__main__":
    unittest.main()
