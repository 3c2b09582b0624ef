#!/usr/bin/env python3
"""Trains on two hosts repeatedly, with a failure at a random moment.

    tests/hosts/trials.py [--build build/dev] --trials 60

In each trial a rank is killed or stopped, a host loses its power, or a link is cut, for a while or for good, or loses
packets. The ranks have a random mode, and in every third trial --max-restarts 2. Each trial checks that all processes
end within the deadline and 5 s, that none is left, that no save is lost, and that the run, which is resumed after a
failure, has the losses of an undisturbed one to the bit. Prints a line for each trial, and `N passed, N failed`.
"""
import argparse
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import HostsError, enter_namespaces  # noqa: E402

LOSSES = {}  # of the undisturbed run of each mode


class Trial:
    def __init__(self, number, seed, launcher):
        from training import MODES
        self.random = random.Random(seed * 100003 + number)
        self.launcher = launcher
        self.mode = self.random.choice(sorted(MODES))
        self.node = self.random.randrange(2)
        self.kind = self.random.choice(["kill", "stop", "power", "cut", "cut", "loss"])
        self.step = self.random.randrange(1, 80)
        self.later = self.random.uniform(0, 0.05)  # seconds after this step began
        self.cut = self.random.choice([0.2, 1.0, 2.0, 4.0, 30.0])  # seconds
        self.restarts = number % 3 == 2 and self.kind in ("kill", "cut")

    def name(self):
        about = f" for {self.cut} s" if self.kind == "cut" else ""
        return (f"{self.mode}: {self.kind} on node{self.node}{about} in step {self.step}" +
                (", with restarts" if self.restarts else ""))

    def run(self):
        """Returns a few words. Raises Failed or HostsError."""
        from training import Training
        with Training(self.launcher, self.mode, steps=100) as training:
            try:
                if self.mode not in LOSSES:
                    LOSSES[self.mode] = training.undisturbed()
                return self.train(training)
            except Exception as error:
                error.terminals = training.terminals()
                raise

    def train(self, training):
        from training import check
        options = ("--max-restarts", "2") if self.restarts else ()
        programs = training.start_all(options=options)
        training.wait_for_steps(self.step)
        time.sleep(self.later)
        struck, steps = time.monotonic(), training.steps_made()
        self.strike(training.hosts[self.node])
        # A cut link ends a round of the ranks at the deadline, and a restart waits for the other host that long again.
        limit = training.deadline * (3 if self.restarts else 1) + training.allowed
        limit += 25 if self.may_finish(training) else 0  # the rest of the run
        end = struck + limit
        while time.monotonic() < end and any(program.poll() is None for program in programs):
            if self.kind == "cut" and time.monotonic() - struck > self.cut:
                training.hosts[self.node].link.up()
            time.sleep(0.02)
        ended = time.monotonic() - struck
        codes = [program.poll() for program in programs]
        check(None not in codes, f"a program still runs {limit:.0f} s after the failure")
        check(not self.succeeds(training) or codes == [0, 0], f"the exit codes are {codes}")
        training.check_no_process_left()
        training.check_nothing_lost(steps)
        if codes != [0, 0]:
            for host in training.hosts:
                host.kill_all()
                host.link.up()
            saved = training.saved_step() > 0
            if not saved:  # it failed before the first save
                shutil.rmtree(training.run_folder(), ignore_errors=True)
            training.check_succeeds(training.start_all(training.resume_words() if saved else None))
        training.check_same(LOSSES[self.mode])
        return f"exit codes {codes} after {ended:.1f} s, same bits"

    def strike(self, host):
        if self.kind in ("kill", "stop"):
            process = self.random.choice(sorted(host.rank_processes().values()))
            host.kill(process, signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP)
        elif self.kind == "power":
            host.power_off()
        elif self.kind == "cut":
            host.link.down()
        else:
            host.link.loss(1)

    def succeeds(self, training):
        """Whether the run must finish.

        TCP waits twice as long before each retransmission, so after a cut it may send again only when as much time has
        passed since the end of the cut as the cut took.
        """
        return self.kind == "loss" or (self.kind == "cut" and 2 * self.cut + 0.5 < training.deadline)

    def may_finish(self, training):
        return self.restarts or self.kind == "loss" or (self.kind == "cut" and self.cut < training.deadline + 1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--launcher", choices=("launch", "torchrun"), default="launch")
    arguments = parser.parse_args()
    if arguments.build:
        os.environ["TRESTLE_BUILD"] = str(arguments.build.resolve())
    enter_namespaces()
    from training import Failed
    failed, longest = 0, 0.0
    for number in range(arguments.first, arguments.first + arguments.trials):
        trial, began = Trial(number, arguments.seed, arguments.launcher), time.monotonic()
        try:
            words = "passed: " + trial.run()
        except (Failed, HostsError) as error:
            failed += 1
            words = f"FAILED: {error}\n{getattr(error, 'terminals', '')}"
        took = time.monotonic() - began
        longest = max(longest, took)
        print(f"trial {number}, {trial.name()}: {took:.1f} s, {words}", flush=True)
    print(f"the longest took {longest:.1f} s")
    print(f"{arguments.trials - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
