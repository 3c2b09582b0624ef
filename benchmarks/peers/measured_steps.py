"""The job's size, the measured steps, and the line that run.py reads, like measured_steps.h for the C++ programs."""
import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "golden"))  # nets.py


def job(description, add_flags=lambda parser: None):
    parser = argparse.ArgumentParser(description=description)
    for flag, value in (("width", 64), ("batch", 8), ("rows", 96), ("columns", 144), ("warm-up", 1), ("steps", 3)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    parser.add_argument("--channels-last", action="store_true", help="images and weights in that memory format")
    parser.set_defaults(device="cpu", precision="fp32")
    add_flags(parser)
    return parser.parse_args()


def loss_of(scores, target):
    """Cross-entropy + dice over the whole batch."""
    probability = torch.softmax(scores, 1)
    truth = torch.zeros_like(probability).scatter_(1, target.unsqueeze(1), 1.0)
    common = (probability * truth).sum((0, 2, 3))
    sums = probability.sum((0, 2, 3)) + truth.sum((0, 2, 3))
    dice = (2 * common + 1e-6) / (sums + 1e-6)
    return F.cross_entropy(scores, target) + 1 - dice.mean()


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-5, weight_decay=1e-8, momentum=0.9)


def place(model, tensors, size):
    """Moves the model and the mini-batch to the job's device and memory format."""
    if size.device != "cpu":  # a torchgpipe model cannot be moved, even to its own device
        model, tensors = model.to(size.device), [tensor.to(size.device) for tensor in tensors]
    if size.channels_last:
        model = model.to(memory_format=torch.channels_last)
        tensors = [tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for tensor in tensors]
    return model, *tensors


def timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run_steps(warm_up, steps, gradients, update):
    """Seconds of each measured step, in two parts, like measured_steps.cpp."""
    times = {"gradients_seconds": [], "optimizer_seconds": []}
    for step in range(warm_up + steps):
        for work, seconds in zip((gradients, update), times.values()):
            took = timed(work)
            if step >= warm_up:
                seconds.append(took)
        if step == 0:
            print("first step", flush=True)
    return times


def report(model, loss, times):
    """Prints the program's last line."""
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), "loss": loss,
                      "threads": torch.get_num_threads(), "torch": torch.__version__, **times}), flush=True)


def measure(model, size, compiled=False):
    """Trains the U-Net for the job's number of steps, and prints the duration of each."""
    images = torch.rand(size.batch, 3, size.rows, size.columns)
    masks = torch.randint(2, (size.batch, size.rows, size.columns))
    model, images, masks = place(model, [images, masks], size)
    optimizer = rmsprop(model.parameters())
    run = torch.compile(model) if compiled else model
    warm_up = max(2, size.warm_up) if compiled else size.warm_up  # compilation happens in the first step
    loss = 0.0

    def wait():  # on a GPU operators return early: wait before reading the clock
        if size.device != "cpu":
            torch.cuda.synchronize(size.device)

    def forward():
        with torch.autocast(torch.device(size.device).type, torch.bfloat16, enabled=size.precision == "bf16"):
            return loss_of(run(images).float(), masks)  # the loss in fp32, as in trestle

    def gradients():
        nonlocal loss
        optimizer.zero_grad()
        value = forward()
        value.backward()
        loss = value.item()
        wait()

    def update():
        optimizer.step()
        wait()

    times = run_steps(warm_up, size.steps, gradients, update)
    report(model, loss, times)
