#!/usr/bin/env python3
"""Runs the commands of docs/several_machines.md on hosts.

    tests/hosts/document_test.py [--print]

A block of code with lines such as `node0$ COMMAND` is a set of terminals: each host runs its own commands one after
another, at the same time as the other hosts. Blocks run in the order of the document, in one folder that holds the
recipes, with `trestle` and `torchrun` in PATH. Each command must exit with 0, unless a line `<!-- hosts: exit 1 -->`
stands before the block. --print shows the outputs.
"""
import re
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from hosts import Hosts, enter_namespaces  # noqa: E402
from hosts.hosts import ROOT  # noqa: E402

DOCUMENT = ROOT / "docs/several_machines.md"
BLOCK = re.compile(r"(?:<!-- hosts: exit (\d+) -->\n+)?```\w*\n(.*?)```", re.S)
COMMAND = re.compile(r"^node(\d)\$ (.*(?:\\\n.*)*)$", re.M)


def blocks_of(text):
    """[(expected exit code, {host: [command]})]"""
    for match in BLOCK.finditer(text):
        commands = {}
        for node, command in COMMAND.findall(match[2]):
            commands.setdefault(int(node), []).append(command)
        if commands:
            yield int(match[1] or 0), commands


def prepare(hosts):
    """Puts the programs into PATH, and the recipes into the folder that all hosts see."""
    from training import PYTHON, TRESTLE
    programs = hosts.folder / "bin"
    programs.mkdir()
    (programs / "trestle").symlink_to(TRESTLE)
    torchrun = programs / "torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec "{PYTHON}" -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    (hosts.folder / "recipes").symlink_to(ROOT / "recipes")
    for host in hosts:
        host.set_variable("PATH", f"{programs}:/usr/bin:/bin:/usr/sbin")


def run_block(hosts, commands, expected, shows):
    """Returns what is wrong, as texts."""
    wrong = []

    def run_all(node):
        for command in commands[node]:
            started = hosts[node].start(["bash", "-c", command])
            code = started.wait(120)
            if shows:
                print(f"node{node}$ {command}\n{started.text()}", flush=True)
            if code != expected:
                wrong.append(f"{command} on node{node} exited with {code}, not {expected}:\n{started.text()}")

    threads = [threading.Thread(target=run_all, args=(node,)) for node in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def main():
    enter_namespaces()
    blocks = list(blocks_of(DOCUMENT.read_text(encoding="utf-8")))
    count = max(node for _, commands in blocks for node in commands) + 1
    with Hosts(count, disk="512m") as hosts:
        prepare(hosts)
        for expected, commands in blocks:
            wrong = run_block(hosts, commands, expected, "--print" in sys.argv)
            if wrong:
                print("\n".join(wrong))
                return 1
    print(f"the commands of {len(blocks)} blocks do what {DOCUMENT.name} says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
