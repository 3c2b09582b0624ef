#!/usr/bin/env python3
"""Writes tests/golden/optim/learning_rates.json: the rates of Python's schedulers, step by step, in full precision.

    python tools/golden/make_learning_rate_goldens.py     (torch and numpy)
"""
import json
import math
import warnings
from pathlib import Path

import torch
from torch.optim import lr_scheduler

OUT = Path(__file__).resolve().parents[2] / "tests/golden/optim/learning_rates.json"
STEPS = 60
METRICS = [0.1, 0.2, 0.2, 0.2, 0.2, 0.21, 0.2, 0.21, 0.1, 0.2, 0.3, 0.30001, 0.3, 0.3, 0.29, 0.3, 0.3, 0.3, 0.3, 0.31,
           0.31, 0.305, 0.36, 0.36, 0.35, 0.36, 0.37, 0.4, 0.41, 0.4, 0.4, 0.39, 0.38, 0.4, 0.4, 0.41, 0.41, 0.41, 0.41]


def optimizer(rate):
    return torch.optim.SGD([torch.zeros(1)], lr=rate)


def follow(opt, schedule, steps=STEPS):
    rates = []
    for _ in range(steps):
        rates.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return rates


def rates_of(base, warm_up, make, steps=STEPS):
    opt = optimizer(base)
    if not warm_up:
        return follow(opt, make(opt), steps)
    count, start = warm_up
    rise = lr_scheduler.LinearLR(opt, start_factor=start, total_iters=count)
    return follow(opt, lr_scheduler.SequentialLR(opt, [rise, make(opt)], milestones=[count]), steps)


def constant(opt):
    return lr_scheduler.ConstantLR(opt, factor=1.0)


def one_cycle(opt, **options):
    return lr_scheduler.OneCycleLR(opt, opt.param_groups[0]["lr"], cycle_momentum=False, **options)


def momentum_of(opt):
    group = opt.param_groups[0]
    return group["momentum"] if "momentum" in group else group["betas"][0]


# OneCycleLR with its default cycle_momentum: rates and momenta of each optimizer, and the resulting weights.
MOMENTA = [
    (0.1, "sgd", dict(momentum=0.9), dict(length=40), None),
    (0.1, "sgd", {}, dict(length=41, rise=0.25, lowest_momentum=0.6, highest_momentum=0.9), None),
    (0.01, "sgd", dict(momentum=0.9, nesterov=True), dict(length=30), (10, 0.1)),
    (0.01, "adam", {}, dict(length=40), None),
    (0.01, "adamw", dict(weight_decay=0.1), dict(length=40, lowest_momentum=0.7), None),
    (0.01, "rmsprop", {}, dict(length=40), None),
]
OPTIMIZERS = dict(sgd=torch.optim.SGD, adam=torch.optim.Adam, adamw=torch.optim.AdamW, rmsprop=torch.optim.RMSprop)


def momenta(base, name, of_optimizer, of_schedule, warm_up):
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    opt = OPTIMIZERS[name]([weight], lr=base, **of_optimizer)
    schedule = lr_scheduler.OneCycleLR(opt, base, total_steps=of_schedule["length"],
                                       pct_start=of_schedule.get("rise", 0.3),
                                       base_momentum=of_schedule.get("lowest_momentum", 0.85),
                                       max_momentum=of_schedule.get("highest_momentum", 0.95))
    if warm_up:
        # LinearLR first, as for the other schedules; it reads the optimizer's initial rate.
        opt = OPTIMIZERS[name]([weight], lr=base, **of_optimizer)
        rise = lr_scheduler.LinearLR(opt, start_factor=warm_up[1], total_iters=warm_up[0])
        cycle = lr_scheduler.OneCycleLR(opt, base, total_steps=of_schedule["length"])
        schedule = lr_scheduler.SequentialLR(opt, [rise, cycle], milestones=[warm_up[0]])
        of_schedule = dict(of_schedule, warm_up=warm_up[0], warm_up_from=warm_up[1])
    rates, momenta, weights = [], [], []
    for step in range(40):
        rates.append(opt.param_groups[0]["lr"])
        momenta.append(momentum_of(opt))
        opt.zero_grad()
        ((weight - torch.tensor([0.3, 0.2, -0.1])) ** 2 * (1 + step % 3)).sum().backward()
        opt.step()
        schedule.step()
        weights.append(weight.tolist())
    return dict(base=base, optimizer=dict(of_optimizer, name=name), options=dict(of_schedule, schedule="one_cycle"),
                rates=rates, momenta=momenta, weights=weights)


def decay(o, lowest, height, length):
    """Megatron-LM's schedules: at the end the lowest rate stays. `lowest` is a share of the base rate."""
    return lr_scheduler.LambdaLR(o, lambda step: lowest + (1 - lowest) * height(min(step / length, 1)))


# The options have the names of trestle's LearningRateOptions.
CASES = [
    (0.1, dict(schedule="constant", warm_up=10, warm_up_from=0.01), constant),
    (0.3, dict(schedule="step", every=7, factor=0.3), lambda o: lr_scheduler.StepLR(o, 7, gamma=0.3)),
    (0.3, dict(schedule="step", every=5, factor=0.9, warm_up=4, warm_up_from=1 / 3),
     lambda o: lr_scheduler.StepLR(o, 5, gamma=0.9)),
    (0.05, dict(schedule="multi_step", milestones=[10, 25, 25, 50], factor=0.3),
     lambda o: lr_scheduler.MultiStepLR(o, [10, 25, 25, 50], gamma=0.3)),
    (0.05, dict(schedule="multi_step", milestones=[3, 30], factor=0.1, warm_up=9, warm_up_from=0.2),
     lambda o: lr_scheduler.MultiStepLR(o, [3, 30], gamma=0.1)),
    (1e-3, dict(schedule="cosine", length=60), lambda o: lr_scheduler.CosineAnnealingLR(o, 60)),
    (1e-3, dict(schedule="cosine", length=17, lowest=1e-5), lambda o: lr_scheduler.CosineAnnealingLR(o, 17, 1e-5)),
    (1e-3, dict(schedule="cosine", length=53, lowest=1e-6, warm_up=7, warm_up_from=0.01),
     lambda o: lr_scheduler.CosineAnnealingLR(o, 53, 1e-6)),
    (1e-3, dict(schedule="cosine_decay", length=41, lowest=1e-5, warm_up=5, warm_up_from=1e-9),
     lambda o: decay(o, 1e-5 / 1e-3, lambda share: (1 + math.cos(math.pi * share)) / 2, 41)),
    (1e-3, dict(schedule="linear_decay", length=33, lowest=2e-5),
     lambda o: decay(o, 2e-5 / 1e-3, lambda share: 1 - share, 33)),
    (0.1, dict(schedule="one_cycle", length=60), lambda o: one_cycle(o, total_steps=60)),
    (0.1, dict(schedule="one_cycle", length=61, rise=0.25, first_divisor=10, last_divisor=100),
     lambda o: one_cycle(o, total_steps=61, pct_start=0.25, div_factor=10, final_div_factor=100)),
]
PLATEAUS = [
    dict(mode="max", patience=2),
    dict(mode="min", patience=1, factor=0.5),
    dict(mode="max", patience=1, cooldown=2, threshold=0.1),
    dict(mode="max", patience=1, threshold=0.02, threshold_mode="abs", factor=0.3),
    dict(mode="min", patience=0, threshold=0.05, threshold_mode="abs", factor=0.5, cooldown=1),
    dict(mode="max", patience=0, factor=0.5, min_lr=0.03, eps=1e-3),
    dict(mode="min", patience=0, factor=0.1, min_lr=1e-4),
]


def plateau(options):
    opt = optimizer(1.0)
    schedule = lr_scheduler.ReduceLROnPlateau(opt, **options)
    rates = []
    for metric in METRICS:
        schedule.step(metric)
        rates.append(opt.param_groups[0]["lr"])
    return dict(options=options, rates=rates)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    cases = []
    for base, options, make in CASES:
        warm_up = (options["warm_up"], options["warm_up_from"]) if "warm_up" in options else None
        cases.append(dict(base=base, options=options, rates=rates_of(base, warm_up, make)))
    content = dict(made_by="python tools/golden/make_learning_rate_goldens.py",
                   versions=dict(torch=torch.__version__.split("+")[0]), schedules=cases, metrics=METRICS,
                   momenta=[momenta(*case) for case in MOMENTA],
                   plateaus=[plateau(options) for options in PLATEAUS])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(content) + "\n")
    print(len(cases), "schedules,", len(MOMENTA), "momenta,", len(PLATEAUS), "plateaus")
