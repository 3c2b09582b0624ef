#!/usr/bin/env python3
"""Writes tests/golden/optim/deepspeed_rates.json: the rates of DeepSpeed's schedules, step by step, in full precision.

    python tools/golden/make_deepspeed_rate_goldens.py     (needs only Python)

It does not need DeepSpeed: it implements the formulas of DeepSpeed's documentation and papers (Smith 2018, "A disciplined
approach to neural network hyper-parameters"). As in DeepSpeed, a schedule object sets the optimizer's first rate when it is
created (`first` below), and a new rate after each step of the optimizer (`moved` below). `i` is the number of earlier calls.
"""
import json
import math
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "tests/golden/optim/deepspeed_rates.json"
STEPS = 70


class WarmUp:
    """Up to the highest rate; `falls` is what it does afterwards: stay, or go down along a line."""

    def __init__(self, base, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000, warmup_type="log",
                 total_num_steps=None):
        self.low, self.high, self.kind = warmup_min_lr, warmup_max_lr, warmup_type
        self.rising = max(2, warmup_num_steps)
        self.total = total_num_steps

    def share(self, i):
        if i < self.rising:
            return math.log(i + 1) / math.log(self.rising) if self.kind == "log" else i / self.rising
        if self.total is None:
            return 1.0
        return max(0.0, (self.total - i) / max(1.0, self.total - self.rising))

    def first(self):
        return self.low, None

    def moved(self, i):
        return self.low + (self.high - self.low) * self.share(i), None


class WarmUpCosine:
    def __init__(self, base, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
                 warmup_type="log"):
        self.base, self.total, self.low, self.end = base, total_num_steps, warmup_min_ratio, cos_min_ratio
        self.warm_up = WarmUp(base, 0.0, 1.0, warmup_num_steps, warmup_type)

    def first(self):
        return 0.0, None

    def moved(self, i):
        rising = self.warm_up.rising
        if i < rising:
            return self.base * (self.low + self.warm_up.share(i) * (1 - self.low)), None
        done = min(1.0, (i - rising + 1) / max(1, self.total - rising))
        return self.base * (self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2), None


class OneCycle:
    def __init__(self, base, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
                 cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None, decay_step_size=0,
                 cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0):
        self.rates, self.momenta, self.moves = (cycle_min_lr, cycle_max_lr), (cycle_min_mom, cycle_max_mom), cycle_momentum
        self.sizes = (cycle_first_step_size, cycle_second_step_size or cycle_first_step_size)
        first = cycle_first_stair_count
        self.stairs = (first, first if cycle_second_stair_count is None else cycle_second_stair_count)
        self.decay, self.rate_decay, self.momentum_decay = decay_step_size, decay_lr_rate, decay_mom_rate

    def first(self):
        return self.rates[0], self.momenta[0] if self.moves else None

    def moved(self, i):
        up, down = self.sizes
        step = i + 1
        if step <= up + down:
            at = step % (up + down)
            part, half = (at / up, 0) if at <= up else ((up + down - at) / down, 1)
            if self.stairs[half]:
                # In integers: a rounded quotient may be just below a stair.
                way = at if half == 0 else up + down - at
                part = (way * self.stairs[half] // self.sizes[half]) / self.stairs[half]
            rate = self.rates[0] + (self.rates[1] - self.rates[0]) * part
            momentum = self.momenta[1] - (self.momenta[1] - self.momenta[0]) * part
        else:
            past = (step - up - down) / self.decay if self.decay else 0.0
            rate = self.rates[0] / (1 + self.rate_decay * past)
            momentum = self.momenta[1] * (1 + self.momentum_decay * past)
        return rate, momentum if self.moves else None


class RangeTest:
    def __init__(self, base, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000, lr_range_test_step_rate=1.0,
                 lr_range_test_staircase=False):
        self.low, self.size, self.rate, self.stairs = (lr_range_test_min_lr, lr_range_test_step_size, lr_range_test_step_rate,
                                                       lr_range_test_staircase)

    def first(self):
        return self.low, None

    def moved(self, i):
        passed = (i + 1) // self.size if self.stairs else (i + 1) / self.size
        return self.low * (1 + self.rate * passed), None


KINDS = dict(WarmupLR=WarmUp, WarmupDecayLR=WarmUp, WarmupCosineLR=WarmUpCosine, OneCycle=OneCycle, LRRangeTest=RangeTest)

# type, the optimizer's rate, options with DeepSpeed's names
CASES = [
    ("WarmupLR", 0.01, dict(warmup_min_lr=1e-5, warmup_max_lr=0.003, warmup_num_steps=40)),
    ("WarmupLR", 0.01, dict(warmup_max_lr=0.1, warmup_num_steps=25, warmup_type="linear")),
    ("WarmupLR", 0.01, dict(warmup_min_lr=0.2, warmup_max_lr=0.1, warmup_num_steps=1)),
    ("WarmupDecayLR", 0.01, dict(warmup_max_lr=3e-4, warmup_num_steps=20, total_num_steps=60)),
    ("WarmupDecayLR", 0.01, dict(warmup_min_lr=1e-5, warmup_max_lr=3e-4, warmup_num_steps=20, total_num_steps=50,
                                 warmup_type="linear")),
    ("WarmupDecayLR", 0.01, dict(warmup_max_lr=3e-4, warmup_num_steps=30, total_num_steps=10)),
    ("WarmupCosineLR", 0.02, dict(total_num_steps=60, warmup_num_steps=10)),
    ("WarmupCosineLR", 0.02, dict(total_num_steps=45, warmup_num_steps=15, warmup_min_ratio=0.1, cos_min_ratio=0.05,
                                  warmup_type="linear")),
    ("WarmupCosineLR", 0.02, dict(total_num_steps=5, warmup_num_steps=20)),
    ("OneCycle", 0.01, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=20)),
    ("OneCycle", 0.01, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=13, cycle_second_step_size=29,
                            decay_step_size=5, decay_lr_rate=0.5, decay_mom_rate=0.01, cycle_min_mom=0.7,
                            cycle_max_mom=0.95)),
    ("OneCycle", 0.01, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=21, cycle_second_step_size=14,
                            cycle_first_stair_count=7, cycle_second_stair_count=3, cycle_momentum=False)),
    ("OneCycle", 0.01, dict(cycle_min_lr=1e-4, cycle_max_lr=1e-2, cycle_first_step_size=20, cycle_first_stair_count=4)),
    ("LRRangeTest", 0.01, dict(lr_range_test_min_lr=1e-4, lr_range_test_step_size=7, lr_range_test_step_rate=5)),
    ("LRRangeTest", 0.01, dict(lr_range_test_step_size=9, lr_range_test_step_rate=0.3, lr_range_test_staircase=True)),
]


def follow(kind, base, options):
    schedule = KINDS[kind](base, **options)
    states = [schedule.first()] + [schedule.moved(i) for i in range(STEPS - 1)]
    return dict(type=kind, base=base, options=options, rates=[rate for rate, _ in states],
                momenta=[momentum for _, momentum in states])


if __name__ == "__main__":
    content = dict(made_by="python tools/golden/make_deepspeed_rate_goldens.py", schedules=[follow(*case) for case in CASES])
    OUT.write_text(json.dumps(content) + "\n")
    print(len(CASES), "schedules")
