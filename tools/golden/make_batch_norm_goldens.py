"""Writes tests/golden/nets/batch_norm.json: the running statistics of batch norms in torchgpipe's pipelines.

    python tools/golden/make_batch_norm_goldens.py

Needs torch 2.13.0, numpy and torchgpipe 0.0.7 (pip install --no-deps --no-build-isolation torchgpipe==0.0.7). It runs in
double precision, with and without deferred batch norm, for 1 and 4 chunks and every checkpoint mode. Each run is a few
steps of SGD, so that a wrong gradient changes later steps. One case gives deferred batch norm a batch that makes fewer
chunks than `chunks`: torchgpipe then updates nothing until later batches have made the missing chunks.
"""

import collections
import json
import pathlib
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchgpipe import GPipe

import formula

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "nets"
CHANNELS, CLASSES = 3, 4
BATCHES = [8, 11, 7]  # in 4 chunks: 2 each; 3, 3, 3, 2; 2, 2, 2, 1
SHORT_BATCH = 9       # in 4 chunks: 3, 3, 3 in torchgpipe
RATE = 0.1


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def make_net(momentum):
    net = nn.Sequential(
        collections.OrderedDict(
            conv1=nn.Conv2d(2, CHANNELS, 3),
            norm1=nn.BatchNorm2d(CHANNELS, momentum=momentum),
            relu=nn.ReLU(),
            conv2=nn.Conv2d(CHANNELS, CHANNELS, 3),
            norm2=nn.BatchNorm2d(CHANNELS, momentum=momentum),
            mean=Mean(),
            out=nn.Linear(CHANNELS, CLASSES),
        )
    )
    formula.set_formula_weights(list(net.named_parameters()))
    return net.double()


def images(count, step):
    shape = [count, 2, 6, 7]
    return torch.from_numpy(formula.formula(int(np.prod(shape)), 1000 + step)).reshape(shape) * 3 + 1


def numbers(tensor):
    return [float(f"{value:.17g}") for value in tensor.detach().reshape(-1).tolist()]


def run(deferred, momentum, chunks, checkpoint, balance, batches):
    net = make_net(momentum)
    model = GPipe(net, balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=checkpoint,
                  deferred_batch_norm=deferred)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    steps = []
    for step, count in enumerate(batches):
        optimizer.zero_grad()
        output = model(images(count, step))
        F.cross_entropy(output, formula.formula_classes([count], 2000 + step, CLASSES)).backward()
        optimizer.step()
        buffers = {re.sub(r"^partitions\.\d+\.", "", name): numbers(buffer) for name, buffer in model.named_buffers()
                   if not name.endswith(("sum", "sum_squares"))}
        steps.append(dict(count=count, output=numbers(output.reshape(-1)[:: 3]), buffers=buffers))
    return dict(deferred=deferred, momentum=momentum, chunks=chunks, checkpoint=checkpoint, balance=balance, steps=steps)


def main():
    modes = ("never", "except_last", "always")
    runs = []
    for momentum in (0.1, None):
        for chunks in (1, 4):
            for checkpoint in modes:
                balance = [3, 4] if checkpoint != "always" else [1, 3, 3]
                for deferred in (True, False):
                    runs.append(run(deferred, momentum, chunks, checkpoint, balance, BATCHES))
    short = run(True, 0.1, 4, "never", [3, 4], [SHORT_BATCH])
    content = dict(
        made_by="python tools/golden/make_batch_norm_goldens.py",
        versions=dict(torch=torch.__version__.split("+")[0], torchgpipe="0.0.7", numpy=np.__version__),
        channels=CHANNELS, classes=CLASSES, rate=RATE, output_stride=3, runs=runs, short=short)
    text = json.dumps(content, indent=1)
    # Short lists on one line, so that people can read the files.
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text)
    (OUT / "batch_norm.json").write_text(text + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # or deferred batch norm's sums are taken in float32
    main()
