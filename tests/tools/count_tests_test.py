"""tools/count_tests.py on reports of CTest and GoogleTest, and CMake's list of a program's suites."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

LISTED = """Running main() from ./googletest/src/gtest_main.cc
Plain.
  One
  Two
Values/Counts.
  Adds/0  # GetParam() = "a; b"
  Adds/1  # GetParam() = (1, 2)
Typed/0.  # TypeParam = float
  Works
Alone.
  First
  Second
"""


class Counting(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def count(self, entries, **reports):
        """What the script prints for {entry: status} and the GoogleTest report of each named entry."""
        cases = "".join(f'<testcase name="{name}" time="1" status="{status}"/>' for name, status in entries.items())
        (self.path / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>")
        for name, text in reports.items():
            (self.path / f"a_test.{name}.xml").write_text(text)
        done = subprocess.run([sys.executable, ROOT / "tools/count_tests.py", self.path / "ctest.xml", self.path],
                              capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def report(self, **results):
        cases = ""
        for name, result in results.items():
            inner = '<failure message="x"/>' if result == "failed" else ""
            ended = result if result in ("skipped", "suppressed") else "completed"
            cases += f'<testcase name="{name}" classname="Suite" result="{ended}" time="0.1">{inner}</testcase>'
        return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"

    def test_tests_of_suites_count_one_by_one(self):
        self.assertEqual(self.count({"a_test.Suite": "run", "tools.checks": "run"}, Suite=self.report(A="ok", B="ok")), ["3 0"])

    def test_a_failed_test_is_named(self):
        self.assertEqual(self.count({"a_test.Suite": "fail"}, Suite=self.report(A="ok", B="failed")), ["1 1", "Suite.B"])

    def test_a_skipped_or_disabled_test_did_not_pass(self):
        self.assertEqual(self.count({"a_test.Suite": "run"}, Suite=self.report(A="skipped", B="suppressed", C="ok")),
                         ["1 2", "Suite.A", "Suite.B"])

    def test_a_suite_without_a_report_failed(self):
        self.assertEqual(self.count({"a_test.Suite": "run"}), ["0 1", "a_test.Suite"])
        self.assertEqual(self.count({"a_test.Other": "run"}, Other="<testsuites><tests"), ["0 1", "a_test.Other"])

    def test_a_program_that_failed_behind_its_last_test_failed(self):
        self.assertEqual(self.count({"a_test.Suite": "fail"}, Suite=self.report(A="ok")), ["1 1", "a_test.Suite"])

    def test_no_test_is_a_failure(self):
        self.assertEqual(self.count({}), ["0 1", "no test ran"])
        self.assertEqual(subprocess.run([sys.executable, ROOT / "tools/count_tests.py", self.path / "none.xml", self.path],
                                        capture_output=True, text=True, check=True).stdout, "0 1\nno test ran\n")


class Listing(unittest.TestCase):
    def entries(self, listed, separate=""):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "program"
            program.write_text(f"#!/bin/sh\ncat <<'END'\n{listed}END\n")
            program.chmod(0o755)
            output = pathlib.Path(folder) / "entries.cmake"
            subprocess.run(["cmake", f"-DPROGRAM={program}", "-DNAME=a_test", f"-DOUTPUT={output}", "-DREPORTS=/reports",
                            "-DLABEL=core", "-DTIMEOUT=9", f"-DSEPARATE={separate}",
                            "-P", ROOT / "cmake/TrestleDiscoverTests.cmake"], check=True)
            return [line.replace(f"[==[{program}]==] ", "") for line in output.read_text().splitlines() if line.startswith("add_test")]

    def test_one_entry_for_a_suite(self):
        self.assertEqual(self.entries(LISTED), [
            "add_test([==[a_test.Plain]==] [==[--gtest_filter=Plain.*]==] [==[--gtest_output=xml:/reports/a_test.Plain.xml]==])",
            "add_test([==[a_test.Values/Counts]==] [==[--gtest_filter=Values/Counts.*]==] "
            "[==[--gtest_output=xml:/reports/a_test.Values_Counts.xml]==])",
            "add_test([==[a_test.Typed/0]==] [==[--gtest_filter=Typed/0.*]==] [==[--gtest_output=xml:/reports/a_test.Typed_0.xml]==])",
            "add_test([==[a_test.Alone]==] [==[--gtest_filter=Alone.*]==] [==[--gtest_output=xml:/reports/a_test.Alone.xml]==])"])

    def test_one_entry_for_each_test_of_a_separate_suite(self):
        self.assertEqual(self.entries(LISTED, "Alone|Plain")[-2:], [
            "add_test([==[a_test.Alone.First]==] [==[--gtest_filter=Alone.First]==] "
            "[==[--gtest_output=xml:/reports/a_test.Alone.First.xml]==])",
            "add_test([==[a_test.Alone.Second]==] [==[--gtest_filter=Alone.Second]==] "
            "[==[--gtest_output=xml:/reports/a_test.Alone.Second.xml]==])"])


if __name__ == "__main__":
    unittest.main()
