#!/usr/bin/env python3
"""benchmarks/gpu_report.py without a GPU: its report of canned data, and its reading of ctest's."""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from gpu_report import passed, report, tests  # noqa: E402
from measuring import spread  # noqa: E402

DATA = {
    "when": "2026-01-01T00:00:00", "torch": {"torch": "2.13.0+cu130", "CUDA": "13.0", "cuDNN": 91000, "GPUs": ["A", "B"]},
    "machine": {"system": "Linux", "cores": 16, "python": "3.11.7"}, "driver": ["0, A, 24576 MiB, 580.1", "1, B, 24576 MiB, 580.1"],
    "doctor": "trestle   0.1.0\n", "tests": {"run": 12, "failed": []}, "rounds": 5, "steps": 20,
    "rows": [{"what": "one stage on cuda:0 against libtorch, contiguous, step", "ours": spread([0.09, 0.10, 0.11]),
              "theirs": spread([0.2, 0.2, 0.2]), "ratio": spread([0.45, 0.5, 0.55]), "target": None, "digits": 3}],
    "busy": {"2 stages on cuda:all, never": [spread([0.7, 0.8, 0.9]), spread([0.6, 0.6, 0.6])]}, "troubles": [],
}
JUNIT = """<testsuite tests="2" failures="1"><testcase name="cuda.Copies.a" status="run"/>
<testcase name="cuda.Copies.b" status="fail"><failure message=""/></testcase></testsuite>"""


class GpuReport(unittest.TestCase):
    def test_reports_measurements(self):
        text = report(DATA)
        for words in ("| 1 | B | 24576 MiB | 580.1 |", "trestle   0.1.0", "12 tests on GPUs: 12 passed, 0 failed.",
                      "contiguous, step | 0.100 | 0.200 | 0.500 (0.450 .. 0.550) |",
                      "| 2 stages on cuda:all, never | 0.80 (0.70 .. 0.90), 0.60 (0.60 .. 0.60) |"):
            self.assertIn(words, text)
        self.assertNotIn("Failed measurements", text)
        self.assertTrue(passed(DATA))

    def test_names_failures_and_fails(self):
        failed = {**DATA, "tests": {"run": 2, "failed": ["cuda.Copies.b"]}}
        self.assertIn("2 tests on GPUs: 1 passed, 1 failed.", report(failed))
        self.assertIn("`cuda.Copies.b`", report(failed))
        self.assertFalse(passed(failed))
        trouble = {**DATA, "rows": [], "busy": {}, "troubles": ["unet_step failed with exit code 1:\nout of memory"]}
        self.assertIn("Nothing was measured.", report(trouble))
        self.assertIn("out of memory", report(trouble))
        self.assertFalse(passed(trouble))

    def test_fails_without_tests(self):
        none = {**DATA, "tests": tests("no such file")}
        self.assertIn("No test was run", report(none))
        self.assertFalse(passed(none))

    def test_reads_ctests_report(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "tests.xml")
            path.write_text(JUNIT, encoding="utf-8")
            self.assertEqual(tests(path), {"run": 2, "failed": ["cuda.Copies.b"]})

    def test_program_rewrites_report(self):
        with tempfile.TemporaryDirectory() as folder:
            data, out = Path(folder, "data.json"), Path(folder, "report.md")
            data.write_text(json.dumps(DATA), encoding="utf-8")
            done = subprocess.run([sys.executable, BENCHMARKS / "gpu_report.py", "--data", data, "--out", out])
            self.assertEqual(done.returncode, 0)
            self.assertEqual(out.read_text(encoding="utf-8"), report(DATA))


if __name__ == "__main__":
    unittest.main()
