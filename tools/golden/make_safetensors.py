"""Writes tests/golden/safetensors/python.safetensors with the reference implementation (pip: safetensors)."""

import pathlib

import torch
from safetensors.torch import save_file

out = pathlib.Path(__file__).parents[2] / "tests" / "golden" / "safetensors"
out.mkdir(parents=True, exist_ok=True)
save_file(
    {
        "layer.weight": torch.arange(12, dtype=torch.float32).view(3, 4) / 8,
        "layer.steps": torch.tensor(-5),
        "mask": torch.tensor([True, False, True]),
        "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
    },
    out / "python.safetensors",
    metadata={"written_by": "python safetensors"},
)
