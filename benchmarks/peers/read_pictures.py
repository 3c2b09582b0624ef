"""Measures how fast Pillow and torch's DataLoader read Carvana's pictures and masks into batches. Files, sizes and tensors
are those of read_pictures.cpp."""
import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Carvana(Dataset):
    def __init__(self, images, masks, scale):
        self.images = sorted(images.glob("*.jpg"))
        by_name = {path.stem.removesuffix("_mask"): path for path in masks.glob("*.gif")}
        self.masks = [by_name[path.stem] for path in self.images]
        self.scale = scale

    def __len__(self):
        return len(self.images)

    def read(self, path, resample):
        with Image.open(path) as image:
            size = int(self.scale * image.width), int(self.scale * image.height)
            return torch.from_numpy(np.array(image.resize(size, resample)))

    def __getitem__(self, index):
        image = self.read(self.images[index], Image.BICUBIC)
        return image.permute(2, 0, 1).float() / 255, self.read(self.masks[index], Image.NEAREST).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--masks", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    loader = DataLoader(Carvana(arguments.images, arguments.masks, arguments.scale), arguments.batch, shuffle=True,
                        num_workers=arguments.workers, persistent_workers=True)
    seconds, input_sum, target_sum = [], 0.0, 0.0
    for epoch in range(1 + arguments.epochs):  # the first epoch caches the files
        begin = time.perf_counter()
        for inputs, targets in loader:
            if epoch == 0:
                input_sum += inputs.sum(dtype=torch.double).item()
                target_sum += targets.sum().item()
        if epoch > 0:
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"examples": len(loader.dataset), "seconds": seconds, "input_sum": input_sum,
                      "target_sum": target_sum}))


main()
