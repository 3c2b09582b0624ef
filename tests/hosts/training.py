"""Small trainings over hosts, for cases.py."""
import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, HostsError  # noqa: E402
from hosts.host import shifted_clock  # noqa: E402, F401
from hosts.hosts import BUILD, ROOT  # noqa: E402

TRESTLE = BUILD / "apps/trestle/trestle"
PYTHON = ROOT / ".venv/bin/python"
LAUNCHERS = ("launch", "torchrun")
PORT = 29500


@dataclass(frozen=True)
class Mode:
    """How the ranks share the work."""

    ranks: int  # on each host
    balance: tuple
    flags: tuple = ()


# Two hosts. The stages of the pipeline are on different hosts; rows of HSDP are inside a host.
MODES = {
    "pipeline": Mode(1, (5, 5)),
    "replicate": Mode(1, (), ("--mesh", "replicate=2")),
    "shard": Mode(1, (), ("--mesh", "shard=2")),
    "hsdp": Mode(2, (), ("--mesh", "replicate=2,shard=2")),
}

# Dropout and skips, so that a resumed run has the bits of an undisturbed one only if the random numbers are right too.
RECIPE = """\
[model]
name = "toy"
channels = 64
classes = 16
width = {width}
[data]
name = "random"
shape = [64]
count = 800
targets = "normal"
[devices]
use = "cpu"
threads = 1
[pipeline]
balance = [{balance}]
micro_batches = 2
schedule = "1f1b"
deadline = {deadline}
[optimizer]
name = "adam"
learning_rate = 1e-3
[train]
epochs = 1000
max_steps = {steps}
batch = 16
save_every = {save_every}
predict = false
pictures = false
tensorboard = false
"""


class Failed(Exception):
    """What must hold did not hold."""


def check(condition, message):
    if not condition:
        raise Failed(message)


def slowness():
    """How much longer this process takes now than alone: 1 on an idle machine, 3 with six busy ones on two cores.

    Deadlines and limits are multiplied by it. A limit holds for waits by the clock, which a busy machine does not
    lengthen, and for what processes compute between them (start, unwind, end), which it does: up to five times here.
    The variable TRESTLE_LEAST_SLOWNESS is the least value, for a test beside others that are idle only now.
    """
    least = float(os.environ.get("TRESTLE_LEAST_SLOWNESS", "1"))
    began, computed = time.monotonic(), time.process_time()
    while time.process_time() - computed < 0.1:
        pass
    return min(5.0, max(least, round((time.monotonic() - began) / 0.1, 1)))


class Training:
    """A recipe, and the commands that train it on hosts with a launcher and a mode."""

    # The deadline of runs that nothing disturbs, on a machine that is busy with other tests.
    PATIENT = ("--deadline", "60")

    def __init__(self, launcher, mode, deadline=3.0, steps=150, save_every=10, width=128, disk="256m", hosts=2):
        self.slowness = slowness()
        self.launcher, self.mode, self.save_every = launcher, MODES[mode], save_every
        self.deadline = deadline * self.slowness
        # Seconds after the deadline in which all processes must have ended: about 2.5 by the clock (0.9 to find and
        # publish the reason, 1 in which rank 0 keeps its store, 0.3 for the launcher), the rest for what they compute.
        self.allowed = 5.0 * self.slowness
        self.hosts = Hosts(hosts, disk=disk)
        self.folder = self.hosts.folder
        self.width = width
        self.set_steps(steps)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.hosts.close()

    def set_steps(self, steps):
        """Writes the recipe, with this number of steps."""
        self.steps = steps
        self.recipe = RECIPE.format(balance=", ".join(str(n) for n in self.mode.balance), deadline=self.deadline,
                                    steps=steps, save_every=self.save_every, width=self.width)
        (self.folder / "run.toml").write_text(self.recipe)

    def command(self, node_rank, words, nodes=None, ranks=None, options=(), before=()):
        """The command that starts `trestle train WORDS` with the launcher on a host. `before` precedes it."""
        nodes = nodes or len(self.hosts)
        ranks = str(ranks or self.mode.ranks)
        train = [*before, TRESTLE, "train", *words]
        if self.launcher == "launch":
            place = ["--nodes", str(nodes), "--node-rank", str(node_rank), "--rendezvous", f"node0:{PORT}"]
            place = place if nodes > 1 else []
            return [TRESTLE, "launch", "-n", ranks, *place, *options, "--", *train]
        place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"node0:{PORT}"] if nodes > 1 else ["--standalone"]
        return [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nnodes", str(nodes), "--nproc-per-node", ranks,
                *place, *options, *train]

    def train_words(self):
        return ["run.toml", *self.mode.flags]

    def start(self, node, words=None, node_rank=None, terminal=False, **more):
        """Starts the launcher on a host. Its number is that of the host, unless `node_rank` is given."""
        command = self.command(node if node_rank is None else node_rank, words or self.train_words(), **more)
        return self.hosts[node].start(command, terminal=terminal)

    def start_all(self, words=None, **more):
        return [self.start(node, words, **more) for node in range(len(self.hosts))]

    def resume_words(self):
        return ["--resume", "runs/run", *self.mode.flags, *self.PATIENT]

    # The run's folder.

    def run_folder(self):
        return self.folder / "runs/run"

    def metrics(self):
        """Losses, norms and metrics of each step, to the last digit, without times."""
        file = self.run_folder() / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [re.split(r',"(?:examples_per_second|peak_bytes)"', line)[0] for line in lines]

    def steps_made(self):
        """The number of steps in the metrics, which have a line for each epoch too."""
        return sum(line.startswith('{"step":') for line in self.metrics())

    def saved_step(self):
        """The number of steps in the last checkpoint, whose files must all be there; 0 without one."""
        index = self.run_folder() / "last/index.json"
        if not index.exists():
            return 0
        about = json.loads(index.read_text())
        for name, file in about["files"].items():
            size = (index.parent / name).stat().st_size
            check(size == file["bytes"], f"{name} of the last checkpoint has {size} bytes, not {file['bytes']}")
        return about["state"]["step"]

    def wait_for_steps(self, steps, seconds=40):
        """Waits until the run has made this number of steps."""
        end = time.monotonic() + seconds * self.slowness
        while self.steps_made() < steps:
            for host in self.hosts:
                for program in host.programs()[-1:]:
                    check(program.poll() is None, f"{program.name} ended with {program.poll()} before step {steps}")
            if time.monotonic() > end:
                raise HostsError(f"{self.steps_made()} of {steps} steps within {seconds} s")
            time.sleep(0.01)

    # The checks.

    def undisturbed(self, keep=False, seconds=60):
        """The metrics of a run of the same ranks on the first host alone. Removes its folder, unless `keep` is set."""
        ranks = self.mode.ranks * len(self.hosts)
        self.hosts[0].run([TRESTLE, "train", *self.train_words(), "--ranks", ranks, "--quiet",
                           *self.PATIENT], seconds * self.slowness)
        metrics = self.metrics()
        check(len(metrics) >= self.steps, f"the undisturbed run has {len(metrics)} lines of metrics")
        if not keep:
            shutil.rmtree(self.run_folder())
        return metrics

    def check_succeeds(self, programs, seconds=60):
        for program in programs:
            code = program.wait(seconds * self.slowness)
            check(code == 0, f"{program.name} exited with {code}")

    def check_ends_in_time(self, programs, since, limit=None):
        """Checks that all fail, at most `limit` seconds (the deadline and `allowed`) after `since`.

        torchrun may wait longer for its own store on a host that is gone: then only its ranks must have ended.
        """
        end = since + (limit or self.deadline + self.allowed)
        last = since
        for program, host in ((program, host) for host in self.hosts for program in host.programs()[-1:]):
            if program not in programs:
                continue
            while program.poll() is None and time.monotonic() < end and (
                    self.launcher == "launch" or host.rank_processes()):
                time.sleep(0.02)
            last = max(last, program.ended or time.monotonic())
            if self.launcher == "torchrun" and program.poll() is None and not host.rank_processes():
                time.sleep(1)  # what its ranks printed
                if program.poll() is None:
                    host.kill_all()
            code = program.wait(max(0.1, end - time.monotonic()))
            check(code != 0, f"{program.name} exited with 0 although a host failed")
        return last - since

    def check_none_lingers(self, programs, seconds, limit):
        """Waits until the launchers have ended, and checks that each ends at most `limit` seconds after its last rank."""
        end = time.monotonic() + seconds * self.slowness
        hosts = {program: host for host in self.hosts for program in host.programs()[-1:] if program in programs}
        ranks_ended = {program: program.began for program in hosts}
        while any(program.poll() is None for program in hosts) and time.monotonic() < end:
            for program, host in hosts.items():
                if program.poll() is None and host.rank_processes():
                    ranks_ended[program] = time.monotonic()
            time.sleep(0.02)
        for program, ranks in ranks_ended.items():
            program.wait(0.1)
            lingered = program.ended - ranks
            check(lingered < limit * self.slowness, f"{program.name} ended {lingered:.1f} s after its last rank")

    def check_reason(self, programs, pattern):
        """Checks that each host's terminal has a message with this."""
        for program in programs:
            check(re.search(pattern, program.text()), f"{program.name} has not printed '{pattern}'")

    def check_names(self, program, host):
        """Checks that its terminal names a process of this host, with the host's name and address."""
        pattern = rf"rank \d+.*\bprocess \d+ on {host.name} at {re.escape(host.address)}\b"
        check(re.search(pattern, program.text()), f"{program.name} has not printed '{pattern}'")

    def check_no_process_left(self, hosts=None):
        for host in hosts or self.hosts:
            left = host.processes()
            check(not left, f"{host.name}: {left} still run")

    def check_same(self, expected):
        """Checks that the run has the losses of the undisturbed run, to the bit."""
        metrics = self.metrics()
        for number, (one, other) in enumerate(zip(metrics, expected), 1):
            check(one == other, f"line {number} of the metrics is {one}\nand in the undisturbed run {other}")
        check(len(metrics) == len(expected), f"{len(metrics)} lines of metrics, {len(expected)} undisturbed")

    def check_nothing_lost(self, steps):
        """Checks that the last checkpoint is whole, and at most save_every steps older than `steps`."""
        saved = self.saved_step()
        # The save of the last steps may have been in flight.
        check(saved >= steps - self.save_every, f"{steps} steps were made, and step {saved} is the last saved one")
        return saved

    def terminals(self):
        """The output of every program on every host, for the message of a failure."""
        lines = []
        for host in self.hosts:
            for program in host.programs():
                lines += [f"--- {program.name}: exit code {program.poll()}", program.command, program.text().rstrip()]
        return "\n".join(lines)
