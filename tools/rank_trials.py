#!/usr/bin/env python3
"""Trains on three ranks repeatedly, with a failure of one rank at a random point.

    tools/rank_trials.py build/dev/tests/trials/trial_program --trials 60

In each trial a rank is killed, stopped or delayed, or it throws: at the start, in a forward, in a
backward, while it writes a checkpoint, or at any moment (an external signal). Each trial checks that
the command ends in time, with a code other than 0 unless the run was finished; that its messages name
the failed rank; that no process is left; and that the last checkpoint loads. Every fifth trial
restarts all ranks once (--max-restarts 1), without the failure, and must end with the weights of an
undisturbed run.
Prints `N passed, N failed`.
"""
import argparse
import concurrent.futures
import filecmp
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE = 3.0  # seconds, of the ranks
# The time after the deadline to report it, and to be ended by the launcher.
ALLOWED = DEADLINE + 5.0
RANKS = 3

RECIPE = """
[model]
name = "trial"
classes = 64
[data]
name = "random"
shape = [64]
count = 48
targets = "normal"
[devices]
use = "cpu"
threads = 1
[pipeline]
balance = [2, 2, 2]
micro_batches = 2
schedule = "1f1b"
deadline = 3.0
[optimizer]
name = "adam"
learning_rate = 1e-3
[train]
epochs = 2
batch = 8
save_every = 2
predict = false
"""


def processes_of(mark):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"TRIAL_MARK={mark}".encode() in (entry / "environ").read_bytes():
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state not in "ZX":
                    found.append(int(entry.name))
        except OSError:
            pass
    return found


def rank_process(mark, rank):
    for process in processes_of(mark):
        try:
            if f"\0RANK={rank}\0".encode() in b"\0" + pathlib.Path(f"/proc/{process}/environ").read_bytes():
                return process
        except OSError:
            pass
    return None


class Trial:
    def __init__(self, program, folder, number, seed):
        self.program, self.number = program, number
        self.folder = folder / f"trial{number}"
        self.random = random.Random(seed * 100003 + number)
        self.rank = self.random.randrange(RANKS)
        self.point = self.random.choice(["start", "forward", "backward", "save", "outside"])
        hows = {"save": ["kill", "stop"], "outside": ["kill", "stop"]}
        self.how = self.random.choice(hows.get(self.point, ["kill", "stop", "delay", "throw"]))
        self.at = self.random.randrange(1, 24) if self.point in ("forward", "backward") else 1
        self.again = number % 5 == 4 and self.point != "outside" and self.how != "delay"

    def name(self):
        return f"trial {self.number}: rank {self.rank}, {self.how} at {self.point} {self.at}" + (
            ", started anew" if self.again else "")

    def command(self, runs):
        flags = ["--ranks", str(RANKS), "--runs", str(runs), "--quiet"]
        if self.again:
            flags += ["--max-restarts", "1"]
        return [self.program, "train", str(self.folder / "trial.toml")] + flags

    def run(self, expected):
        """Returns what is wrong, as sentences."""
        self.folder.mkdir(parents=True)
        (self.folder / "trial.toml").write_text(RECIPE)
        runs = self.folder / "runs"
        mark = f"{os.getpid()}-{self.number}"
        environment = dict(os.environ, TRIAL_MARK=mark, TRIAL_RUNS=str(runs), OMP_WAIT_POLICY="passive")
        if self.point != "outside":
            environment.update(TRIAL_RANK=str(self.rank), TRIAL_POINT=self.point, TRIAL_HOW=self.how,
                               TRIAL_AT=str(self.at))
        if self.again:
            environment["TRIAL_ONCE"] = "1"
        began = time.monotonic()
        process = subprocess.Popen(self.command(runs), env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, start_new_session=True)
        struck = True
        if self.point == "outside":
            time.sleep(self.random.uniform(0.2, 2.0))
            target = rank_process(mark, self.rank)
            struck = target is not None and process.poll() is None
            if struck:
                os.kill(target, signal.SIGKILL if self.how == "kill" else signal.SIGSTOP)
        limit = ALLOWED + 20  # a run takes two seconds, and up to ten beside other programs
        problems = []
        try:
            words, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            words, _ = process.communicate()
            problems.append(f"hung: still there after {limit:.0f} s")
        self.seconds = time.monotonic() - began
        time.sleep(0.05)
        left = processes_of(mark)
        if left:
            time.sleep(1.0)
            left = processes_of(mark)
        if left:
            problems.append(f"processes left: {left}")
            for one in left:
                os.kill(one, signal.SIGKILL)
        over = process.returncode == 0
        if not over and f"rank {self.rank}" not in words:
            problems.append(f"rank {self.rank} is not named")
        if over and struck and not self.again and self.point not in ("outside", "save"):
            problems.append("ended with 0, although a rank went wrong")
        problems += self.look_at_checkpoint(runs, over, expected)
        self.words = words
        return problems

    def look_at_checkpoint(self, runs, over, expected):
        saved = sorted(runs.glob("*/last")) if runs.exists() else []
        if not saved:
            return ["the run is over and left nothing"] if over else []
        out = self.folder / "last.safetensors"
        loaded = subprocess.run([self.program, "export", str(saved[0]), "--out", str(out), "--overwrite"],
                                capture_output=True, text=True, timeout=60)
        if loaded.returncode != 0:
            return [f"the last checkpoint does not load: {loaded.stderr.strip()}"]
        if over and not filecmp.cmp(out, expected, shallow=False):
            return ["the weights are not those of an undisturbed run"]
        return []


def undisturbed(program, folder):
    folder.mkdir(parents=True)
    (folder / "trial.toml").write_text(RECIPE)
    subprocess.run([program, "train", str(folder / "trial.toml"), "--ranks", str(RANKS), "--runs",
                    str(folder / "runs"), "--quiet"], check=True, timeout=120)
    out = folder / "last.safetensors"
    subprocess.run([program, "export", str(folder / "runs/trial/last"), "--out", str(out)], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", help="trial_program, from tests/trials")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time; a trial mostly waits for its deadline")
    parser.add_argument("--keep", action="store_true", help="keep the folders of failed trials")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rank_trials_"))
    program = str(pathlib.Path(arguments.program).resolve())
    passed = failed = 0
    longest = 0.0
    try:
        expected = undisturbed(program, folder / "undisturbed")
        trials = [Trial(program, folder, number, arguments.seed)
                  for number in range(arguments.first, arguments.first + arguments.trials)]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            for trial, problems in zip(trials, pool.map(lambda trial: trial.run(expected), trials)):
                longest = max(longest, trial.seconds)
                if problems:
                    failed += 1
                    print(f"{trial.name()} ({trial.seconds:.1f} s): {'; '.join(problems)}\n{trial.words}", flush=True)
                else:
                    passed += 1
                    shutil.rmtree(trial.folder)
    finally:
        if not (arguments.keep and failed):
            shutil.rmtree(folder, ignore_errors=True)
    print(f"the longest took {longest:.1f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
