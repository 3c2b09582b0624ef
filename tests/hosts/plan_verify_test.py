#!/usr/bin/env python3
"""trestle plan --verify on two hosts with a slow link: a launcher starts the ranks of a plan on both."""
import json
import shlex
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, enter_namespaces  # noqa: E402
from training import PORT, TRESTLE, slowness  # noqa: E402

DELAY = 5  # milliseconds each way
RATE = 100e6 / 8  # bytes per second
WIDTH = 256
GRADIENTS = 4 * 5 * WIDTH**2  # bytes of the products between hidden layers, the least that an all-reduce sends

RECIPE = f"""\
[model]
name = "toy"
channels = 16
classes = 16
width = {WIDTH}
[data]
name = "random"
shape = [16]
count = 64
targets = "normal"
[devices]
use = "virtual:2x64MiB"
threads = 1
[mesh]
link = "100Mbit,{DELAY}ms"
[pipeline]
deadline = 60
[train]
epochs = 1
batch = 16
loss = "mean_squared_error"
"""


def write_launcher(hosts):
    """Writes a script that starts a program as $1 ranks, the same number on each host. Returns its file."""
    lines = ["#!/bin/sh", f'each=$(($1 / {len(hosts)}))', "shift", "started="]
    for node, host in enumerate(hosts):
        words = host.words([TRESTLE, "launch", "--nodes", len(hosts), "--node-rank", node, "--rendezvous",
                            f"node0:{PORT}"])
        lines += [f'{shlex.join(words)} -n "$each" -- "$@" &', 'started="$started $!"']
    lines += ["code=0", 'for process in $started; do wait "$process" || code=$?; done', 'exit "$code"']
    script = hosts.folder / "on_all_hosts.sh"
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    return script


class PlanVerify(unittest.TestCase):
    def test_launcher_starts_a_plan_on_both_hosts(self):
        with Hosts(2) as hosts:
            for host in hosts:
                host.link.rate("100mbit")
            hosts[1].link.delay(DELAY)
            (hosts.folder / "toy.toml").write_text(RECIPE)
            # The hosts share the folder, and so the recipes in TMPDIR.
            program = hosts[0].start(
                [TRESTLE, "plan", "toy.toml", "--devices", 2, "--nodes", 2, "--keep", "data=2,level=0", "--verify", 1,
                 "--rounds", 1, "--steps", 3, "--launcher", f"{write_launcher(hosts)} {{ranks}}", "--json"],
                environment={"TMPDIR": str(hosts.folder)})
            code = program.wait(80 * slowness())
        self.assertEqual(code, 0, program.text())
        objects = [json.loads(line) for line in program.text().splitlines() if line.startswith("{")]
        self.assertEqual(len(objects), 2, program.text())
        self.assertTrue(objects[1]["finished"])
        plan = objects[1]["plans"][0]
        self.assertEqual([peak["device"] for peak in plan["measured_peaks"]], ["virtual:0", "virtual:1"])
        simulated, measured = plan["simulated_step_seconds"], plan["measured_step_seconds"]
        # Ranks on one host would wait for neither the delay nor the bytes.
        self.assertGreater(measured, DELAY / 1000 + 0.5 * GRADIENTS / RATE)
        self.assertGreater(simulated, DELAY / 1000 + 0.5 * GRADIENTS / RATE)
        self.assertLess(simulated / 3, measured)
        self.assertLess(measured, 3 * simulated)


if __name__ == "__main__":
    enter_namespaces()
    unittest.main(verbosity=2)
