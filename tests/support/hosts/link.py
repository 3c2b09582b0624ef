"""The link of a host to the bridge."""
import array
import fcntl
import socket
import struct
import subprocess

from .errors import HostsError
from .run_tool import run_tool

SIOCETHTOOL = 0x8946
# ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO of linux/ethtool.h
OFFLOADS = (0x17, 0x1F, 0x24, 0x2C)


class Link:
    """A pair of interfaces: `eth0` on the host, and a port of the bridge.

    Whatever is set holds for both directions, until it is set again, and may be set in mid-run.
    """

    def __init__(self, number, process, delay_program):
        self._number = number
        self._process = process  # the process that holds the host's namespaces
        self._delay_program = delay_program
        self._loss = 0  # percent
        self._delays = None  # the process that delays packets
        self._port = f"port{number}"
        run_tool("ip", "link", "add", self._port, "type", "veth", "peer", "name", self._far_end())
        # A packet larger than the link's 1500 bytes would be lost or delayed as one.
        for interface in (self._port, self._far_end()):
            _switch_off_offloads(interface)
        run_tool("ip", "link", "set", self._far_end(), "name", "eth0", "netns", str(process))
        run_tool("ip", "link", "set", self._port, "master", "bridge")
        run_tool("ip", "link", "set", self._port, "up")
        self._on_host("ip", "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
        self._on_host("ip", "link", "set", "lo", "up")
        self._on_host("ip", "link", "set", "eth0", "up")

    def down(self):
        """Cuts the link. Packets are lost, and neither end is told."""
        run_tool("ip", "link", "set", self._port, "down")

    def up(self):
        run_tool("ip", "link", "set", self._port, "up")

    def rate(self, rate):
        """Limits each direction to a rate as `tc` spells it, such as "100mbit"; None for no limit."""
        for on, device in ((run_tool, self._port), (self._on_host, "eth0")):
            on("tc", "qdisc", "del", "dev", device, "root", check=False)
            if rate is not None:
                on("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "50ms")

    def loss(self, percent):
        """Loses this share of the packets of each direction at random; 0 for none."""
        self._loss = percent
        table = f"loss{self._number}"
        run_tool("nft", "delete", "table", "bridge", table, check=False)
        if percent == 0:
            return
        end = self._bridge_end()
        dropped = f"numgen random mod 10000 < {round(percent * 100)} counter drop"
        run_tool("nft", "-f", "-", input=f"""table bridge {table} {{
  chain forward {{
    type filter hook forward priority 0
    iifname {end} {dropped}
    oifname {end} {dropped}
  }}
}}
""")

    def lost_packets(self):
        """The number of packets that `loss` has dropped since it was set."""
        listed = run_tool("nft", "list", "table", "bridge", f"loss{self._number}")
        words = listed.replace("\n", " ").split()
        return sum(int(words[i + 1]) for i, word in enumerate(words) if word == "packets")

    def delay(self, milliseconds):
        """Delays each packet by this time in each direction; 0 for no delay."""
        loss = self._loss
        self.loss(0)
        self._stop_delay()
        if milliseconds != 0:
            self._start_delay(milliseconds)
        self.loss(loss)

    def _stop_delay(self):
        if self._delays is None:
            return
        self._delays.kill()
        self._delays.communicate()
        self._delays = None
        run_tool("ip", "link", "del", f"delay{self._number}")
        run_tool("ip", "link", "set", self._port, "master", "bridge")

    def _start_delay(self, milliseconds):
        run_tool("ip", "link", "add", f"delay{self._number}", "type", "veth", "peer", "name", f"out{self._number}")
        for interface in (f"delay{self._number}", f"out{self._number}"):
            _switch_off_offloads(interface)
            run_tool("ip", "link", "set", interface, "up")
        run_tool("ip", "link", "set", self._port, "nomaster")
        run_tool("ip", "link", "set", f"out{self._number}", "master", "bridge")
        command = [str(self._delay_program), self._port, f"delay{self._number}", str(milliseconds)]
        self._delays = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self._delays.stdout.readline() != "ready\n":
            raise HostsError(f"'{' '.join(command)}' could not start")

    def close(self):
        self.delay(0)
        self.loss(0)
        run_tool("ip", "link", "del", self._port)

    def _far_end(self):
        return f"far{self._number}"  # until it is eth0 of the host

    def _bridge_end(self):
        return self._port if self._delays is None else f"out{self._number}"

    def _on_host(self, *words, check=True):
        return run_tool("nsenter", "-t", str(self._process), "-n", *words, check=check)


def _switch_off_offloads(interface):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as descriptor:
        for command in OFFLOADS:
            value = array.array("B", struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(descriptor, SIOCETHTOOL, request)
