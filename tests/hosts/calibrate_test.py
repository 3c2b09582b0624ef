#!/usr/bin/env python3
"""trestle calibrate on two hosts with a slow link: it tells the links inside a host from those between hosts."""
import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, enter_namespaces  # noqa: E402
from training import PORT, TRESTLE  # noqa: E402

DELAY = 20  # milliseconds each way
RATE = 100e6 / 8  # bytes per second


class Calibrate(unittest.TestCase):
    def test_links_inside_and_between_hosts(self):
        with Hosts(2) as hosts:
            for host in hosts:
                host.link.rate("100mbit")
            hosts[1].link.delay(DELAY)
            programs = [
                host.start([TRESTLE, "launch", "-n", 2, "--nodes", 2, "--node-rank", node, "--rendezvous",
                            f"node0:{PORT}", "--", TRESTLE, "calibrate", "--quick", "--backend", "gloo", "--json",
                            "--out", f"of_node{node}.toml"], environment={"OMP_NUM_THREADS": "1"})
                for node, host in enumerate(hosts)
            ]
            for program in programs:
                self.assertEqual(program.wait(120), 0, program.text())
            self.assertTrue((hosts.folder / "of_node0.toml").exists())
            self.assertFalse((hosts.folder / "of_node1.toml").exists(), "the first rank writes")
        words = programs[0].text()
        measured, _ = json.JSONDecoder().raw_decode(words[words.index('{"file"'):])
        self.assertEqual(measured["devices_per_node"], 2)
        figures = measured["figures"]
        self.assertEqual({figures[link]["is"] for link in ("inside_latency", "between_latency")}, {"measured"})
        # A message waits for the delay of one way, and more where the machine is busy.
        self.assertGreater(figures["between_latency"]["value"], 0.9 * DELAY / 1000)
        self.assertLess(figures["between_latency"]["value"], 10 * DELAY / 1000)
        self.assertLess(figures["inside_latency"]["value"], 0.5 * figures["between_latency"]["value"])
        self.assertLess(figures["between_bandwidth"]["value"], 1.3 * RATE)
        self.assertGreater(figures["between_bandwidth"]["value"], 0.1 * RATE)
        self.assertGreater(figures["inside_bandwidth"]["value"], 2 * RATE)
        kinds = {(table["kind"], table["reach"], table["ranks"]) for table in measured["messages"]}
        for reach in ("inside", "between"):
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "send"):
                self.assertIn((kind, reach, 2), kinds)


if __name__ == "__main__":
    enter_namespaces()
    unittest.main(verbosity=2)
