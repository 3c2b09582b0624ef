#!/usr/bin/env python3
"""Runs one case of cases.py or restart_cases.py.

    tests/hosts/run_case.py CASE LAUNCHER MODE [--terminals]

Prints what it measured; on a failure what did not hold, and the terminal of every host, which --terminals prints
in any case. TRESTLE_BUILD names the build folder (build/dev).
"""
import argparse
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import HostsError, enter_namespaces  # noqa: E402


def main():
    enter_namespaces()
    from all_cases import CASES
    from training import LAUNCHERS, MODES, Failed
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("launcher", choices=LAUNCHERS)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--terminals", action="store_true")
    arguments = parser.parse_args()
    try:
        words, terminals = CASES[arguments.case](arguments.launcher, arguments.mode)
        print(f"{words}\n{terminals}" if arguments.terminals else words)
    except (Failed, HostsError) as error:
        print(f"failed: {error}")
        print(getattr(error, "terminals", ""))
        return 1
    except Exception as error:
        traceback.print_exc(file=sys.stdout)
        print(getattr(error, "terminals", ""))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
