#!/usr/bin/env python3
"""trestle generates with a public model: SmolLM2-135M-Instruct from its GGUF file.

    tests/cli/smollm_test.py PROGRAM SCRATCH

Gets the model with tools/get_smollm and compares the greedy tokens of five prompts with those of Python's transformers on the
same dequantised weights (tests/golden/smollm.json), from the GGUF file and from the folder that `trestle export` writes, on one
process and over tensor ranks. Ctrl-C on a terminal ends an answer of a conversation, and the conversation continues, also over ranks
that are threads.
"""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
program, scratch = sys.argv[1], Path(sys.argv[2])
cases = json.loads((ROOT / "tests/golden/smollm.json").read_text(encoding="utf-8"))["cases"]
failures = []


def run(*words, said=""):
    done = subprocess.run([str(word) for word in words], input=said, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n  exited with {done.returncode}: {done.stderr}{done.stdout}")
    return done.stdout


def check(what, expected, found):
    if expected != found:
        failures.append(f"{what}\n  expected {expected}\n  found    {found}")


def compare(model, chosen, *flags):
    for case in chosen:
        made = json.loads(run(program, "generate", model, "--prompt", case["prompt"], "--special", "--greedy", "--tokens", 32,
                              "--json", *flags))
        check(f"ids of {case['prompt']!r}", case["ids"], made["prompt_ids"])
        # A text ends at an end token, which is not part of it.
        check(f"{model}: tokens after {case['prompt']!r}", case["tokens"][:len(made["ids"])], made["ids"])
        check(f"length after {case['prompt']!r}", True, len(made["ids"]) == 32 or made["ended"] == "end token")


def read_until(terminal, is_there, seconds=300):
    seen, end = "", time.time() + seconds
    while time.time() < end and not is_there(seen):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                more = os.read(terminal, 4096)
            except OSError:  # the program has ended
                break
            if not more:
                break
            seen += more.decode(errors="replace")
    return seen


def exit_code(child, seconds=30):
    """That of a process which should have ended; one that has not is killed."""
    end = time.time() + seconds
    while time.time() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"it still runs after {seconds} s"


def converse_on_terminal(*flags):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(program, [program, "generate", str(model), "--chat", "--greedy", "--tokens", "2000", *flags])
    at_prompt = lambda seen: seen.endswith("> ")
    read_until(terminal, at_prompt)
    os.write(terminal, b"Write a very long story about a ship and its captain.\n")
    begin = read_until(terminal, lambda seen: len(seen) > 120)
    check("an answer that is still being written", False, at_prompt(begin))
    os.write(terminal, b"\x03")
    check("Ctrl-C ends the answer", True, "the answer ends here" in read_until(terminal, at_prompt))
    os.write(terminal, b"What is the capital of France?\n")
    second = read_until(terminal, at_prompt)
    check("the conversation continues", True, "Paris" in second and at_prompt(second))
    os.write(terminal, b"\x03")
    check("Ctrl-C at the prompt ends the session", True, "stopped" in read_until(terminal, lambda seen: False, 30))
    check("its exit code", 130, exit_code(child))
    os.close(terminal)


def compare_batch():
    prompts = [word for case in cases for word in ("--prompt", case["prompt"])]
    lines = run(program, "generate", model, *prompts, "--special", "--greedy", "--tokens", 32, "--json").splitlines()
    check("lines of a batch", len(cases), len(lines))
    for case, line in zip(cases, lines):
        made = json.loads(line)["ids"]
        check(f"tokens of a batch after {case['prompt']!r}", case["tokens"][:len(made)], made)


run(sys.executable, ROOT / "tools/get_smollm", scratch / "smollm")
model = scratch / "smollm/SmolLM2-135M-Instruct.Q4_1.gguf"
compare(model, cases[:1])
compare_batch()
compare(model, cases[1:2], "--devices", "virtual:3")
# Three heads of keys and values: with 9 ranks each has a third of the rows of one.
compare(model, cases[:1], "--mesh", "tensor=3")
compare(model, cases[:1], "--ranks", "threads:9")
converse_on_terminal()
converse_on_terminal("--ranks", "threads:3")
answer = run(program, "generate", model, "--chat", "--greedy", "--tokens", 40, said="Name three colors.\n")
check("an answer", True, all(color in answer for color in ("Red", "Blue", "Green")))
folder = scratch / "exported"
run("rm", "-rf", folder)
run(program, "export", model, "--out", folder, "--names", "hugging_face")
compare(folder, cases[:1])
compare(folder, cases[2:3], "--mesh", "tensor=3")
run("rm", "-rf", folder)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
