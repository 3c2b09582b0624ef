#!/usr/bin/env python3
"""Prints what took longest in a build and in a run of its tests.

    tools/slowest.py BUILD_FOLDER [CTEST_REPORT.xml] [--count 10]

Compile and link times are those of Ninja's log, in wall seconds beside whatever ran at the same time; test times are those
of `ctest --output-junit` and of the suites' own reports.
"""
import argparse
from pathlib import Path

from count_tests import all_results


def build_times(folder):
    """{output: seconds}; the log holds a line for each build of an output, the last one counts."""
    times = {}
    for line in (Path(folder) / ".ninja_log").read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) == 5:
            times[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return times


def test_times(report, reports):
    return {name: seconds for name, _, seconds in all_results(report, reports)}


def print_longest(title, times, count):
    print(f"{title}: {len(times)}, {sum(times.values()):.0f} s in all")
    for name, seconds in sorted(times.items(), key=lambda entry: -entry[1])[:count]:
        print(f"{seconds:8.1f} s  {name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("report", nargs="?")
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    outputs = build_times(arguments.build)
    print_longest("compiled", {name: t for name, t in outputs.items() if name.endswith((".o", ".gch"))}, arguments.count)
    if arguments.report:
        print_longest("tests", test_times(arguments.report, Path(arguments.build) / "Testing/reports"), arguments.count)


if __name__ == "__main__":
    main()
