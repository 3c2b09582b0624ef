"""N hosts on a bridge."""
import os
import shutil
import tempfile
from pathlib import Path

from .errors import HostsError
from .host import Host
from .run_tool import run_tool

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("TRESTLE_BUILD", ROOT / "build" / "dev"))
DELAY_PROGRAM = BUILD / "tests/hosts/delay_link"


class Hosts:
    """A list of hosts, and a context that takes them down.

    `folder` is an empty folder in memory that all hosts see, of `disk` bytes as mount(8) spells them.
    Call enter_namespaces() first. One process has one of these at a time.
    """

    def __init__(self, count, disk="256m"):
        if os.getpid() != 1:
            raise HostsError("call enter_namespaces() first")
        self._list = []
        self._mounted = BUILD / "scratch" / "hosts"
        self._mounted.mkdir(parents=True, exist_ok=True)
        run_tool("mount", "-t", "tmpfs", "-o", f"size={disk}", "none", str(self._mounted))
        self.folder = Path(tempfile.mkdtemp(dir=self._mounted))
        try:
            run_tool("ip", "link", "set", "lo", "up")
            run_tool("ip", "link", "add", "bridge", "type", "bridge")
            run_tool("ip", "link", "set", "bridge", "up")
            for number in range(count):
                self._list.append(Host(number, self.folder, DELAY_PROGRAM))
        except BaseException:
            self.close()
            raise
        for host in self._list:
            host.set_names("127.0.0.1 localhost\n" + "".join(f"{one.address} {one.name}\n" for one in self._list))

    def __len__(self):
        return len(self._list)

    def __getitem__(self, number):
        return self._list[number]

    def __iter__(self):
        return iter(self._list)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Kills every process on every host, and removes hosts, links and files."""
        for host in self._list:
            host.close()
        self._list = []
        run_tool("ip", "link", "del", "bridge", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
        run_tool("umount", "-l", str(self._mounted), check=False)
