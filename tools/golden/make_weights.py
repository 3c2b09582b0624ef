"""Writes tests/golden/weights/*.pt: files of weights by Python's torch.save, and other files."""

import collections
import os
import pathlib
import shutil
import zipfile

import torch
from torch import nn

out = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "weights"
out.mkdir(parents=True, exist_ok=True)

table = torch.arange(12, dtype=torch.float32) / 8
weights = collections.OrderedDict(
    [
        ("layer.weight", table.view(3, 4)),
        ("layer.transposed", table.view(3, 4).t()),
        ("layer.row", table[4:8]),
        ("layer.steps", torch.tensor(-5)),
        ("parameter", nn.Parameter(torch.tensor([2.5, -1.0]))),
        ("mask", torch.tensor([True, False, True])),
        ("half", torch.tensor([0.5, -2.0], dtype=torch.float16)),
        ("brain", torch.tensor([1.0, 3.0], dtype=torch.bfloat16)),
        ("double", torch.tensor([[1e300]], dtype=torch.float64)),
        ("int", torch.tensor([-70000], dtype=torch.int32)),
        ("short", torch.tensor([-300], dtype=torch.int16)),
        ("char", torch.tensor([-3], dtype=torch.int8)),
        ("byte", torch.tensor([250], dtype=torch.uint8)),
        ("none", torch.empty(0, 4)),
    ]
)
torch.save(weights, out / "python.pt")

# The negative of its storage, marked as such in the file.
negated = torch.tensor([1 + 2j, 3 - 4j, 5 + 0.5j]).conj().imag
torch.save({"negated": negated, "plain": negated.resolve_neg()}, out / "negated.pt")

model = nn.Sequential(collections.OrderedDict(fc=nn.Linear(2, 3), norm=nn.BatchNorm1d(3)))
for number, parameter in enumerate(model.parameters()):
    parameter.data = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter) + number
model(torch.ones(4, 2)).sum().backward()
optimizer = torch.optim.Adam(model.parameters())
optimizer.step()
for number, parameter in enumerate(model.parameters()):
    parameter.data = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter) + number
checkpoint = {
    "epoch": 3,
    "arch": "mine",
    "best_acc1": torch.tensor(0.5),
    "state_dict": model.state_dict(),
    "optimizer": optimizer.state_dict(),
    "seed": 1 << 100,
    "lr": [0.1, None, (1, -2, 1 << 40)],
}
torch.save(checkpoint, out / "checkpoint.pt")
torch.save({"model": model.state_dict(), "ema": model.state_dict()}, out / "two.pt")
torch.save({"epoch": 3, "state_dict": {}}, out / "no_tensors.pt")
torch.save(torch.ones(2), out / "one_tensor.pt")
torch.save(model, out / "whole_model.pt")
torch.save(model.state_dict(), out / "old_format.pt", _use_new_zipfile_serialization=False)
torch.save({"a": torch.ones(2)}, out / "protocol4.pt", pickle_protocol=4)


class Command:
    def __reduce__(self):
        return os.system, ("touch this_must_not_be_there",)


torch.save({"a": torch.ones(2), "b": Command()}, out / "command.pt")


def rewritten(name, change, compression=zipfile.ZIP_STORED):
    """Writes python.pt again, entry by entry."""
    with zipfile.ZipFile(out / "python.pt") as source, zipfile.ZipFile(out / name, "w", compression) as target:
        for entry in source.namelist():
            target.writestr(zipfile.ZipInfo(entry), change(entry, source.read(entry)), compression)


rewritten("compressed.pt", lambda entry, content: content, zipfile.ZIP_DEFLATED)
rewritten("big_endian.pt", lambda entry, content: b"big" if entry.endswith("byteorder") else content)
rewritten("short_storage.pt", lambda entry, content: content[:-1] if entry.endswith("data/0") else content)
shutil.copy(out / "python.pt", out / "script.pt")
with zipfile.ZipFile(out / "script.pt", "a") as script:
    script.writestr("python/constants.pkl", b"")  # this entry marks a TorchScript program
