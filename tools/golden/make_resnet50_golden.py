"""Writes tests/golden/nets/resnet50.json: torchvision's names and shapes of ResNet-50, and the results of a narrow one.

    python tools/golden/make_resnet50_golden.py

Needs torch 2.13.0 and numpy. If torchvision is installed, it first compares torchvision's ResNet-50 with resnet50.py.
"""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

import formula
from resnet50 import ResNet50

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "nets" / "resnet50.json"
NARROW = dict(width=4, classes=10)
INPUT = [4, 3, 49, 64]  # odd maps on the way


def digits(values, count=7):
    return [float(f"{v:.{count}g}") for v in values]


def named_shapes(pairs):
    return [[name, list(tensor.shape)] for name, tensor in pairs]


def compare_with_torchvision():
    try:
        from torchvision.models import resnet50
    except (ImportError, RuntimeError):  # not installed, or built for a different torch
        return "not compared"
    theirs, ours = resnet50(), ResNet50()
    assert named_shapes(theirs.named_parameters()) == named_shapes(ours.named_parameters())
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 96, 96)
    for mode in (True, False):
        difference = (theirs.train(mode)(x) - ours.train(mode)(x)).abs().max().item()
        assert difference < 1e-4, difference
    return "the same"


def narrow():
    net = ResNet50(**NARROW)
    formula.set_formula_weights(list(net.named_parameters()))
    net.double()  # single precision rounds gradients this deep in the net by percents
    x = formula.formula_tensor(INPUT, 1000).double()
    target = formula.formula_classes([INPUT[0]], 1001, NARROW["classes"])
    logits = net(x)
    loss = F.cross_entropy(logits, target)
    loss.backward()
    norms = {name: digits([p.grad.double().norm().item()])[0] for name, p in net.named_parameters()}
    evaluated = net.eval()(x).detach()  # with the running statistics of the step before
    return dict(options=NARROW, input=INPUT, logits=digits(logits.flatten().tolist()), loss=digits([loss.item()])[0],
                evaluated=digits(evaluated.flatten().tolist()), gradient_norms=norms)


if __name__ == "__main__":
    torch.set_num_threads(1)
    full = ResNet50()
    content = dict(
        made_by="python tools/golden/make_resnet50_golden.py",
        versions=dict(torch=torch.__version__.split("+")[0], numpy=np.__version__),
        parameter_count=sum(p.numel() for p in full.parameters()),
        parameters=named_shapes(full.named_parameters()),
        buffers=named_shapes(full.named_buffers()),
        narrow=narrow())
    # One line for each longer entry, so that people can read the file.
    lines = json.dumps(content)
    for word in ('"versions"', '"parameter_count"', '"parameters"', '"buffers"', '"narrow"', '"logits"', '"loss"', '"evaluated"',
                 '"gradient_norms"'):
        lines = lines.replace(", " + word + ":", ",\n " + word + ":")
    OUT.write_text(lines + "\n")
    print("torchvision:", compare_with_torchvision(), "· loss", content["narrow"]["loss"])
