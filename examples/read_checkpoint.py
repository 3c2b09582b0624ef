#!/usr/bin/env python3
"""Reads a checkpoint folder of trestle, such as runs/NAME/last, saved by any number of ranks.

    examples/read_checkpoint.py FOLDER [GROUP]      lists the tensors of a group: weights, optimizer, gradients

Needs torch and safetensors.
"""
import sys

# [read]
import json
import pathlib

import torch
from safetensors import safe_open


def read_checkpoint(folder, group="weights"):
    """A state_dict: each tensor under its name in the unsplit model."""
    folder = pathlib.Path(folder)
    index = json.loads((folder / "index.json").read_text())
    assert index["format"] == "trestle checkpoint" and index["version"] == 2
    files = {name: safe_open(folder / name, framework="pt") for name in index["files"]}
    tensors = {}
    for about in index["tensors"].get(group, []):
        name = about["name"]
        for box in about["boxes"]:
            part = files[box["file"]].get_tensor(box.get("key", name))
            whole = tensors.setdefault(name, torch.empty(about["shape"], dtype=part.dtype))
            whole[tuple(slice(at, at + size) for at, size in zip(box["offset"], box["sizes"]))] = part
    return tensors
# [read]


if __name__ == "__main__":
    for name, tensor in read_checkpoint(*sys.argv[1:]).items():
        print(name, tensor.dtype, list(tensor.shape))
