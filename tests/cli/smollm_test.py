#!/usr/bin/env python3
"""trestle generates with a public model: SmolLM2-135M-Instruct from its GGUF file.

    tests/cli/smollm_test.py PROGRAM SCRATCH

Gets the model with tools/get_smollm and compares the greedy tokens of five prompts with those of Python's transformers on the
same dequantised weights (tests/golden/smollm.json), from the GGUF file and from the folder that `trestle export` writes.
"""
import json
import subprocess
import sys
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


run(sys.executable, ROOT / "tools/get_smollm", scratch / "smollm")
model = scratch / "smollm/SmolLM2-135M-Instruct.Q4_1.gguf"
compare(model, cases)
compare(model, cases[:1], "--devices", "virtual:3")
answer = run(program, "generate", model, "--chat", "--greedy", "--tokens", 40, said="Name three colors.\n")
check("an answer", True, all(color in answer for color in ("Red", "Blue", "Green")))
folder = scratch / "exported"
run("rm", "-rf", folder)
run(program, "export", model, "--out", folder, "--names", "hugging_face")
compare(folder, cases[:2])
run("rm", "-rf", folder)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
