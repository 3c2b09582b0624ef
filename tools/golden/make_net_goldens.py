"""Writes tests/golden/nets: losses, gradients and loss curves of Python torch and of torchgpipe.

    python tools/golden/make_net_goldens.py [FILE...]   # without a file: all of them

Needs torch 2.13.0, numpy and torchgpipe 0.0.7 (pip install --no-deps --no-build-isolation torchgpipe==0.0.7).
"""

import json
import pathlib
import re
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torchgpipe import GPipe

import formula
import nets
from torchgpipe_nets import for_torchgpipe

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "nets"
SEED, STEP = 7, 3  # of the dropout case


def cross_entropy(output, target):
    return F.cross_entropy(output, target)


def cross_entropy_and_dice(output, target):
    """The reference program's loss (dice class by class, reduced over the batch first)."""
    probability = output.softmax(1)
    truth = F.one_hot(target, output.size(1)).movedim(-1, 1).to(output.dtype)
    dice = 0
    for c in range(output.size(1)):
        a, b = probability[:, c].reshape(-1), truth[:, c].reshape(-1)
        dice = dice + (2 * a.dot(b) + 1e-6) / (a.sum() + b.sum() + 1e-6)
    return F.cross_entropy(output, target) + 1 - dice / output.size(1)


CASES = [
    dict(file="unet", net="unet", options=dict(width=4), input=[8, 3, 32, 48], balance=[13, 9],
         loss="cross_entropy+dice", curves=True),
    dict(file="unet_odd", net="unet", options=dict(width=4), input=[8, 3, 35, 49], balance=[13, 9],
         loss="cross_entropy+dice", curves=False),
    dict(file="unet3d", net="unet3d", options=dict(width=4, depth=2, pooling=[[1, 2, 2], [2, 2, 2]]),
         input=[4, 1, 8, 16, 12], balance=[6, 6], loss="cross_entropy+dice", curves=False),
    dict(file="unet3d_odd", net="unet3d", options=dict(width=4, depth=2, pooling=[[2, 2, 2], [2, 2, 2]]),
         input=[4, 1, 7, 11, 13], balance=None, loss="cross_entropy+dice", curves=False),
    dict(file="resnet18_flat", net="resnet18_flat", options=dict(width=8), input=[32, 1, 28, 28], balance=[30, 32],
         loss="cross_entropy", curves=True),
    dict(file="toy", net="toy", options=dict(width=16), input=[12, 12], balance=[6, 4], loss="cross_entropy", curves=True),
    dict(file="toy_dropout", net="toy", options=dict(width=16, dropout=0.3), input=[12, 12], balance=None,
         loss="cross_entropy", curves=False),
]
CHUNKS = 4
CURVES = {
    "rmsprop": (torch.optim.RMSprop, dict(lr=1e-4, weight_decay=1e-4, momentum=0.9)),
    "adam": (torch.optim.Adam, dict(lr=1e-3)),
}


def keyed_seed(seed, step, layer, micro_batch):
    """trestle/base/keyed_seed.h"""
    mask = 2**64 - 1

    def mix(z):
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    key = mix(seed)
    for part in (step, layer, micro_batch):
        key = mix(key ^ (part & mask))
    return key


class Case:
    def __init__(self, case):
        self.case = case
        options = case["options"]
        x = formula.formula_tensor(case["input"], 1000)
        self.classes = {"unet": 2, "unet3d": 2, "resnet18_flat": 10, "toy": 4}[case["net"]]
        shape = [x.size(0), *x.shape[2:]] if case["net"].startswith("unet") else [x.size(0)]
        self.x = x
        self.target = formula.formula_classes(shape, 1001, self.classes)
        self.loss = {"cross_entropy": cross_entropy, "cross_entropy+dice": cross_entropy_and_dice}[case["loss"]]
        self.options = options

    def layers(self):
        layers = getattr(nets, self.case["net"])(**self.options)
        formula.set_formula_weights(nets.named_parameters(layers))
        return layers

    def looped(self, layers, x, chunks):
        outputs = []
        for micro_batch, piece in enumerate(x.chunk(chunks)):
            def key(index):
                torch.manual_seed(keyed_seed(SEED, STEP, index, micro_batch))
            outputs.append(nets.run_plain(layers, piece, key))
        return torch.cat(outputs)

    def one_step(self, forward, layers):
        loss = self.loss(forward(), self.target)
        loss.backward()
        gradients = {}
        for name, parameter in nets.named_parameters(layers):
            g = parameter.grad.double().reshape(-1)
            count = min(16, g.numel())
            at = [i * 7919 % g.numel() for i in range(count)]
            gradients[name] = dict(norm=rounded(g.norm()), probes=[rounded(g[i]) for i in at])
        return dict(loss=rounded(loss, 9), gradients=gradients)

    def curve(self, optimizer, options):
        """In double precision: single precision differs between the kernels of CPUs, and Adam divides
        gradients that are only rounding (of a bias before a batch norm) by their own size."""
        layers = self.layers()
        for _, module, _, _ in layers:
            module.double()
        optimizer = optimizer([p for _, p in nets.named_parameters(layers)], **options)
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = self.loss(self.looped(layers, self.x.double(), CHUNKS), self.target)
            loss.backward()
            optimizer.step()
            losses.append(rounded(loss, 12))
        return losses

    def write(self):
        case = self.case
        results = {}
        layers = self.layers()
        if case["net"] != "toy" or not self.options.get("dropout"):
            results["whole"] = self.one_step(lambda: nets.run_plain(layers, self.x), layers)
        layers_looped = self.layers()
        results["looped"] = self.one_step(lambda: self.looped(layers_looped, self.x, CHUNKS), layers_looped)
        if case["balance"]:
            layers_piped = self.layers()
            model = GPipe(for_torchgpipe(layers_piped), case["balance"], devices=["cpu"] * len(case["balance"]),
                          chunks=CHUNKS, checkpoint="except_last")
            results["torchgpipe"] = self.one_step(lambda: model(self.x), layers_piped)
        curves = {}
        if case["curves"]:
            for name, (optimizer, options) in CURVES.items():
                curves[name] = dict(options=options, losses=self.curve(optimizer, options))
        content = dict(
            made_by="python tools/golden/make_net_goldens.py",
            versions=dict(torch=torch.__version__.split("+")[0], torchgpipe="0.0.7", numpy=np.__version__),
            net=case["net"], options=self.options, input=case["input"], target=list(self.target.shape),
            classes=self.classes, loss=case["loss"], chunks=CHUNKS, balance=case["balance"],
            key=dict(seed=SEED, step=STEP),
            parameters=[[name, list(p.shape)] for name, p in nets.named_parameters(layers)],
            one_step=results, curves=curves)
        text = json.dumps(content, indent=1)
        # Short lists on one line, so that people can read the files.
        text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]", text)
        (OUT / f"{case['file']}.json").write_text(text + "\n")
        losses = {k: v["loss"] for k, v in results.items()}
        print(case["file"], losses, {k: v["losses"][-1] for k, v in curves.items()})


def rounded(value, digits=8):
    value = value.item() if isinstance(value, torch.Tensor) else float(value)
    return float(f"{value:.{digits}g}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        if len(sys.argv) == 1 or case["file"] in sys.argv[1:]:
            Case(case).write()
