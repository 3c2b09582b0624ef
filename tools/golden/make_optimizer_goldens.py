#!/usr/bin/env python3
"""Writes tests/golden/optim/optimizers.json: ten steps of Python's optimizers on three small tensors whose gradients
follow the formula of formula.py.

    python tools/golden/make_optimizer_goldens.py     (torch and numpy)
"""
import json
from pathlib import Path

import torch

import formula

OUT = Path(__file__).resolve().parents[2] / "tests/golden/optim/optimizers.json"
SHAPES = [[3, 4], [5], [2, 3, 2]]
SGD, Adam, AdamW, RMSprop = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop
# By the name of trestle's optimizer, an underscore, and what is special.
KINDS = {
    "sgd": (SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "sgd_plain": (SGD, dict(lr=0.1)),
    "sgd_decay": (SGD, dict(lr=0.1, weight_decay=0.1)),
    "sgd_momentum": (SGD, dict(lr=0.05, momentum=0.8)),
    "adam": (Adam, dict(lr=0.01, weight_decay=0.01)),
    "adam_betas": (Adam, dict(lr=0.01, betas=[0.8, 0.95], eps=1e-3)),
    "adam_amsgrad": (Adam, dict(lr=0.02, betas=[0.5, 0.6], amsgrad=True)),
    "adamw": (AdamW, dict(lr=0.01, weight_decay=0.1)),
    "adamw_betas": (AdamW, dict(lr=0.01, betas=[0.95, 0.98], eps=1e-4, weight_decay=0.02)),
    "adamw_amsgrad": (AdamW, dict(lr=0.02, betas=[0.5, 0.6], weight_decay=0.1, amsgrad=True)),
    "rmsprop": (RMSprop, dict(lr=0.01, momentum=0.9, weight_decay=0.01)),
    "rmsprop_plain": (RMSprop, dict(lr=0.01, alpha=0.9)),
    "rmsprop_slow": (RMSprop, dict(lr=0.01, alpha=0.99999)),
    "rmsprop_eps": (RMSprop, dict(lr=0.01, alpha=0.95, eps=1e-2)),
    "rmsprop_centered": (RMSprop, dict(lr=0.01, centered=True)),
    "rmsprop_all": (RMSprop, dict(lr=0.01, alpha=0.9, centered=True, momentum=0.5, weight_decay=0.01)),
}


def rounded(value):
    return float(f"{value.item():.9g}")


def ten_steps(optimizer, options):
    parameters = [formula.formula_tensor(shape, k).requires_grad_() for k, shape in enumerate(SHAPES)]
    opt = optimizer(parameters, **{k: tuple(v) if k == "betas" else v for k, v in options.items()})
    for step in range(10):
        for k, parameter in enumerate(parameters):
            parameter.grad = formula.formula_tensor(parameter.shape, 100 * (step + 1) + k)
        opt.step()
    return dict(options=options, values=[[rounded(v) for v in p.detach().reshape(-1)] for p in parameters])


if __name__ == "__main__":
    content = dict(made_by="python tools/golden/make_optimizer_goldens.py",
                   versions=dict(torch=torch.__version__.split("+")[0]), shapes=SHAPES,
                   optimizers={name: ten_steps(*kind) for name, kind in KINDS.items()})
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(content) + "\n")
    print(len(KINDS), "optimizers")
