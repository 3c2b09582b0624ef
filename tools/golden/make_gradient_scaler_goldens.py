#!/usr/bin/env python3
"""Writes tests/golden/precision/gradient_scaler.json: the state of Python's GradScaler after gradients with
infinities and NaN.

    python tools/golden/make_gradient_scaler_goldens.py     (torch and numpy)
"""
import json
import math
from pathlib import Path

import torch

import formula

OUT = Path(__file__).resolve().parents[2] / "tests/golden/precision/gradient_scaler.json"
STEPS = 40
CASES = [
    dict(init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=4),
    dict(init_scale=1000.0, growth_factor=1.7, backoff_factor=0.3, growth_interval=3),
    dict(init_scale=2.0**126, growth_factor=2.0, backoff_factor=0.5, growth_interval=1),  # ends at the largest float
]
# The kind of non-finite gradients in a step.
BAD = {3: math.inf, 4: math.nan, 11: -math.inf, 23: math.nan, 24: math.inf, 25: math.inf}


def run(options):
    parameter = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", **options)
    steps = []
    for step in range(STEPS):
        scale = scaler.scale(torch.ones(())).item()
        gradient = formula.formula_tensor([6], step) * (scale if math.isfinite(scale * 2) else 1.0)
        if step in BAD:
            gradient[step % 6] = BAD[step]
        parameter.grad = gradient.clone()
        scaler.unscale_(optimizer)
        unscaled = parameter.grad.tolist()
        scaler.step(optimizer)
        scaler.update()
        steps.append(dict(scale=scale, bad=step in BAD,
                          gradient=None if step in BAD else gradient.tolist(),
                          unscaled=None if step in BAD else unscaled,
                          parameter=parameter.tolist(), state=scaler.state_dict()))
    return dict(options=options, steps=steps)


if __name__ == "__main__":
    content = dict(made_by="python tools/golden/make_gradient_scaler_goldens.py",
                   versions=dict(torch=torch.__version__.split("+")[0]),
                   bad={str(step): repr(value) for step, value in BAD.items()}, cases=[run(case) for case in CASES])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(content) + "\n")
    print(len(CASES), "cases", [case["steps"][-1]["state"] for case in content["cases"]])
