#!/usr/bin/env python3
"""Counts the tests of a run: prints "PASSED FAILED", then the name of each failed test on a line of its own.

    tools/count_tests.py CTEST_REPORT.xml REPORTS_FOLDER

An entry of CTest is a suite of GoogleTest with a report in REPORTS_FOLDER, which says how each test ended, or one test. A
test that was skipped or disabled did not pass. A suite without a report did not end, and counts as one failed test.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def suite_results(report):
    """[(name, passed, seconds)] of the tests in GoogleTest's report."""
    results = []
    for case in ElementTree.parse(report).iter("testcase"):
        passed = case.get("result") == "completed" and case.find("failure") is None
        results.append((f"{case.get('classname')}.{case.get('name')}", passed, float(case.get("time", 0))))
    return results


def all_results(ctest_report, reports):
    """[(name, passed, seconds)] of the tests in CTest's report, those of suites one by one."""
    results = []
    for entry in ElementTree.parse(ctest_report).iter("testcase"):
        name = entry.get("name")
        ended_well = entry.get("status") == "run"
        report = Path(reports) / (name.replace("/", "_") + ".xml")
        tests = []
        if report.is_file():
            try:
                tests = suite_results(report)
            except ElementTree.ParseError:
                pass
        is_suite = re.match(r"\w+_test\.", name) is not None
        results += tests
        if not tests:
            results.append((name, ended_well and not is_suite, float(entry.get("time", 0))))
        elif not ended_well and all(passed for _, passed, _ in tests):
            results.append((name, False, 0.0))  # it failed behind its last test
    return results


def main():
    ctest_report, reports = sys.argv[1:]
    try:
        results = all_results(ctest_report, reports)
    except (OSError, ElementTree.ParseError):
        results = []
    failed = [name for name, passed, _ in results if not passed]
    if not results:
        failed = ["no test ran"]
    print(len(results) - len(failed) if results else 0, len(failed))
    print("".join(f"{name}\n" for name in failed), end="")


if __name__ == "__main__":
    main()
