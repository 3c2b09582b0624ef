#!/usr/bin/env python3
"""The library of hosts itself: names, links and their settings, clocks, and that nothing is left."""
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, HostsError, enter_namespaces  # noqa: E402

# Prints the time that an answer takes, in milliseconds, the best of five.
ECHO_SERVER = """
import socket
with socket.create_server(("", 4000)) as server:
    print("listens", flush=True)
    while True:
        connection, _ = server.accept()
        while read := connection.recv(65536):
            connection.sendall(read)
"""
ECHO_CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 4000), timeout=30) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    best = 1e9
    for _ in range(int(sys.argv[2])):
        began = time.monotonic()
        connection.sendall(b"x" * int(sys.argv[3]))
        left = int(sys.argv[3])
        while left:
            left -= len(connection.recv(65536))
        best = min(best, time.monotonic() - began)
print(best * 1000)
"""


def python(text, *arguments):
    return ["python3", "-c", text, *arguments]


class Library(unittest.TestCase):
    def echo(self, hosts, size=1, times=5):
        return float(hosts[1].run(python(ECHO_CLIENT, "node0", str(times), str(size))))

    def serve(self, hosts):
        hosts[0].start(python(ECHO_SERVER)).wait_for("listens", 10)

    def test_hosts_have_names_and_addresses(self):
        with Hosts(3) as hosts:
            self.assertEqual([host.run(["hostname"]).strip() for host in hosts], ["node0", "node1", "node2"])
            self.assertEqual(hosts[2].run(["getent", "hosts", "node1"]).split(), ["10.77.0.2", "node1"])
            self.serve(hosts)
            self.echo(hosts)

    def test_delay_holds_in_both_directions(self):
        with Hosts(2) as hosts:
            self.serve(hosts)
            self.assertLess(self.echo(hosts), 5)
            hosts[1].link.delay(20)
            self.assertGreaterEqual(self.echo(hosts), 40)
            self.assertLess(self.echo(hosts), 60)
            hosts[1].link.delay(0)
            self.assertLess(self.echo(hosts), 5)

    def test_rate_limits_both_directions(self):
        with Hosts(2) as hosts:
            self.serve(hosts)
            hosts[0].link.rate("8mbit")
            # 250 kB are 250 ms, there and back at the same time.
            self.assertGreater(self.echo(hosts, 250_000, 1), 200)
            hosts[0].link.rate(None)
            self.assertLess(self.echo(hosts, 250_000, 2), 100)

    def test_loss_drops_packets_with_and_without_delay(self):
        with Hosts(2) as hosts:
            self.serve(hosts)
            for delay in (0, 1):
                hosts[1].link.delay(delay)
                hosts[1].link.loss(5)
                self.echo(hosts, 300_000, 5)
                self.assertGreater(hosts[1].link.lost_packets(), 10)
            hosts[1].link.loss(0)

    def test_cut_link_rejoins_connections(self):
        with Hosts(2) as hosts:
            self.serve(hosts)
            hosts[0].link.down()
            client = hosts[1].start(python(ECHO_CLIENT, "10.77.0.1", "1", "1"))
            time.sleep(0.5)
            self.assertIsNone(client.poll())
            hosts[0].link.up()
            self.assertEqual(client.wait(30), 0, client.text())

    def test_clock_of_one_host_is_shifted(self):
        with Hosts(2) as hosts:
            hosts[1].shift_clock(3600)
            words = python("import time; print(time.time(), time.monotonic())")
            first, second = ([float(x) for x in host.run(words).split()] for host in hosts)
            self.assertAlmostEqual(second[0] - first[0], 3600, delta=10)
            self.assertAlmostEqual(second[1] - first[1], 0, delta=10)

    def test_folders_are_shared_unless_private(self):
        with Hosts(2) as hosts:
            hosts[0].run(["sh", "-c", "echo shared > file"])
            self.assertEqual(hosts[1].run(["cat", "file"]), "shared\n")
            hosts[1].private_folder(hosts.folder / "own", "64k")
            hosts[1].run(["touch", "own/file"])
            with self.assertRaisesRegex(HostsError, "No such file"):
                hosts[0].run(["cat", "own/file"])
            with self.assertRaisesRegex(HostsError, "No space left"):
                hosts[1].run(["dd", "if=/dev/zero", "of=own/large", "bs=1k", "count=200"])

    def test_power_off_is_silent(self):
        with Hosts(2) as hosts:
            self.serve(hosts)
            client = hosts[1].start(python(ECHO_CLIENT, "node0", "1000000", "1"))
            time.sleep(0.3)
            hosts[0].power_off()
            self.assertEqual(hosts[0].processes(), [])
            time.sleep(0.5)
            self.assertIsNone(client.poll())  # no end of file and no reset arrived

    def test_terminal_is_one(self):
        with Hosts(1) as hosts:
            words = python("import sys; print(sys.stdout.isatty())")
            self.assertEqual([hosts[0].run(words), hosts[0].run(words, terminal=True)], ["False\n", "True\n"])

    def test_close_leaves_nothing(self):
        with Hosts(2) as hosts:
            folder = hosts.folder
            hosts[0].start(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
            self.assertEqual(self.wait_for_processes(b"sleep 1000", 2), 2)
            hosts[1].link.delay(5)
        self.assertFalse(folder.exists())
        links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
        self.assertEqual([line.split()[0] for line in links.splitlines()], ["lo"])
        processes = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
        running = [name for name in processes if Path(f"/proc/{name}/cmdline").read_bytes()]
        self.assertEqual(running, [])

    def test_killed_script_leaves_no_process(self):
        mark = f"sleep {100_000 + os.getpid()}.{time.monotonic_ns() % 1_000_000}"
        script = (f"import sys; sys.path.insert(0, {sys.path[0]!r})\n"
                  "from hosts import Hosts, enter_namespaces\nenter_namespaces()\n"
                  f"with Hosts(1) as hosts:\n  hosts[0].start(['sh', '-c', 'setsid {mark} & {mark}'])\n"
                  "  print('started', flush=True)\n  input()\n")
        file = Path("/tmp") / f"hosts_library_{os.getpid()}.py"
        file.write_text(script)
        self.addCleanup(file.unlink)
        started = subprocess.Popen([sys.executable, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(started.stdout.readline(), b"started\n")
        # A process has no command while it starts a program: both must run before the script is killed.
        self.assertEqual(self.wait_for_processes(mark.encode(), 2), 2)
        started.send_signal(signal.SIGKILL)
        started.wait()
        started.stdin.close()
        started.stdout.close()
        self.assertEqual(self.wait_for_processes(mark.encode(), 0), 0)

    def wait_for_processes(self, command, count):
        """Waits until this number of processes run the command, for 30 s at most. Returns the last number."""
        end = time.monotonic() + 30
        while True:
            running = self.all_commands().count(command)
            if running == count or time.monotonic() > end:
                return running
            time.sleep(0.05)

    @staticmethod
    def all_commands():
        commands = []
        for name in os.listdir("/proc"):
            try:
                commands.append(Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").strip())
            except OSError:
                pass
        return commands

    def test_refused_namespaces_fail_with_what_to_allow(self):
        words = "echo 0 > /proc/sys/user/max_user_namespaces && exec python3 \"$0\" Library.test_terminal_is_one"
        refused = subprocess.run(["unshare", "--user", "--map-root-user", "sh", "-c", words, __file__],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("this machine refuses the namespaces", refused.stderr)
        self.assertIn("kernel.unprivileged_userns_clone", refused.stderr)


if __name__ == "__main__":
    enter_namespaces()
    unittest.main(verbosity=2)
