#!/usr/bin/env python3
"""Writes tests/golden/survey/*.txt: the losses that the Python programs of examples/survey print at their reduced sizes.

    python tools/golden/make_survey_goldens.py [NAME...]

Needs torch, numpy, and for deepspeed_fp32 and deepspeed_bf16 DeepSpeed 0.19 on a CPU (it compiles its Adam at the first run).
On a CPU DeepSpeed refuses fp16, so deepspeed_fp16 is computed in plain torch (deepspeed_json.py --plain)."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SURVEY, OUT = ROOT / "examples/survey", ROOT / "tests/golden/survey"


def commands(folder):
    result = {}
    for name in ("convnet", "data_parallel", "ddp", "checkpoint", "resnet50", "hsdp"):
        for precision in ("fp32", "bf16", "fp16"):
            if (name, precision) == ("resnet50", "fp16"):
                continue
            words = [sys.executable, SURVEY / f"{name}.py", "--precision", precision]
            if name == "data_parallel":
                words += ["--out", folder]
            result[name if precision == "fp32" else f"{name}_{precision}"] = words
            if name == "data_parallel" and precision == "fp32":
                result["data_parallel_opened"] = words[:2] + ["--open", f"{folder}/example_model.pth"]
    program = SURVEY / "deepspeed_json.py"
    result["deepspeed_fp16"] = [sys.executable, program, "--plain"]
    for precision in ("fp32", "bf16"):
        result[f"deepspeed_{precision}"] = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program,
            SURVEY / f"deepspeed_{precision}.json"]
    return result


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, words in commands(folder).items():
            if sys.argv[1:] and name not in sys.argv[1:]:
                continue
            run = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=True, cwd=folder,
                                 env=os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})
            lines = [line for line in run.stdout.splitlines() if line.startswith("loss ")]
            assert lines, run.stdout
            (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
            print(name, lines[-1], flush=True)


if __name__ == "__main__":
    main()
