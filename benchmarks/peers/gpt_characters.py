"""Trains the GPT of recipes/gpt_characters.toml in plain Python torch, with its sizes, steps, rates and windows, on token files of
`trestle text prepare`. Prints the validation loss over fixed windows."""
import argparse
import json
import math
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F

from gpt_step import Gpt

WARM_UP, RATE, LEAST_RATE = 100, 1e-3, 1e-4


def tokens_of(folder, split):
    header = 1024  # bytes, as llm.c's
    parts = [numpy.fromfile(file, numpy.uint16, offset=header) for file in sorted(Path(folder).glob(f"{split}_*.bin"))]
    return torch.from_numpy(numpy.concatenate(parts).astype(numpy.int64))


def rate_of(step, steps):
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return LEAST_RATE + 0.5 * (RATE - LEAST_RATE) * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def rows(tokens, begins, context):
    return (torch.stack([tokens[begin + shift:begin + shift + context] for begin in begins]) for shift in (0, 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for flag, value in (("steps", 2000), ("batch", 12), ("context", 64), ("width", 128), ("layers", 4), ("heads", 4), ("windows", 200)):
        parser.add_argument(f"--{flag}", type=int, default=value)
    size = parser.parse_args()
    torch.manual_seed(1)
    train, validation = tokens_of(size.folder, "train"), tokens_of(size.folder, "validation")
    model = Gpt(int(max(train.max(), validation.max())) + 1, size.context, size.width, size.layers, size.heads)
    for name, parameter in model.named_parameters():  # GPT-2's rule for projections into the residual stream
        if name.endswith(("out.weight", "down.weight")):
            torch.nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * size.layers))
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}], betas=(0.9, 0.99),
                                  fused=True)
    for step in range(size.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(step, size.steps)
        ids, targets = rows(train, torch.randint(len(train) - size.context, (size.batch,)).tolist(), size.context)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # as a program that prints it
    with torch.no_grad():
        last = len(validation) - size.context - 1
        ids, targets = rows(validation, [i * last // max(1, size.windows - 1) for i in range(size.windows)], size.context)
        found = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).item()
    print(json.dumps({"validation_loss": found}))
