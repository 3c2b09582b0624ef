"""The job's size, the clock and the line that run.py reads: as measured_steps.h for the C++ programs."""
import argparse
import json
import time


def job(description, add_flags=lambda parser: None):
    parser = argparse.ArgumentParser(description=description)
    for flag, value in (("width", 64), ("batch", 8), ("rows", 96), ("columns", 144), ("warm-up", 1), ("steps", 3)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    add_flags(parser)
    return parser.parse_args()


def run_steps(size, gradients, optimizer):
    """gradients() clears them and makes them new, optimizer() uses them."""
    times = ([], [])
    for step in range(size.warm_up + size.steps):
        for work, seconds in zip((gradients, optimizer), times):
            begin = time.perf_counter()
            work()
            if step >= size.warm_up:
                seconds.append(time.perf_counter() - begin)
        if step == 0:
            print("first step", flush=True)
    return times


def report(times, **more):
    print(json.dumps({**more, "gradients_seconds": times[0], "optimizer_seconds": times[1]}), flush=True)
