"""One host."""
import glob
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from .errors import HostsError
from .link import Link
from .program import Program
from .run_tool import run_tool

# Variables of a launcher around the tests would make each program one of its ranks.
OF_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TRESTLE_", "TORCHELASTIC_", "SLURM_",
                "PMI", "MPI", "OMPI_", "GLOO_", "GROUP_", "ROLE_")


def shifted_clock(seconds):
    """The environment variables of a program whose clock is ahead by this time."""
    found = sorted(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise HostsError("libfaketime is not installed: tools/setup.sh --tests installs it")
    return {"LD_PRELOAD": found[0], "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1"}


class Host:
    """A network, mount and UTS namespace, held open by a process that sleeps."""

    def __init__(self, number, folder, delay_program):
        self.name = f"node{number}"
        self.address = f"10.77.0.{number + 1}"
        self.folder = folder  # where its programs start
        self._names = folder / f".{self.name}.hosts"
        self._names.touch()
        self._environment = {}
        self._programs = []
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "sh", "-c",
             'hostname "$0" && mount --bind "$1" /etc/hosts && echo ready && exec sleep infinity', self.name,
             str(self._names)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        answer = self._holder.stdout.readline()
        if answer != "ready\n":
            raise HostsError(f"{self.name} could not be made: {answer.strip()}")
        self._space = os.readlink(f"/proc/{self._holder.pid}/ns/uts")
        self.link = Link(number, self._holder.pid, delay_program)

    def set_names(self, text):
        """Replaces its /etc/hosts."""
        self._names.write_text(text)  # in place: a new file would not be the one that is mounted

    def set_variable(self, name, value):
        """Sets an environment variable of the programs that are started from now on; None removes it."""
        self._environment[name] = value

    def shift_clock(self, seconds):
        """Shifts the clock of the programs that are started from now on. Clocks that only measure stay as they are."""
        self._environment.update(shifted_clock(seconds))

    def private_folder(self, path, size="16m"):
        """Mounts an empty file system of this size over a folder, which the other hosts do not see."""
        path.mkdir(parents=True, exist_ok=True)
        run_tool("nsenter", "-t", str(self._holder.pid), "-m", "mount", "-t", "tmpfs", "-o", f"size={size}", "none",
                 str(path))

    def words(self, command, environment=None):
        """The command that runs a program in `folder` of this host, from any host. `environment` adds variables."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
        variables.update(self._environment)
        variables.update(environment or {})
        # `env` reads the variables on the host, so that LD_PRELOAD does not apply to nsenter.
        words = [f"{name}={value}" for name, value in variables.items() if value is not None]
        return ["nsenter", "-t", str(self._holder.pid), "-n", "-m", "-u", "env", "-i", "-C", str(self.folder), *words,
                *(str(word) for word in command)]

    def start(self, command, terminal=False, environment=None):
        """Starts a program in `folder` of this host. `environment` adds variables."""
        started = Program(self.words(command, environment), f"{Path(command[0]).name} on {self.name}", terminal)
        started.command = " ".join(str(word) for word in command)
        self._programs.append(started)
        return started

    def run(self, command, seconds=60, **options):
        """Runs a program to its end. Returns its output; raises HostsError if it fails or takes longer."""
        started = self.start(command, **options)
        code = started.wait(seconds)
        if code != 0:
            raise HostsError(f"{started.name} exited with {code}:\n{started.text()}")
        return started.text()

    def programs(self):
        """All programs that were started on it."""
        return list(self._programs)

    def processes(self):
        """The processes that run on this host, except the one that holds it open."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == self._holder.pid:
                continue
            try:
                if os.readlink(f"/proc/{entry}/ns/uts") != self._space:
                    continue
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as stat:
                    if stat.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                        found.append(int(entry))
            except OSError:  # it has ended
                pass
        return found

    def rank_processes(self):
        """The ranks that run on this host: the number of each with its process."""
        found = {}
        for process in sorted(self.processes(), reverse=True):  # of a rank and its children, the rank
            try:
                with open(f"/proc/{process}/environ", "rb") as variables:
                    rank = re.search(rb"(?:^|\0)RANK=(\d+)", variables.read())
            except OSError:
                continue
            if rank:
                found[int(rank[1])] = process
        return found

    def kill(self, process, number=signal.SIGKILL):
        """Sends a signal to a process of this host."""
        os.kill(process, number)

    def power_off(self):
        """Cuts the link and kills all processes, so that no other host hears of it."""
        self.link.down()
        self.kill_all()

    def kill_all(self):
        end = time.monotonic() + 10
        while True:
            running = self.processes()
            if not running:
                return
            if time.monotonic() > end:
                raise HostsError(f"{self.name}: {running} still run after SIGKILL")
            for process in running:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)

    def close(self):
        self.kill_all()
        self.link.close()
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()
