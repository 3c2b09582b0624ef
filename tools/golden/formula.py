"""Weights, inputs and targets from a formula that Python and C++ compute exactly (tests/support/golden.h). So no file stores
them."""

import numpy as np
import torch

MASK = np.uint64(0xFFFFFFFF)


def formula(count, key):
    """`count` numbers in [-1, 1), exact in float64: an integer hash of (position, key)."""
    j = np.arange(count, dtype=np.uint64)
    x = (j * np.uint64(2654435761) + np.uint64((key + 1) * 2246822519 & 0xFFFFFFFF)) & MASK
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & MASK
    x ^= x >> np.uint64(13)
    x = (x * np.uint64(3266489917)) & MASK
    x ^= x >> np.uint64(16)
    return x.astype(np.float64) / 2**31 - 1.0


def formula_tensor(shape, key):
    return torch.from_numpy(formula(int(np.prod(shape)), key)).float().reshape(shape)


def formula_classes(shape, key, classes):
    unit = (formula(int(np.prod(shape)), key) + 1) / 2
    return torch.from_numpy(np.floor(unit * classes).astype(np.int64)).reshape(shape)


def set_formula_weights(parameters):
    """Weights of two and more dimensions have variance 1 / fan-in; scales of norms are near 1, biases near 0."""
    with torch.no_grad():
        for key, (name, parameter) in enumerate(parameters):
            unit = torch.from_numpy(formula(parameter.numel(), key)).reshape(parameter.shape)
            if parameter.dim() >= 2:
                fan_in = parameter.numel() // parameter.shape[0]
                value = unit * np.sqrt(3.0 / fan_in)
            elif name.endswith("weight"):
                value = 1 + 0.2 * unit
            else:
                value = 0.2 * unit
            parameter.copy_(value.float())
