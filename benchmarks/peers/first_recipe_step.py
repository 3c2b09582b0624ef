"""recipes/unet_quick.toml to the end of its first step, as a Python program: lists and splits the folders, reads and scales
one batch of images and masks, builds the model, and runs one step."""
import argparse
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from measured_steps import loss_of, rmsprop
from nets import Plain, unet


def read(path, size, resample):
    with Image.open(path) as image:
        return np.asarray(image.resize(size, resample))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--masks", type=Path, required=True)
    arguments = parser.parse_args()
    torch.manual_seed(42)
    names = sorted(path.stem for path in arguments.images.glob("*.jpg"))
    masks = {path.stem.removesuffix("_mask"): path for path in arguments.masks.glob("*.gif")}
    random.Random(42).shuffle(names)
    batch = names[:len(names) * 4 // 5][:16]
    size = (96, 64)
    inputs = np.stack([read(arguments.images / f"{name}.jpg", size, Image.BICUBIC) for name in batch])
    targets = np.stack([read(masks[name], size, Image.NEAREST) for name in batch])
    inputs = torch.from_numpy(inputs).permute(0, 3, 1, 2).float() / 255
    model = Plain(unet(16))
    optimizer = rmsprop(model.parameters())
    optimizer.zero_grad()
    loss = loss_of(model(inputs), torch.from_numpy(targets).long())
    loss.backward()
    optimizer.step()
    loss.item()
    print("first step", flush=True)


main()
