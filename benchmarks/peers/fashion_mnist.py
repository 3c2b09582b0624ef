"""ResNet-18 on Fashion-MNIST in plain Python torch, with the settings of recipes/resnet18_fashion_mnist.toml.

    apt-get install dataset-fashion-mnist
    python benchmarks/peers/fashion_mnist.py --epochs 3

Prints a line of CSV for each epoch, to hold beside a run's metrics.csv.
"""
import argparse
import gzip
import pathlib
import sys
import time

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "golden"))
from nets import Plain, resnet18_flat  # noqa: E402


def read(path, header, shape):
    with gzip.open(path) as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[header:].view(shape)


def load(folder, part):
    images = read(folder / f"{part}-images-idx3-ubyte.gz", 16, [-1, 1, 28, 28])
    labels = read(folder / f"{part}-labels-idx1-ubyte.gz", 8, [-1])
    return images, labels.long()


def evaluate(model, images, labels, batch):
    model.eval()
    right = 0
    loss = 0.0
    with torch.no_grad():
        for x, y in zip(images.split(batch), labels.split(batch)):
            scores = model(x / 255)
            right += (scores.argmax(1) == y).sum().item()
            loss += F.cross_entropy(scores, y, reduction="sum").item()
    model.train()
    return loss / len(labels), right / len(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    images, labels = load(arguments.folder, "train")
    test_images, test_labels = load(arguments.folder, "t10k")
    model = Plain(resnet18_flat(arguments.width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print("epoch,train_loss,val_loss,accuracy,seconds", flush=True)
    for epoch in range(1, arguments.epochs + 1):
        begin = time.perf_counter()
        order = torch.randperm(len(labels)).split(arguments.batch)[:len(labels) // arguments.batch]
        total = 0.0
        for piece in order:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[piece] / 255), labels[piece])
            loss.backward()
            optimizer.step()
            total += loss.item()
        seconds = time.perf_counter() - begin
        val_loss, accuracy = evaluate(model, test_images, test_labels, arguments.batch)
        print(f"{epoch},{total / len(order):.4f},{val_loss:.4f},{accuracy:.4f},{seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
