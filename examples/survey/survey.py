"""Shared by the programs of this folder. Weights, samples and losses are those of survey.h: both sides compute them from one
formula (tools/golden/formula.py)."""

import argparse
import contextlib
import importlib.util
import sys
from pathlib import Path

import torch

GOLDEN_TOOLS = Path(__file__).resolve().parents[2] / "tools/golden"
sys.path.insert(1, str(GOLDEN_TOOLS))
from formula import formula_classes as classes  # noqa: E402, F401
from formula import formula_tensor as samples  # noqa: E402, F401
from formula import set_formula_weights  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load_net(name):
    """A module of tools/golden that has the name of a program here."""
    spec = importlib.util.spec_from_file_location(f"golden_{name}", GOLDEN_TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def set_weights(module):
    set_formula_weights(list(module.named_parameters()))


def parser():
    result = argparse.ArgumentParser()
    result.add_argument("--precision", choices=DTYPES, default="fp32")
    result.add_argument("--full", action="store_true", help="the survey's own sizes")
    return result


def autocast(precision):
    return contextlib.nullcontext() if precision == "fp32" else torch.autocast("cpu", DTYPES[precision])


def print_loss(step, loss):
    print(f"loss {step} {loss:.9g}", flush=True)
