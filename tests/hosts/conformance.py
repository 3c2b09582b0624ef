#!/usr/bin/env python3
"""Runs every case of hosts with every launcher and mode, and writes the table of docs/hosts_conformance.md.

    tests/hosts/conformance.py [--build build/dev] [--case PATTERN] [--launcher NAME] [--mode NAME] [--update] [--repeat N]

Prints a line for each case as it ends, and keeps its result and its terminals in the build folder. --update writes the
results of all cases that have run with this build into the document, those of earlier calls too. --repeat runs each case
N times; a case passes if all its runs do. All of them take about 50 minutes.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT / "tests/hosts")]
from all_cases import CASES  # noqa: E402
from training import LAUNCHERS, MODES  # noqa: E402

DOCUMENT = ROOT / "docs/hosts_conformance.md"
BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"


def run(case, launcher, mode, build, logs):
    """Returns whether it passed, and what it measured or what was wrong."""
    done = subprocess.run([sys.executable, str(ROOT / "tests/hosts/run_case.py"), case, launcher, mode,
                           "--terminals"],
                          capture_output=True, text=True, check=False, env=dict(os.environ, TRESTLE_BUILD=str(build)))
    output = done.stdout + done.stderr
    (logs / f"{case}.{launcher}.{mode}.log").write_text(output)
    lines = output.strip().splitlines() or [f"exit code {done.returncode}"]
    return done.returncode == 0, lines[0]


def table(results):
    """One row for each case and launcher, with a column for each mode."""
    lines = ["| case | launcher | " + " | ".join(MODES) + " |", "|---|---|" + "---|" * len(MODES)]
    for case in CASES:
        about = " ".join(CASES[case].__doc__.split())
        for launcher in LAUNCHERS:
            cells = [results.get((case, launcher, mode)) for mode in MODES]
            if any(cells):
                words = ["" if cell is None else cell[1] if cell[0] else f"**fails**: {cell[1]}" for cell in cells]
                lines.append(f"| `{case}`: {about} | {launcher} | " + " | ".join(word.replace("|", "\\|") for word in words)
                             + " |")
    return "\n".join(lines)


def keep(logs, which, result):
    """Keeps a result beside the terminals, one file for each case."""
    (logs / f"{'.'.join(which)}.json").write_text(json.dumps([*which, *result]))


def kept_results(logs):
    """The results of all calls."""
    kept = [json.loads(file.read_text()) for file in sorted(logs.glob("*.json"))]
    return {tuple(entry[:3]): tuple(entry[3:]) for entry in kept}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/dev")
    parser.add_argument("--case", default="", help="only cases whose names match this regular expression")
    parser.add_argument("--launcher", choices=LAUNCHERS)
    parser.add_argument("--mode", choices=MODES)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--update", action="store_true", help="write the table into docs/hosts_conformance.md")
    arguments = parser.parse_args()
    wanted = [(case, launcher, mode) for case in CASES if re.search(arguments.case, case)
              for launcher in CASES[case].launchers if arguments.launcher in (None, launcher)
              for mode in CASES[case].modes if arguments.mode in (None, mode)]
    logs = arguments.build.resolve() / "hosts_conformance"
    logs.mkdir(parents=True, exist_ok=True)
    results, began = {}, time.monotonic()
    for number, which in enumerate(wanted, 1):
        for _ in range(arguments.repeat):
            start = time.monotonic()
            passed, words = run(*which, arguments.build.resolve(), logs)
            print(f"[{number}/{len(wanted)}, {time.monotonic() - began:.0f} s] {' '.join(which)}: "
                  f"{'passed' if passed else 'FAILED'} in {time.monotonic() - start:.1f} s: {words}", flush=True)
            if which not in results or not passed:
                results[which] = (passed, words)
                keep(logs, which, results[which])
    failed = sum(not passed for passed, _ in results.values())
    print(f"{len(results) - failed} passed, {failed} failed; terminals in {logs}")
    if arguments.update:
        text = DOCUMENT.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        DOCUMENT.write_text(before + BEGIN + "\n" + table(kept_results(logs)) + "\n" + END + rest.split(END)[1], encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
